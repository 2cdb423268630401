"""Ranks in windows that tell changes, against a plain fold of all rows that were not late.

A table that applies what is told holds, after every epoch, the ranks of every window; and nothing
is told of a rank that has what it had.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.unit.operator.checks import Stream, streams
from tests.unit.operator.harness import Away, Epoch, Slot, batch_of
from tests.unit.operator.test_fixed_windows import (
    ROWS,
    SHAPES,
    batch,
    second_of,
    window,
    windows_of,
)
from tests.unit.operator.test_session_window import GAPS, bounds_of, place_of, sessions_of

from headgate.errors import DeclarationError, SchemaMismatch
from headgate.operator import Global, Session, TopK, TopRows, Tumbling
from headgate.operator.aggregate import PerKey

Place = tuple[Any, ...]  # key, bounds, rank
Told = tuple[Any, ...]  # what stands there
Row = tuple[int, Any, int, int]


def best_rows(n: int, rows: Iterable[Row]) -> list[Told]:
    ordered = sorted(rows, key=lambda row: (row[1] is None, -(row[1] or 0), row[2]))
    return [(row[1], row[2]) for row in ordered[:n]]


def heaviest(n: int, rows: Iterable[Row], weigh: Callable[[Any], int]) -> list[Told]:
    weights: Counter[Any] = Counter()
    for row in rows:
        if row[1] is not None:
            weights[row[1]] += weigh(row[1])
    return sorted(weights.items(), key=lambda pair: (-pair[1], pair[0]))[:n]


NUMBERS = st.none() | st.integers(-3, 3)
ITEMS = st.none() | st.sampled_from(["x", "y", "z", "zz"])
# operator for n and more, type of values, their fold, the columns that are compared
KINDS: dict[str, tuple[Any, pa.DataType, Any, tuple[str, ...]]] = {
    "rows": (
        lambda n, **more: TopRows(n, ("v desc", "ts"), **more),
        pa.int64(), best_rows, ("v", "ts"),
    ),
    "items": (
        lambda n, **more: TopK("v", n, **more),
        pa.string(), lambda n, rows: heaviest(n, rows, lambda item: 1), ("v", "count"),
    ),
    "weights that fall": (
        lambda n, **more: TopK("v", n, weight="v", **more),
        pa.int64(), lambda n, rows: heaviest(n, rows, lambda item: item), ("v", "count"),
    ),
}  # fmt: skip


@st.composite
def cases(draw: Any) -> tuple[str, Stream, int]:
    kind = draw(st.sampled_from(list(KINDS)))
    values = ITEMS if pa.types.is_string(KINDS[kind][1]) else NUMBERS
    return kind, draw(streams(values)), draw(st.integers(1, 3))


def told_by(row: dict[str, Any], columns: tuple[str, ...]) -> Told:
    return tuple(second_of(row[c]) if c == "ts" and row[c] else row[c] for c in columns)


class Ranking:
    """What somebody holds who applies all that is told."""

    def __init__(self, columns: tuple[str, ...]) -> None:
        self.columns = columns
        self.held: dict[Place, Told] = {}

    def apply(self, rows: list[dict[str, Any]], keys: list[str]) -> None:
        seen = set()
        for row in rows:
            place = (*place_of(row, keys), row["rank"])
            assert place not in seen, "two changes of a rank in an epoch"
            seen.add(place)
            told = told_by(row, self.columns)
            if row["change"] == "delete":
                assert told == (None,) * len(told)
                del self.held[place]
                continue
            assert row["change"] == ("update" if place in self.held else "insert"), place
            assert self.held.get(place) != told, "told again, though it is the same"
            self.held[place] = told


def ranked(place: Place, best: list[Told]) -> dict[Place, Told]:
    return {(*place, rank): told for rank, told in enumerate(best, 1)}


def calls_of(stream: Stream, tasks: Any, kind: pa.DataType, away: bool) -> list[list[Any]]:
    """The batches of an epoch; with `away` other slots fold every second one."""
    batches: list[list[Any]] = [[stream.batch(call, kind) for call in calls] for calls in tasks]
    if away:
        batches = [[Away(b) if i % 2 else b for i, b in enumerate(bs)] for bs in batches]
    return batches


def rows_of(tasks: Any) -> list[Row]:
    return [row for calls in tasks for call in calls for row in call]


def told_when(early: bool, lateness: int) -> tuple[str, timedelta]:
    return ("changes" if early else "updates"), timedelta(seconds=lateness or (0 if early else 5))


@settings(max_examples=40, deadline=None)
@given(
    cases(), st.sampled_from(SHAPES), st.booleans(), st.sampled_from([0, 15, 60]), st.booleans(),
    st.data(),
)  # fmt: skip
def test_ranks_of_windows_are_put_right(
    case: Any, shape: Any, early: bool, lateness: int, away: bool, data: Any
) -> None:
    (kind, stream, n), (emit, late) = case, told_when(early, lateness)
    make, type_, fold, columns = KINDS[kind]
    lateness = int(late.total_seconds())
    operator = make(n, window=window(shape, allowed_lateness=late), emit=emit)
    rows_in: dict[Place, list[Row]] = defaultdict(list)
    table, before, now = Ranking(columns), -(10**6), -20
    with Slot(operator, stream.schema(type_), stream.keys) as slot:
        for tasks in [*stream.epochs(), [], []]:
            missed = 0
            for row in rows_of(tasks):
                starts = [s for s in windows_of(row[2], shape) if s + shape[0] + lateness > before]
                missed += not starts
                for start in starts:
                    rows_in[(*stream.key(row), start, start + shape[0])].append(row)
            calls = calls_of(stream, tasks, type_, away)
            result = slot.run(Epoch(calls, watermark_us=now * 10**6))
            assert result.late == missed
            table.apply(result.finished, stream.keys)
            expected: dict[Place, Told] = {}
            for place, rows in rows_in.items():
                if early or place[-1] <= now:
                    expected |= ranked(place, fold(n, rows))
            assert table.held == expected
            before, now = now, now + data.draw(st.integers(0, 40))
        slot.run(Epoch([], watermark_us=10**9))
        assert slot.held() == []


@settings(max_examples=40, deadline=None)
@given(cases(), GAPS, st.booleans(), st.sampled_from([0, 15, 60]), st.booleans(), st.data())
@example(
    ("rows", Stream("number", [(1, 1, 0, 0), (1, 2, 20, 0), (1, 3, 10, 3)]), 2),
    10, True, 0, False, None,
)  # fmt: skip
def test_ranks_of_sessions_are_put_right(
    case: Any, gap: int, early: bool, lateness: int, away: bool, data: Any
) -> None:
    """A session that grew is taken back, rank by rank, and told again with its new bounds."""
    (kind, stream, n), (emit, late) = case, told_when(early, lateness)
    make, type_, fold, columns = KINDS[kind]
    lateness = int(late.total_seconds())
    session = Session(timedelta(seconds=gap), "ts", allowed_lateness=late)
    operator = make(n, window=session, emit=emit)
    held: dict[Place, list[tuple[int, Row]]] = defaultdict(list)
    final: dict[Place, Told] = {}
    table, before, now = Ranking(columns), -(10**6), -20
    with Slot(operator, stream.schema(type_), stream.keys) as slot:
        for tasks in [*stream.epochs(), [], []]:
            for row in rows_of(tasks):
                if row[2] + gap + lateness > before and (row[1] is not None or kind == "rows"):
                    held[stream.key(row)].append((row[2], row))
            calls = calls_of(stream, tasks, type_, away)
            result = slot.run(Epoch(calls, watermark_us=now * 10**6))
            table.apply(result.finished, stream.keys)
            expected = dict(final)
            for key, rows in held.items():
                stays = []
                for one in sessions_of(rows, gap):
                    bounds = bounds_of(one, gap)
                    ranks = ranked((*key, *bounds), fold(n, [row for _, row in one]))
                    if early or bounds[1] <= now:
                        expected |= ranks
                    if bounds[1] + lateness <= now:
                        final |= ranks
                    else:
                        stays += one
                held[key] = stays
            assert table.held == expected
            before, now = now, now + (30 if data is None else data.draw(st.integers(0, 30)))
        slot.run(Epoch([], watermark_us=10**9))
        assert slot.held() == []


def changes(rows: list[dict[str, Any]], *columns: str) -> list[tuple[Any, ...]]:
    return [tuple(row[c] for c in ("rank", *columns, "change")) for row in rows]


def test_a_late_row_that_is_not_among_the_best_tells_nothing() -> None:
    late = Tumbling("10 seconds", "ts", allowed_lateness="1 minute")
    with Slot(TopRows(2, "v desc", ["v"], window=late), ROWS, ["k"]) as slot:
        slot.run(Epoch([[batch(5, 7)]], watermark_us=0))
        final = slot.run(Epoch([], watermark_us=20_000_000)).finished
        worse = slot.run(Epoch([[batch(3)]], watermark_us=20_000_000)).finished
        better = slot.run(Epoch([[batch(6)]], watermark_us=20_000_000)).finished
        best = slot.run(Epoch([[batch(8)]], watermark_us=20_000_000)).finished
        slot.run(Epoch([], watermark_us=70_000_000))
        assert slot.held() == []

    assert changes(final, "v") == [(1, 7, "insert"), (2, 5, "insert")]
    assert worse == []
    assert changes(better, "v") == [(2, 6, "update")]
    assert changes(best, "v") == [(1, 8, "update"), (2, 7, "update")]


def test_an_item_that_overtakes_another_changes_both_ranks() -> None:
    rows = pa.schema({"k": pa.int64(), "item": pa.string(), "ts": pa.timestamp("us", "UTC")})

    def given_(*items: str) -> pa.RecordBatch:
        return batch_of(rows, k=[1] * len(items), item=items, ts=[10**6] * len(items))

    operator = TopK("item", 2, Tumbling("10 seconds", "ts"), emit="changes")
    with Slot(operator, rows, ["k"]) as slot:
        told = [
            changes(slot.run(Epoch([[given_(*items)]])).finished, "item", "count")
            for items in [("a", "a", "b"), ("c",), ("b", "b"), ("c",)]
        ]

    assert told == [
        [(1, "a", 2, "insert"), (2, "b", 1, "insert")],
        [],
        [(1, "b", 3, "update"), (2, "a", 2, "update")],
        [],
    ]


def test_a_row_of_many_columns_and_nulls_comes_back_as_it_was() -> None:
    rows = pa.schema(
        {
            "k": pa.int64(), "v": pa.int32(), "s": pa.string(), "some": pa.list_(pa.int16()),
            "ts": pa.timestamp("ms", "UTC"),
        }
    )  # fmt: skip
    given_ = [
        {"k": 1, "v": 1, "s": None, "some": [1, 2], "ts": 0},
        {"k": 1, "v": 2, "s": "x" * 40, "some": None, "ts": 1},
        {"k": 1, "v": 3, "s": "", "some": [], "ts": 2},
    ]
    one = pa.RecordBatch.from_pylist(given_, schema=rows)
    with Slot(TopRows(9, "v", window=Tumbling("1 day", "ts"), emit="changes"), rows, ["k"]) as slot:
        told = [slot.run(Epoch([[one.slice(2 - n, 1)]])).finished for n in range(3)]

    assert changes(told[0], "v") == [(1, 3, "insert")]
    assert changes(told[1], "v") == [(1, 2, "update"), (2, 3, "insert")]
    assert changes(told[2], "v") == [(1, 1, "update"), (2, 2, "update"), (3, 3, "insert")]
    assert [{c: row[c] for c in rows.names} for row in told[2]] == one.to_pylist()


TIMES = pa.timestamp("us", "UTC")
ITEM_TYPES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.bool_(), [True, False]),
    (pa.float16(), [1.5, -2.0]),
    (pa.float64(), [float("nan"), -0.5]),
    (pa.decimal128(30, 2), [3, -4]),
    (pa.binary(), [b"", b"\0"]),
    (pa.binary(2), [b"ab", b"\0\0"]),
    (pa.date32(), [3, 1]),
    (TIMES, [5, -5]),
    (pa.large_string(), ["b", "a"]),
]


@pytest.mark.parametrize(("kind", "items"), ITEM_TYPES, ids=[str(kind) for kind, _ in ITEM_TYPES])
def test_items_of_all_types_are_ranked_again(kind: pa.DataType, items: list[Any]) -> None:
    rows = pa.schema({"k": pa.int64(), "item": kind, "ts": TIMES})
    session = Session("10 seconds", "ts")
    with Slot(TopK("item", 2, session, emit="changes"), rows, ["k"]) as slot:
        made = pa.array(items, kind if not pa.types.is_float16(kind) else pa.float32()).cast(kind)
        for turn, taken in enumerate([[0], [1, 1]]):
            columns = [pa.array([1] * len(taken)), made.take(pa.array(taken)),
                       pa.array([0] * len(taken), TIMES)]  # fmt: skip
            given_ = pa.RecordBatch.from_arrays(columns, schema=rows)
            told = slot.run(Epoch([[given_]])).finished
            assert [row["count"] for row in told] == [[1], [2, 1]][turn]


@pytest.mark.parametrize(
    ("declare", "match"),
    [
        (lambda: TopK("v", 1, Tumbling("1 day", "ts"), emit="rows"), "'updates' or 'changes'"),  # type: ignore[arg-type]
        (lambda: TopRows(1, "v", window=Tumbling("1 day", "ts"), emit="rows"), "'updates' or"),  # type: ignore[arg-type]
        (
            lambda: TopRows(1, "v", window=Global(3), emit="changes").state_fields(ROWS, ["k"]),
            "Global says by its trigger",
        ),
        (
            lambda: TopRows(1, "v", ["v", "change"], window=Tumbling("1 day", "ts"), emit="changes")
            .output_schema(ROWS.append(pa.field("change", pa.string())), ["k"]),
            "'change'",
        ),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused(declare: Any, match: str) -> None:
    with pytest.raises((DeclarationError, SchemaMismatch), match=match):
        declare()


def test_who_tells_changes_says_so_in_the_checkpoint_and_what_rows_are_known_by() -> None:
    plain, late = Tumbling("1 day", "ts"), Tumbling("1 day", "ts", allowed_lateness="1 hour")
    for make in (lambda **m: TopRows(1, "v", **m), lambda **m: TopK("v", 1, **m)):
        operators: list[PerKey] = [
            make(window=plain), make(window=plain, emit="changes"), make(window=late),
        ]  # fmt: skip
        assert len({repr(operator.describe()) for operator in operators}) == 3
        for operator in operators:
            assert operator.known_by(["k"]) == ("k", "window_start", "window_end", "rank")
    assert TopRows(1, "v", emit="changes").known_by(["k"]) == ("k", "rank")
