"""Aggregates and their plain folds over rows: what every test of `Aggregate` draws from."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import strategies as st

from headgate.operator import (
    All,
    ApproxCountDistinct,
    Collect,
    Count,
    CountDistinct,
    First,
    Max,
    Mean,
    Median,
    Min,
    Quantile,
    StdDev,
    Sum,
    Variance,
)
from headgate.operator import (
    Any as AnyTrue,
)
from headgate.operator.measure import Measure

Row = dict[str, Any]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SCHEMA = pa.schema({
    "k": pa.string(), "i": pa.int32(), "f": pa.float64(), "m": pa.decimal128(9, 2),
    "s": pa.string(), "b": pa.bool_(), "ts": pa.timestamp("us", "UTC"), "n": pa.int64(),
})  # fmt: skip

rows_of_a_stream = st.lists(
    st.fixed_dictionaries(
        {
            "k": st.sampled_from(["a", "b", "c", None]),
            "i": st.none() | st.integers(-5, 5) | st.integers(-(2**31), 2**31 - 1),
            "f": st.none() | st.floats(-1e6, 1e6) | st.sampled_from([float("nan"), -0.0, 0.0]),
            "m": st.none() | st.integers(-300, 300).map(lambda n: Decimal(n).scaleb(-2)),
            "s": st.none() | st.sampled_from(["", "x", "yy", "\0", "\0\1", "\0\xff", "é" * 40]),
            "b": st.none() | st.booleans(),
            "second": st.integers(-30, 90),
            "break": st.sampled_from([0, 0, 0, 0, 1, 2, 3]),  # before it: 1 call, 2 task, 3 epoch
        }
    ),
    max_size=40,
)


def numbered(rows: list[Row]) -> list[Row]:
    """With their times and numbers, as the operator gets them."""
    made = []
    for number, row in enumerate(rows):
        made.append(row | {"n": number, "ts": EPOCH + timedelta(seconds=row["second"])})
    return made


@dataclass(frozen=True)
class Where:
    """A condition, as an expression and as a function."""

    expression: Any
    holds: Callable[[Row], bool]


WHERES: dict[str, Where] = {
    "": Where(None, lambda r: True),
    "i > 0": Where(pc.field("i") > 0, lambda r: r["i"] is not None and r["i"] > 0),
    "sql": Where("s is not null", lambda r: r["s"] is not None),
    "f < 10": Where(pc.field("f") < 10, lambda r: r["f"] is not None and r["f"] < 10),
    "even": Where(
        pc.bit_wise_and(pc.field("n"), pc.scalar(1)) == 0, lambda r: bool(r["n"] % 2 == 0)
    ),
}


@dataclass(frozen=True)
class Case:
    """An aggregate, what it comes to for some rows, and what it can do."""

    make: Callable[..., Measure]
    fold: Callable[[list[Row]], Any]
    running: bool = True
    panes: bool = True


def there(rows: list[Row], column: str) -> list[Any]:
    return [r[column] for r in rows if r[column] is not None]


def _of(column: str, fold: Callable[[list[Any]], Any], none: Any = None) -> Any:
    def folded(rows: list[Row]) -> Any:
        values = there(rows, column)
        return fold(values) if values else none

    return folded


def _largest(values: list[float]) -> float:
    return next((v for v in values if v != v), max(values))


def _smallest(values: list[float]) -> float:
    return min((v for v in values if v == v), default=float("nan"))


def _spread(values: list[Any], less: int) -> float | None:
    exact = [Fraction(v) for v in values if math.isfinite(v)]
    if len(exact) < len(values):
        return float("nan") if len(values) > less else None
    if len(exact) <= less:
        return None
    mean = sum(exact) / len(exact)
    return float(sum((v - mean) ** 2 for v in exact) / (len(exact) - less))


def _variance(values: list[Any]) -> float | None:
    return _spread(values, 1)


def _deviation(values: list[Any]) -> float | None:
    variance = _spread(values, 1)
    return None if variance is None else math.sqrt(variance)


def _at(which: int, column: str, by: str) -> Any:
    return lambda rows: sorted(rows, key=lambda r: r[by])[which][column] if rows else None


def _by(row: Row) -> Any:
    return row["m"] is None, row["m"] or 0


def _first_by_m(rows: list[Row]) -> Any:
    return min(rows, key=_by)["n"] if rows else None


def _by_m(column: str, limit: int) -> Any:
    def value(v: Any) -> Any:
        return v.encode() if isinstance(v, str) else (v != v, v)

    def folded(rows: list[Row]) -> Any:
        kept = [r for r in rows if r[column] is not None]
        kept.sort(key=lambda r: (_by(r), value(r[column])))
        return [r[column] for r in kept[:limit]]

    return folded


def _rank(values: list[Any], q: float) -> float:
    ordered = sorted(values, key=lambda v: (v != v, v))
    return float(ordered[math.floor(q * (len(ordered) - 1))])


class near(float):
    """A value that an estimate may be one per cent off."""


CASES: dict[str, Case] = {
    "count": Case(Count, len),
    "count_s": Case(lambda **w: Count("s", **w), _of("s", len, 0)),
    "sum_i": Case(lambda **w: Sum("i", **w), _of("i", sum)),
    "sum_m": Case(lambda **w: Sum("m", **w), _of("m", sum)),
    "sum_f": Case(lambda **w: Sum("f", **w), _of("f", sum)),
    "mean_i": Case(lambda **w: Mean("i", **w), _of("i", lambda vs: sum(vs) / len(vs))),
    "min_f": Case(lambda **w: Min("f", **w), _of("f", _smallest)),
    "max_f": Case(lambda **w: Max("f", **w), _of("f", _largest)),
    "max_s": Case(lambda **w: Max("s", **w), _of("s", lambda vs: max(vs, key=str.encode))),
    "min_ts": Case(lambda **w: Min("ts", **w), _of("ts", min)),
    "distinct_i": Case(lambda **w: CountDistinct("i", **w), _of("i", lambda v: len(set(v)), 0)),
    "distinct_s": Case(lambda **w: CountDistinct("s", **w), _of("s", lambda v: len(set(v)), 0)),
    "distinct_f": Case(
        lambda **w: CountDistinct("f", **w),
        _of("f", lambda vs: len({"nan" if v != v else v + 0.0 for v in vs}), 0),
    ),
    "approx_m": Case(
        lambda **w: ApproxCountDistinct("m", **w), _of("m", lambda v: len(set(v)), 0), running=False
    ),
    "variance": Case(lambda **w: Variance("i", exact=False, **w), _of("i", _variance)),
    "variance_p": Case(
        lambda **w: Variance("f", population=True, **w), _of("f", lambda v: _spread(v, 0))
    ),
    "stddev": Case(lambda **w: StdDev("m", **w), _of("m", _deviation)),
    "any": Case(lambda **w: AnyTrue("b", **w), _of("b", any)),
    "all": Case(lambda **w: All("b", **w), _of("b", all)),
    "first_s": Case(lambda **w: First("s", **w), _at(0, "s", "n"), running=False, panes=False),
    "first_by": Case(lambda **w: First("s", by="n", **w), _at(0, "s", "n"), running=False),
    "first_f_by_m": Case(lambda **w: First("n", by="m", **w), _first_by_m, running=False),
    "quantile": Case(
        lambda **w: Quantile("i", 0.8, **w), _of("i", lambda v: near(_rank(v, 0.8))), running=False
    ),
    "median": Case(lambda **w: Median("f", **w), _of("f", lambda v: near(_rank(v, 0.5))), False),
    "collect": Case(
        lambda **w: Collect("s", limit=3, **w), _of("s", lambda v: v[:3], []), False, panes=False
    ),
    "collect_by": Case(lambda **w: Collect("s", limit=4, by="m", **w), _by_m("s", 4), False),
    "collect_i": Case(lambda **w: Collect("i", limit=4, by="n", **w),
                      _of("i", lambda v: v[:4], []), False),
    "collect_f": Case(lambda **w: Collect("f", limit=2, by="m", **w), _by_m("f", 2), False),
}  # fmt: skip
