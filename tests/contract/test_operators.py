"""Every built-in, run as a user would run it, equals a plain retelling: any slots, any tables."""

from __future__ import annotations

from collections import Counter, defaultdict
from contextlib import nullcontext
from datetime import timedelta
from statistics import pvariance, stdev
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given
from hypothesis import strategies as st
from tests.scenario.born_local import born_local
from tests.scenario.splitting import splitting

import headgate
from headgate import (
    Aggregate,
    All,
    ApproxCountDistinct,
    Collect,
    Count,
    CountDistinct,
    Deduplicate,
    First,
    Flow,
    Last,
    Max,
    Mean,
    MeanOfLast,
    Median,
    Min,
    Quantile,
    Session,
    StatefulOperator,
    StdDev,
    Sum,
    TopK,
    TopRows,
    Tumbling,
    Update,
    Variance,
)
from headgate.testing import ListSource, LocalRun
from strategies import examples, run_quickly, second, tables

BUCKETS = 16
KEYS = ["a", "b", "c", "d", "e", None]
KEY_COLUMN = pa.array(KEYS)
SIZE = 10
WINDOW = Tumbling(f"{SIZE} seconds", time="t")
SCHEMA = "k string, item string, v bigint, t timestamp, n bigint, odd boolean"

Row = dict[str, Any]
Epochs = list[list[Row]]


def add_up(key: Any, rows: list[Row], state: int | None) -> tuple[int, list[Row]]:
    total = (state or 0) + sum(row["v"] or 0 for row in rows)
    return total, []


def values(rows: list[Row]) -> list[int]:
    return [row["v"] for row in rows if row["v"] is not None]


