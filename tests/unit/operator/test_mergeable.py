"""Split over slots and merged, or all at home: the same state, the same rows, to the last bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.operator.checks import KEY_SHAPES
from tests.unit.operator.harness import (
    Away,
    Epoch,
    EpochResult,
    Slot,
    batch_of,
    name_of,
    process_away,
)

from headgate.errors import DeclarationError
from headgate.operator import (
    Aggregate,
    ApproxCountDistinct,
    Collect,
    Count,
    CountDistinct,
    Deduplicate,
    EpochClock,
    First,
    Global,
    KeyedRows,
    Last,
    Max,
    Mean,
    MeanOfLast,
    Min,
    Partials,
    Quantile,
    Session,
    StatefulOperator,
    Sum,
    TopK,
    TopRows,
    Tumbling,
    Update,
    Variance,
    Window,
)
from headgate.operator.base import state_schema
from headgate.routing.identity import SCRATCH
from headgate.state.session import PrivateSession
from strategies import examples

WINDOW = Tumbling("10 seconds", time="ts")
VALUES = pa.schema({
    "i": pa.int32(), "big": pa.int64(), "f": pa.float64(), "m": pa.decimal128(9, 2),
    "s": pa.string(), "ts": pa.timestamp("us", "UTC"), "n": pa.int64(),
})  # fmt: skip


def unchanged(key: Any, rows: Any, state: Any) -> tuple[Any, None]:
    return state, None


MERGEABLE: list[StatefulOperator] = [
    Count(),
    Count("s", emit="rows"),
    Count("i", window=WINDOW),
    Sum("i"),
    Sum("big", ttl=timedelta(milliseconds=100)),
    Sum("m", emit="rows"),
    Sum("i", window=WINDOW),
    Mean("i"),
    Mean("i", window=WINDOW),
    Min("f"),
    Min("s", emit="rows"),
    Max("s", window=WINDOW),
    Max("ts", ttl=timedelta(milliseconds=100)),
    Max("m"),
    Last("s", "f", by="n"),
    Last("i", by="n", emit="rows"),
    Count(where=pc.field("i") > 0),
    Aggregate(n=Count(), i=Sum("i", where=pc.field("s") == "a"), f=Max("f"), s=Min("s")),
    Aggregate(n=Count(), i=Mean("i"), window=WINDOW),
    CountDistinct("s"),
    CountDistinct("f", window=WINDOW),
    ApproxCountDistinct("n", size=3),
    Quantile("f", 0.7),
    Aggregate(
        d=CountDistinct("m"),
        q=Quantile("i", 0.5),
        c=Collect("s", by="m", limit=3),
        first=First("s", by="n"),
        last=Last("i", by="n"),
        window=WINDOW,
    ),
    TopK("s", 2, WINDOW),
    TopK("i", 2, WINDOW, weight="big"),
    TopK("i", 2, WINDOW, weight="big", emit="changes"),
    TopK("s", 2, Session("9 seconds", "ts", allowed_lateness="30 seconds")),
    TopRows(2, "i desc", window=WINDOW, emit="changes"),
    TopRows(2, "f", window=Tumbling("10 seconds", time="ts", allowed_lateness="30 seconds")),
]
NOT_MERGEABLE: list[StatefulOperator] = [
    Count(emit="running"),
    Count(ordered=True),
    Sum("f"),
    Sum("f", window=WINDOW),
    Mean("f"),
    Mean("big"),
    Mean("m"),
    Max("f", emit="running"),
    Aggregate(n=Count(), f=Sum("f")),
    Aggregate(total=Count(), emit="running"),
    Variance("i"),
    First("s"),
    Collect("s"),
    Last("s"),
    Last("s", by="n", ordered=True),
    TopK("s", 2, WINDOW, weight="f"),
    MeanOfLast("i", 3, emit="updates"),
    Deduplicate(),
    Update(unchanged, pa.schema({"x": pa.int64()})),
]

times = st.integers(-30, 90).map(lambda s: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=s))
row = st.fixed_dictionaries(
    {
        "key": st.integers(0, 3),
        "i": st.none() | st.integers(-(2**31), 2**31 - 1),
        "big": st.none() | st.integers(-(2**55), 2**55),
        "f": st.none() | st.floats(),
        "m": st.none() | st.integers(-(10**9) + 1, 10**9 - 1).map(lambda n: Decimal(n).scaleb(-2)),
        "s": st.none() | st.sampled_from(["", "a", "b", "ab", "é"]),
        "ts": st.none() | times,
        "level": st.integers(0, 2),
        "slot": st.integers(0, 3),  # 0 owns every key, the others none
        "new_epoch": st.sampled_from([False, False, False, True]),
    }
)
Row = dict[str, Any]


def schema_of(shape: str) -> pa.Schema:
    return pa.schema([*KEY_SHAPES[shape][0], *VALUES])


def batch(rows: Sequence[Row], shape: str) -> pa.RecordBatch:
    keys, choices = KEY_SHAPES[shape]
    made = [r | dict(zip(keys.names, choices[r["key"] % len(choices)], strict=True)) for r in rows]
    return pa.RecordBatch.from_pylist(made, schema=schema_of(shape))


def epochs_of(rows: list[Row]) -> list[list[Row]]:
    epochs: list[list[Row]] = [[]]
    for number, r in enumerate(rows):
        if r["new_epoch"]:
            epochs.append([])
        epochs[-1].append(r | {"n": number})
    return epochs


def at_home(rows: list[Row], shape: str) -> list[list[pa.RecordBatch | Away]]:
    return [[batch(rows, shape)]] if rows else []


def split(rows: list[Row], shape: str) -> list[list[pa.RecordBatch | Away]]:
    """Per level one call at home and one in each other slot that has rows."""
    levels: list[list[pa.RecordBatch | Away]] = []
    for level in range(3):
        calls: list[pa.RecordBatch | Away] = []
        for slot in range(4):
            some = [r for r in rows if (r["level"], r["slot"]) == (level, slot)]
            if some:
                calls.append(batch(some, shape) if slot == 0 else Away(batch(some, shape)))
        levels.append(calls)
    return levels if rows else []


def comparable(result: EpochResult) -> Any:
    passed, finished = (sorted(map(repr, rows)) for rows in (result.passed, result.finished))
    return passed, finished, sorted(result.dead.values()), result.late


def outcome(
    operator: StatefulOperator,
    rows: list[Row],
    shape: str,
    lay_out: Callable[[list[Row], str], list[list[pa.RecordBatch | Away]]],
) -> Any:
    made = []
    with Slot(operator, schema_of(shape), KEY_SHAPES[shape][0].names) as slot:
        for number, some in enumerate([*epochs_of(rows), []]):
            levels = lay_out(some, shape)
            result = slot.run(Epoch(levels, number * 25_000_000 - 20_000_000, number * 70))
            assert not result.dead_partials
            made.append((comparable(result), sorted(map(repr, slot.held()))))
    return made


@pytest.mark.parametrize("operator", MERGEABLE, ids=name_of)
@examples(8)
@given(rows=st.lists(row, max_size=30), shape=st.sampled_from(list(KEY_SHAPES)))
def test_split_equals_unsplit(operator: StatefulOperator, rows: list[Row], shape: str) -> None:
    assert outcome(operator, rows, shape, split) == outcome(operator, rows, shape, at_home)


@pytest.mark.parametrize("operator", MERGEABLE, ids=name_of)
def test_mergeable_ones_say_so(operator: StatefulOperator) -> None:
    assert operator.mergeable(schema_of("text"), ["k"])


@pytest.mark.parametrize("operator", NOT_MERGEABLE, ids=name_of)
def test_the_others_say_why_not(operator: StatefulOperator) -> None:
    schema = schema_of("text")
    assert not operator.mergeable(schema, ["k"])
    assert operator.why_not_mergeable(schema, ["k"])


@pytest.mark.parametrize(
    "operator",
    [o for o in NOT_MERGEABLE if not isinstance(o, Mean | Variance | First | Collect)],
    ids=name_of,
)
def test_the_others_absorb_nothing(operator: StatefulOperator) -> None:
    """Some cannot tell by a partial what went into it, but nobody can make one."""
    state = state_schema(operator, schema_of("text"), ["k"])
    fields = [*state.row_key, *state.values]
    nulls = [pa.nulls(1, f.type) for f in fields]
    partials = Partials(pa.RecordBatch.from_arrays(nulls, [f.name for f in fields]), state)
    with (
        PrivateSession(state, SCRATCH) as empty,
        pytest.raises(DeclarationError, match="cannot be split"),
    ):
        operator.absorb(partials, empty, EpochClock(0, 0))


def test_an_emit_is_no_way_out_where_order_is_the_matter() -> None:
    why = MeanOfLast("i", 3).why_not_mergeable(schema_of("text"), ["k"])
    assert "matter of order" in why


def test_floats_are_mergeable_on_request() -> None:
    schema = pa.schema({"k": pa.int64(), "v": pa.float64()})
    halves = [batch_of(schema, k=[1, 1, 2], v=[0.5, 0.25, None]), batch_of(schema, k=[1], v=[2.0])]
    for operator, name, expected in [
        (Sum("v", exact=False), "sum", [2.75, None]),
        (Mean("v", exact=False), "mean", [2.75 / 3, None]),
    ]:
        assert operator.mergeable(schema, ["k"])
        with Slot(operator, schema, ["k"]) as slot:
            finished = slot.run(Epoch([[Away(halves[0]), halves[1]]])).finished
        assert [r[name] for r in sorted(finished, key=lambda r: r["k"])] == expected


def test_a_key_may_be_named_like_a_value() -> None:
    schema = pa.schema({"count": pa.int64()})
    with Slot(Count(name="n"), schema, ["count"]) as slot:
        rows = batch_of(schema, count=[7, 7, 8])
        assert slot.run(Epoch([[Away(rows), rows]])).finished == [
            {"count": 7, "n": 4},
            {"count": 8, "n": 2},
        ]


def test_a_partial_that_would_overflow_is_refused_and_the_sum_stays() -> None:
    schema = pa.schema({"k": pa.string(), "v": pa.int64()})
    with Slot(Sum("v"), schema, ["k"]) as slot:
        slot.run(Epoch([[batch_of(schema, k=["a", "b"], v=[2**63 - 5, 1])]]))
        away = [Away(batch_of(schema, k=["a", "b"], v=[4, 4])) for _ in range(2)]

        result = slot.run(Epoch([away]))

        assert result.dead_partials == 2
        assert result.finished == [{"k": "b", "sum": 9}]
        assert sorted(r["sum"] for r in slot.held()) == [9, 2**63 - 5]


@pytest.mark.parametrize(
    "window",
    [Session("10 seconds", time="t"), Global(), Tumbling("10 seconds", time="t")],
    ids=repr,
)
def test_a_window_of_nothing_but_refused_partials_is_not_there(window: Window) -> None:
    """The key is new at its owner, and its partials overflow only together."""
    schema = pa.schema({"k": pa.string(), "v": pa.int64(), "t": VALUES.field("ts").type})
    at = datetime(2026, 1, 1, tzinfo=UTC)
    away = batch_of(schema, k=["a", "b"], v=[2**62, 4], t=[at, at])
    with Slot(Sum("v", window=window), schema, ["k"]) as slot:
        result = slot.run(Epoch([[Away(away), Away(away)]]))
        assert result.dead_partials > 0
        assert {r["k"] for r in slot.held()} <= {"b"}

        done = slot.run(Epoch([], watermark_us=round(at.timestamp() * 1e6) + 60_000_000))

    told = [*result.finished, *done.finished]
    assert {(r["k"], r["sum"]) for r in told} == {("b", 8)}


def test_rows_that_overflow_by_themselves_are_refused_where_they_are() -> None:
    schema = pa.schema({"k": pa.string(), "v": pa.int64()})
    rows = batch_of(schema, k=["a", "b", "a"], v=[2**63 - 1, 1, 2**63 - 1])
    with Slot(Sum("v"), schema, ["k"]) as slot:
        result = slot.run(Epoch([[Away(rows)]]))
    assert sorted(result.dead) == [0, 2]
    assert result.finished == [{"k": "b", "sum": 1}]


def test_a_null_time_is_older_than_any_other_wherever_it_was() -> None:
    schema = pa.schema({"k": pa.int64(), "v": pa.string(), "by": pa.int64()})
    calls = [
        Away(batch_of(schema, k=[1, 2], v=["null", "only"], by=[None, None])),
        batch_of(schema, k=[1], v=["new"], by=[5]),
        Away(batch_of(schema, k=[1], v=["old"], by=[4])),
    ]
    for order in ([0, 1, 2], [2, 1, 0], [1, 0, 2]):
        with Slot(Last("v", by="by"), schema, ["k"]) as slot:
            finished = slot.run(Epoch([[calls[i]] for i in order])).finished
        assert {r["k"]: r["v"] for r in finished} == {1: "new", 2: "only"}


def test_partials_are_one_row_per_key_in_a_fixed_order() -> None:
    schema = pa.schema({"k": pa.int64()})
    keys = np.random.default_rng(1).integers(0, 50, 1000)
    clock = EpochClock(0, 0)
    made = []
    for order in (keys, keys[::-1]):
        rows = KeyedRows(batch_of(schema, k=order.tolist()), ["k"])
        output, partial = process_away(Count(), rows, clock)
        assert output.batch is None and output.carry is None
        made.append(partial)
    assert made[0].equals(made[1])
    assert made[0].num_rows == len(np.unique(keys))