class Near(float):
    """A float that is right within one per cent."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, float) and abs(self - other) <= 0.01 * abs(self) + 1e-9

    __hash__ = float.__hash__


def quantile(given: list[int], q: float) -> float | None:
    return Near(sorted(given)[int(q * (len(given) - 1))]) if given else None


# operator -> what its result column is, given all rows of a key so far, in order of the source
FOLDS: dict[str, tuple[StatefulOperator, str, Any]] = {
    "count": (Count(), "count", len),
    "count_v": (Count("v"), "count", lambda rows: len(values(rows))),
    "sum": (Sum("v"), "sum", lambda rows: sum(values(rows)) if values(rows) else None),
    "mean": (
        Mean("v"),
        "mean",
        lambda rows: sum(values(rows)) / len(values(rows)) if values(rows) else None,
    ),
    "min": (Min("v"), "min", lambda rows: min(values(rows), default=None)),
    "max": (Max("item"), "max", lambda rows: max(row["item"] for row in rows)),
    "last": (Last("v", by="n"), "v", lambda rows: rows[-1]["v"]),
    "last_ordered": (Last("v", ordered=True), "v", lambda rows: rows[-1]["v"]),
    "distinct": (CountDistinct("item"), "distinct", lambda rows: len({r["item"] for r in rows})),
    "approx": (ApproxCountDistinct("v"), "distinct", lambda rows: len(set(values(rows)))),
    "first": (First("v", by="n"), "first", lambda rows: rows[0]["v"]),
    "collect": (
        Collect("v", by="n", limit=3),
        "collect",
        lambda rows: values(rows)[:3],
    ),
    "any": (headgate.Any("odd"), "any", lambda rows: any(r["n"] % 2 for r in rows)),
    "all": (All("odd"), "all", lambda rows: all(r["n"] % 2 for r in rows)),
    "variance": (
        Variance("v", population=True, ordered=True),
        "variance",
        lambda rows: Near(pvariance(values(rows))) if values(rows) else None,
    ),
    "stddev": (
        StdDev("v", exact=False),
        "stddev",
        lambda rows: Near(stdev(values(rows))) if len(values(rows)) > 1 else None,
    ),
    "quantile": (Quantile("v", 0.8), "quantile", lambda rows: quantile(values(rows), 0.8)),
    "median": (Median("v"), "median", lambda rows: quantile(values(rows), 0.5)),
    "mean_of_last": (
        MeanOfLast("v", 3, emit="updates", ordered=True),
        "mean",
        lambda rows: sum(values(rows)[-3:]) / len(values(rows)[-3:]) if values(rows) else None,
    ),
}
JOINT = {"n": Count(), "large": Sum("v", where=pc.field("v") > 9), "high": Max("item")}
OTHERS: dict[str, StatefulOperator] = {
    "joint": Aggregate(**JOINT),
    "joint_windowed": Aggregate(**JOINT, window=WINDOW),
    "running": Count(emit="running"),
    "passed": Count(emit="rows"),
    "dedup": Deduplicate(),
    "windowed": Sum("n", window=WINDOW),
    "top_rows": TopRows(2, ("v desc", "n"), emit="changes"),
    "sessions": Sum("n", window=Session(timedelta(seconds=SIZE), time="t")),
    "top_visits": TopRows(2, "v desc", window=Session(timedelta(seconds=SIZE), time="t")),
    "top": TopK("item", k=2, window=WINDOW),
    "update": Update(add_up, output=pa.schema({"x": pa.int64()}), rows_as="dicts"),
}


def flow_of(epochs: Epochs) -> Flow:
    """All built-ins on one source; rows reach them straight and through another operator."""
    flow = Flow("f")
    rows = flow.source(ListSource(SCHEMA, epochs), event_time="t", watermark="0 seconds")
    even = rows.filter_rows(lambda r: r["n"] % 2 == 0, name="even")
    odd = rows.filter_rows(lambda r: r["n"] % 2 == 1, name="odd")
    detour = odd.key_by("item").process(Count(emit="rows"), name="detour")
    keyed = even.union(detour).key_by("k")
    for name, operator in {**{n: f[0] for n, f in FOLDS.items()}, **OTHERS}.items():
        keyed.process(operator, name=name).to_memory(f"{name}_out")
    return flow


def by_epoch(done: LocalRun, name: str) -> dict[int, list[Row]]:
    made: dict[int, list[Row]] = defaultdict(list)
    for epoch, row in done.outputs.get(f"{name}_out", []):
        made[epoch].append(row)
    return made


row = st.fixed_dictionaries(
    {
        "k": st.sampled_from(KEYS),
        "item": st.sampled_from(["x", "y", "z"]),
        "v": st.none() | st.integers(-50, 50),
        "t": st.integers(0, 60).map(second),
    }
)


def test_this_contract_covers_every_built_in() -> None:
    covered = {type(f[0]) for f in FOLDS.values()} | {type(o) for o in OTHERS.values()}
    exported = {getattr(headgate, name) for name in headgate.__all__}

    operators = {o for o in exported if isinstance(o, type) and issubclass(o, StatefulOperator)}
    assert operators - {StatefulOperator} == covered


@examples(14)
@given(
    epochs=st.lists(st.lists(row, max_size=14), min_size=1, max_size=3),
    slots=st.sampled_from([1, 3]),
    partitions=st.integers(1, 3),
    born=st.booleans(),
    split=st.sets(st.sampled_from(["detour", *FOLDS, *OTHERS])),
    data=st.data(),
)
def test_every_built_in_equals_a_plain_retelling(
    epochs: Epochs, slots: int, partitions: int, born: bool, split: set[str], data: st.DataObject
) -> None:
    """Also with all operators born local that can be (rows of `detour` come from a slot), and with
    any of those that can be split.
    """
    number = 0
    for epoch in epochs:
        for r in epoch:
            r["n"], r["odd"] = number, number % 2 == 1
            number += 1
    placed = data.draw(tables(slots, KEY_COLUMN, BUCKETS))
    other = data.draw(tables(slots, KEY_COLUMN, BUCKETS))
    chosen = dict.fromkeys(FOLDS, placed) | dict.fromkeys(OTHERS, other)

    with born_local() if born else nullcontext(), splitting(split.__contains__):
        done = run_quickly(
            flow_of(epochs), slots=slots, partitions=partitions, tables=chosen, buckets=BUCKETS,
            check_purity=False,
        )  # fmt: skip

    _check_folds(done, epochs)
    _check_joint(done, epochs)
    _check_rows(done, epochs)
    _check_windows(done, epochs)
    _check_sessions(done, epochs)


def _check_folds(done: LocalRun, epochs: Epochs) -> None:
    for name, (_, column, fold) in FOLDS.items():
        seen: dict[Any, list[Row]] = defaultdict(list)
        made = by_epoch(done, name)
        for epoch, rows in enumerate(epochs):
            for r in rows:
                seen[r["k"]].append(r)
            expected = {k: fold(seen[k]) for k in {r["k"] for r in rows}}
            assert len(made[epoch]) == len(expected), name
            assert {r["k"]: r[column] for r in made[epoch]} == expected, name


def _joint(rows: list[Row]) -> tuple[int, int | None, str]:
    large = [v for v in values(rows) if v > 9]
    return len(rows), sum(large) if large else None, max(row["item"] for row in rows)


def _check_joint(done: LocalRun, epochs: Epochs) -> None:
    seen: dict[Any, list[Row]] = defaultdict(list)
    made = by_epoch(done, "joint")
    for epoch, rows in enumerate(epochs):
        for r in rows:
            seen[r["k"]].append(r)
        expected = {k: _joint(seen[k]) for k in {r["k"] for r in rows}}
        assert len(made[epoch]) == len(expected)
        assert {r["k"]: (r["n"], r["large"], r["high"]) for r in made[epoch]} == expected


def _check_rows(done: LocalRun, epochs: Epochs) -> None:
    everything = [r for epoch in epochs for r in epoch]
    per_key = Counter(r["k"] for r in everything)
    running: dict[Any, list[int]] = defaultdict(list)
    for r in done.rows("running_out"):
        running[r["k"]].append(r["count"])
    assert {k: sorted(n) for k, n in running.items()} == {
        k: list(range(1, n + 1)) for k, n in per_key.items()
    }
    assert sorted(r["n"] for r in done.rows("passed_out")) == [r["n"] for r in everything]
    assert Counter(r["k"] for r in done.rows("dedup_out")) == Counter(per_key.keys())
    totals = Counter(dict.fromkeys(per_key, 0))
    for r in everything:
        totals[r["k"]] += r["v"] or 0
    import pickle

    ranks = {(r["k"], r["rank"]): r["n"] for r in done.rows("top_rows_out")}
    best: dict[Any, list[int]] = defaultdict(list)
    for r in sorted(everything, key=lambda r: (r["v"] is None, -(r["v"] or 0), r["n"])):
        best[r["k"]].append(r["n"])
    assert ranks == {(k, n): i for k, all_ in best.items() for n, i in enumerate(all_[:2], 1)}

    held = {r["k"]: pickle.loads(r["state"]) for r in done.state("update")}
    assert held == dict(totals)


def _check_windows(done: LocalRun, epochs: Epochs) -> None:
    """A window closes in the first epoch whose watermark, made by the epochs before, is past it."""
    sums: dict[Any, list[Row]] = defaultdict(list)
    watermark: int | None = None
    used: int | None = None  # by the epoch before
    latest: int | None = None
    late = 0
    for epoch, rows in enumerate(epochs):
        for r in rows:
            time = int((r["t"] - second(0)).total_seconds())
            start = time // SIZE * SIZE
            latest = time if latest is None else max(latest, time)
            if used is not None and start + SIZE <= used:
                late += 1
            else:
                sums[r["k"], start].append(r)
        closed = [w for w in sums if watermark is not None and w[1] + SIZE <= watermark]
        expected = {w: sums.pop(w) for w in closed}
        windowed = {(r["k"], _start(r)): r["sum"] for r in by_epoch(done, "windowed")[epoch]}
        assert windowed == {w: sum(r["n"] for r in kept) for w, kept in expected.items()}
        joint = {
            (r["k"], _start(r)): (r["n"], r["large"], r["high"])
            for r in by_epoch(done, "joint_windowed")[epoch]
        }
        assert joint == {w: _joint(kept) for w, kept in expected.items()}
        top: dict[Any, list[tuple[int, str, int]]] = defaultdict(list)
        for r in by_epoch(done, "top")[epoch]:
            top[r["k"], _start(r)].append((r["rank"], r["item"], r["count"]))
        assert {w: sorted(ranks) for w, ranks in top.items()} == {
            w: _ranked(Counter(r["item"] for r in kept)) for w, kept in expected.items()
        }
        used = watermark
        watermark = latest if watermark is None or latest is None else max(watermark, latest)
    assert sum(r["late_rows"].get("windowed", 0) for r in done.records) == late
    assert len(done.state("windowed")) == len(sums)


def _check_sessions(done: LocalRun, epochs: Epochs) -> None:
    """A session is cut where no row came for longer than the gap, when the watermark is past it."""
    open_: dict[Any, list[tuple[int, int]]] = defaultdict(list)
    marks: list[int | None] = [None, None]  # before and in this epoch
    latest = -1
    for epoch, rows in enumerate(epochs):
        for r in rows:
            time = int((r["t"] - second(0)).total_seconds())
            latest = max(latest, time)
            if marks[0] is None or time + SIZE > marks[0]:
                open_[r["k"]].append((time, r["n"]))
        expected = {}
        for k, held in open_.items():
            times = sorted({time for time, _ in held})
            cuts = [n for n in range(1, len(times)) if times[n] - times[n - 1] > SIZE]
            for first, end in zip([0, *cuts], [*cuts, len(times)], strict=True):
                inside = [row for row in held if times[first] <= row[0] <= times[end - 1]]
                if times and marks[1] is not None and times[end - 1] + SIZE <= marks[1]:
                    expected[k, times[first]] = sum(n for _, n in inside)
                    open_[k] = [row for row in open_[k] if row not in inside]
        made = {(r["k"], _start(r)): r["sum"] for r in by_epoch(done, "sessions")[epoch]}
        assert made == expected
        marks = [marks[1], None if latest < 0 else latest]


def _start(row: Row) -> int:
    return int((row["window_start"] - second(0)).total_seconds())


def _ranked(counts: Counter[str]) -> list[tuple[int, str, int]]:
    best = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:2]
    return [(rank, item, count) for rank, (item, count) in enumerate(best, 1)]
