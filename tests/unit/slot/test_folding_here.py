"""Split operators: rows are processed where they are, one partial per key and task travels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.routes import may_be_local
from tests.scenario.born_local import born_local
from tests.scenario.splitting import splitting
from tests.unit.slot.parts import BUCKETS, compiled, nothing, source
from tests.unit.slot.test_folding_away import (
    KEYS,
    OPERATORS,
    Picky,
    Row,
    epoch,
    kinds,
    many,
    outcome,
    pinned,
    row,
    run_all,
)

import headgate as hg
from headgate import Count, Flow, Sum
from headgate.commit.evolution import evolve
from headgate.errors import DeclarationError, OperatorFailed
from headgate.slot import task
from headgate.slot.program import Program
from headgate.slot.statistics import TaskStatistics
from headgate.slot.wire import Kind
from headgate.testing import ListSource
from strategies import examples, quick_folder, run_quickly, second, tables

SLOTS = 3


@pytest.fixture
def folder() -> Iterator[Path]:
    with quick_folder() as path:
        yield path


def levels(program: Program) -> dict[str, tuple[int, int]]:
    return {n.name: (program.rows_level[n.id], program.depth[n.id]) for n in program.stateful}


def chain(first: bool = True, second: bool = True, operator: Any = None) -> Flow:
    flow = Flow("chain")
    rows = source(flow, "a bigint, b bigint, v bigint", name="in")
    one = rows.key_by("a", grouping="partial" if first else "hash").process(
        Count(emit="rows"), name="first"
    )
    made = one.key_by("b", grouping="partial" if second else "hash").process(
        operator or Count(), name="second"
    )
    made.to_memory("out")
    return flow


# --- levels -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("first", "second", "expected", "count"),
    [
        (False, False, {"first": (1, 1), "second": (2, 2)}, 2),
        (True, False, {"first": (0, 1), "second": (1, 1)}, 1),
        (False, True, {"first": (1, 1), "second": (1, 2)}, 2),
        (True, True, {"first": (0, 1), "second": (0, 1)}, 1),
    ],
)
def test_rows_of_a_split_operator_take_no_exchange(
    first: bool, second: bool, expected: dict[str, tuple[int, int]], count: int
) -> None:
    program = compiled(chain(first, second))

    assert levels(program) == expected
    assert program.levels == count


def test_consumers_of_what_is_made_at_the_end_come_after_it() -> None:
    flow = Flow("f")
    rows = source(flow, "a bigint, b bigint", name="in")
    counts = rows.key_by("a", grouping="partial").process(Count(), name="counts")
    counts.key_by("count", grouping="partial").process(
        Count(name="n"), name="split_behind"
    ).to_memory("m1")
    counts.key_by("count").process(Count(name="n"), name="behind").to_memory("m2")

    assert levels(compiled(flow)) == {"counts": (0, 1), "split_behind": (1, 2), "behind": (2, 2)}


def test_an_operator_that_says_nothing_of_when_it_emits_is_waited_for() -> None:
    program = compiled(chain(operator=Picky(), first=True))
    flow = chain()
    assert levels(program)["second"] == (0, 1)
    rows = source(flow, "a bigint, v bigint", name="more")
    rows.key_by("a", grouping="partial").process(Picky(), name="picky").key_by(
        "slot_of_keys"
    ).process(Count(), name="after")
    assert levels(compiled(flow))["after"] == (2, 2)


def test_a_union_of_two_depths_has_its_rows_at_the_later_one() -> None:
    flow = Flow("f")
    rows = source(flow, "a bigint, b bigint", name="in")
    detour = rows.key_by("a").process(Count(emit="rows"), name="detour")
    rows.union(detour).key_by("b", grouping="partial").process(
        Count(emit="rows"), name="both"
    ).key_by("a").process(Count(), name="last")

    assert levels(compiled(flow)) == {"detour": (1, 1), "both": (1, 2), "last": (2, 2)}


def test_split_operators_are_not_born_local_and_do_not_own_the_place_of_rows() -> None:
    flow = Flow("f")
    rows = source(flow, "a bigint, b bigint, c bigint", name="in")
    first = rows.key_by("a").process(Count(emit="rows"), name="first")
    passed = first.key_by("b", grouping="partial").process(Count(emit="rows"), name="passed")
    passed.key_by("c").process(Count(), name="third").to_memory("out")
    made = first.key_by("b", grouping="partial").process(Count(), name="made")
    made.key_by("count").process(Count(name="n"), name="fourth").to_memory("out2")

    program = compiled(flow)

    assert may_be_local(program) == {"first", "third", "fourth"}  # "first" looks ahead to "third"
    assert program.key_pairs == (("first", "fourth"), ("first", "third"), ("made", "fourth"))


# --- declarations -----------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("operator", "why"),
    [
        (Sum("x"), "exact=False"),
        (hg.Mean("x"), "exact=False"),
        (Count(emit="running"), "emit='running'"),
        (Count(ordered=True), "ordered=True"),
        (hg.Last("x"), "by="),
        (hg.Last("x", by="k", ordered=True), "ordered=True"),
        (hg.Deduplicate(), "first of its key"),
        (hg.MeanOfLast("x", 3), "last 3"),
        (hg.TopK("i", 2, hg.Tumbling("1 second", time="t"), weight="x"), "weight='x'"),
        (hg.Update(nothing, output=pa.schema({"x": pa.int64()})), "cannot be merged"),
    ],
    ids=lambda given: type(given).__name__ if isinstance(given, hg.StatefulOperator) else None,
)
def test_an_operator_that_cannot_be_split_says_why(operator: Any, why: str) -> None:
    rows = source(Flow("f"), "k bigint, i bigint, x double, t timestamp")

    with pytest.raises(DeclarationError, match="cannot be folded") as raised:
        rows.key_by("k", grouping="partial").process(operator, name="op")

    assert why in str(raised.value) and "leave out grouping='partial'" in str(raised.value)
    rows.key_by("k").process(operator, name="op")


def test_split_on_or_off_is_a_compatible_change() -> None:
    told = compiled(chain(False, False)).describe()

    assert compiled(chain(True, True)).describe() == told
    evolve(told, compiled(chain(True, False)).describe(), "here")


# --- one epoch, by hand -----------------------------------------------------------------------
def test_no_row_is_shuffled_and_one_partial_per_key_and_operator_is(folder: Path) -> None:
    rows = [{"a": a, "b": b, "v": 0} for a in range(6) for b in (7, 7, 8)]
    at = epoch(chain(), folder, pinned([7], [2]), local=frozenset())

    total, sent = at.run(rows)

    assert len(sent) == 2
    assert kinds(sent[0]) == {(Kind.PARTIAL, 0): 2, (Kind.PARTIAL, 1): 1, (Kind.PARTIAL, 2): 2}
    assert sum(t.rows for t in sent[0] if t.kind == Kind.PARTIAL) == 6 + 2
    assert total.away_rows == {"first": {"source": 18}, "second": {"source": 18}}
    assert total.merge_rows == {
        "first": {"0": 2, "1": 2, "2": 2}, "second": {"0": 1, "2": 1},
    }  # fmt: skip
    assert total.loads == total.merge_rows
    assert set(total.merge_bytes) == {"first", "second"} and min(total.merge_bytes.values()) > 0
    assert at.state("second", total) == {0: [{"b": 8, "count": 6}], 2: [{"b": 7, "count": 12}]}


def test_rows_that_come_from_a_slot_are_processed_in_that_slot(folder: Path) -> None:
    rows = [{"a": a, "b": b, "v": 0} for a in range(6) for b in (7, 7, 8)]
    at = epoch(chain(first=False), folder, pinned([7], [2]))  # named as local: no matter

    total, sent = at.run(rows)

    assert all(t.kind == Kind.PARTIAL for t in sent[1] if t.kind != Kind.CONTROL)
    assert total.away_rows == {"second": {"0": 6, "1": 6, "2": 6}}
    assert total.merge_rows == {"second": {"0": 3, "2": 3}}
    assert total.loads["second"] == {"0": 6 + 3, "1": 6, "2": 6 + 3}
    assert at.state("second", total) == {0: [{"b": 8, "count": 6}], 2: [{"b": 7, "count": 12}]}


def test_chunks_are_folded_into_one_state(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task, "CHUNK_ROWS", 10)
    at = epoch(chain(), folder, pinned([], []))
    rows = [{"a": n % 6, "b": n % 4, "v": 0} for n in range(10)]

    total, sent = at.run_in_pieces([rows] * 5)

    assert total.away_rows["second"] == {"source": 50}
    assert sum(t.rows for t in sent[0] if t.kind == Kind.PARTIAL) == 6 + 4
    assert sum(r["count"] for r in at.state("second", total)[0]) == 50


@pytest.mark.parametrize("limit", ["KEYS_MAX", "BYTES_MAX"])
def test_a_source_task_that_holds_too_much_sends_and_begins_anew(
    limit: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task, "CHUNK_ROWS", 10)
    monkeypatch.setattr(task, limit, 15)
    at = epoch(chain(), folder, pinned([], []))
    pieces = [[{"a": 0, "b": 10 * n + i, "v": 0} for i in range(10)] for n in range(4)]

    total, sent = at.run_in_pieces(pieces)

    of_second = at.program.graph.node("second").id
    parts = [t.rows for t in sent[0] if t.kind == Kind.PARTIAL and t.channel == of_second]
    assert parts == ([20, 20] if limit == "KEYS_MAX" else [10] * 4)
    assert len(at.state("second", total)[0]) == 40


def test_key_loads_of_a_split_operator_are_what_its_owners_merge(folder: Path) -> None:
    at = epoch(chain(first=False), folder, pinned([], []), statistics_bytes=1 << 16)
    at.run([{"a": a, "b": 7, "v": 0} for a in (0, 0, 1)])

    told = [TaskStatistics.from_bytes(b) for b in at.services.statistics.values()]
    assert {t.slot: t.loads["second"].count.tolist() for t in told if "second" in t.loads} == {
        0: [2]
    }
    assert not any(t.pairs for t in told)


def test_pairs_are_counted_across_an_operator_that_passes_rows_on(folder: Path) -> None:
    flow = Flow("chain")
    rows = source(flow, "a bigint, b bigint, v bigint", name="in")
    first = rows.key_by("a").process(Count(emit="rows"), name="first")
    passed = first.key_by("b", grouping="partial").process(Count(emit="rows"), name="passed")
    passed.key_by("v").process(Count(), name="second").to_memory("out")
    at = epoch(flow, folder, pinned([], []), statistics_bytes=1 << 16, local=frozenset())

    at.run([{"a": a, "b": 7, "v": 1} for a in (0, 0, 1)])

    pairs = Counter[tuple[str, str]]()
    for told in map(TaskStatistics.from_bytes, at.services.statistics.values()):
        pairs.update({edge: int(s.count.sum()) for edge, s in told.pairs.items()})
    assert pairs == {("first", "second"): 3}


# --- bad rows, nulls, late rows ---------------------------------------------------------------
def run_split(operator: Any, epochs: Sequence[list[Row]], dead: bool = True, **keys: Any) -> Any:
    flow = Flow("f")
    rows = flow.source(ListSource("k bigint, v bigint", list(epochs)))
    if dead:
        flow.dead_letters().to_memory("dead")
    rows.key_by("k", **keys, grouping="partial").process(operator, name="op").to_memory("out")
    return run_quickly(flow, slots=SLOTS, buckets=BUCKETS, partitions=2)


def test_a_bad_row_is_found_in_the_source_task_and_the_others_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(task, "CHUNK_ROWS", 3)
    rows = [{"k": v % 2, "v": v} for v in (1, 2, 13, 4, 13, 5, 6, 7)]
    done = run_split(Picky(), [rows])

    assert sorted((r["k"], r["total"]) for r in done.state("op")) == [(0, 12), (1, 13)]
    assert [(r["operator"], r["reason"]) for r in done.rows("dead")] == [
        ("op", "ValueError: a 13")
    ] * 2
    with pytest.raises(OperatorFailed, match=r"'op' failed .* ValueError: a 13"):
        run_split(Picky(), [rows], dead=False)


def test_all_rows_may_be_bad() -> None:
    done = run_split(Picky(), [[{"k": 1, "v": 13}]])

    assert not done.state("op") and len(done.rows("dead")) == 1


def test_null_keys_are_dropped_refused_or_kept() -> None:
    rows = [[{"k": None, "v": 1}, {"k": 2, "v": 1}, {"k": None, "v": 1}]]

    assert [(r["k"], r["count"]) for r in run_split(Count(), rows, nulls="drop").rows("out")] == [
        (2, 1)
    ]
    kept = run_split(Count(), rows).rows("out")
    assert {(r["k"], r["count"]) for r in kept} == {(2, 1), (None, 2)}
    with pytest.raises(OperatorFailed, match="null in its key"):
        run_split(Count(), rows, nulls="error")


def test_overflow_is_noticed_in_the_task_and_at_the_owner() -> None:
    rows = [{"k": 5, "v": 2**62}, {"k": 6, "v": 1}]
    assert len(run_split(Sum("v"), [[*rows, *rows]]).rows("dead")) in (1, 2)
    done = run_split(Sum("v"), [rows, rows])

    assert sorted((r["k"], r["sum"]) for r in done.state("op")) == [(5, 2**62), (6, 2)]
    assert [r["epoch"] for r in done.rows("dead")] == [1]


def test_finish_that_emits_although_it_said_it_would_not_is_an_error() -> None:
    class Quiet(Picky):
        @property
        def emits_at_end(self) -> bool:
            return False

    with pytest.raises(OperatorFailed, match="emits_at_end"):
        run_split(Quiet(), [[{"k": 1, "v": 1}]])


def test_the_journal_tells_what_was_folded_and_merged() -> None:
    flow = Flow("f")
    rows = flow.source(
        ListSource("k bigint, j bigint", [[{"k": n % 3, "j": n % 2} for n in range(12)]])
    )
    first = rows.key_by("k", grouping="partial").process(Count(emit="rows"), name="first")
    first.key_by("j", grouping="partial").process(Count(), name="second").to_memory("out")
    (record,) = run_quickly(flow, slots=2, buckets=BUCKETS, partitions=2).records

    assert record["away_rows"] == {"first": 12, "second": 12}
    assert record["merge_rows"] == {"first": 6, "second": 4}
    assert {op: sum(loads) for op, loads in record["loads"].items()} == record["merge_rows"]
    assert record["bytes_shuffled"] == sum(record["merge_bytes"].values()) > 0
    assert record["locality"] is None
    assert all(e["remote_rows"] == 0 for e in record["edges"].values())


# --- many epochs, any tables ------------------------------------------------------------------
@examples(12)
@given(
    epochs=st.lists(st.lists(row, max_size=16), min_size=1, max_size=3),
    slots=st.sampled_from([2, 3]),
    data=st.data(),
)
def test_split_gives_what_plain_routing_gives(
    epochs: list[list[Row]], slots: int, data: st.DataObject
) -> None:
    """Which operators are split changes between starts, on the same checkpoint."""
    number = 0
    for some in epochs:
        for r in some:
            r["t"] = second(number % 7 * 3 + number)  # unique, some late
            number += 1
    chosen = [
        {name: data.draw(tables(slots, KEYS[key], BUCKETS)) for name, key in OPERATORS.items()}
        for _ in epochs
    ]
    plain = run_all(epochs, [{}] * len(epochs), slots)
    with splitting(lambda name: data.draw(st.booleans(), name)):
        assert run_all(epochs, chosen, slots) == plain
    with splitting(lambda name: data.draw(st.booleans(), name)), born_local():
        assert run_all(epochs, chosen, slots) == plain


def test_everything_split_takes_fewer_levels() -> None:
    with splitting():
        program = compiled(many([[]]))

    assert (compiled(many([[]])).levels, program.levels) == (4, 2)


@examples(10)
@given(
    rows=st.lists(
        st.fixed_dictionaries({"k": st.integers(0, 3), "j": st.integers(0, 3)}), max_size=30
    )
)
def test_an_ordered_operator_behind_a_split_one_sees_source_order(rows: list[Row]) -> None:
    def flow(split: bool) -> Flow:
        flow = Flow("f")
        given = [{**r, "n": n} for n, r in enumerate(rows)]
        stream = flow.source(ListSource("k bigint, j bigint, n bigint", [given]))
        first = stream.key_by("k", grouping="partial" if split else "hash").process(
            Count(emit="rows"), name="first"
        )
        running = first.key_by("j").process(Count(emit="running", ordered=True), name="running")
        running.to_memory("out")
        last = hg.Last("n", ordered=True, ttl=timedelta(days=1))
        first.key_by("k").process(last, name="last").to_memory("last_out")
        return flow

    plain = run_quickly(flow(False), slots=2, buckets=BUCKETS, partitions=3)
    done = run_quickly(flow(True), slots=2, buckets=BUCKETS, partitions=3)
    assert outcome(done) == outcome(plain)


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("split", [False, True])
def test_for_an_ordered_operator_rows_of_the_end_of_an_epoch_come_last(
    slots: int, split: bool
) -> None:
    given = [{"k": i % 7, "n": i} for i in range(20)]

    def told(_key: Any, rows: list[Row], _state: Any) -> tuple[Any, list[Row]]:
        return None, [{"seen": [r["n"] for r in rows]}]

    flow = Flow("f")
    rows = flow.source(ListSource("k bigint, n bigint", [given]))
    counts = rows.key_by("k", grouping="partial" if split else "hash").process(
        Count(), name="count"
    )
    counts = counts.map_rows(lambda r: {"k": r["k"], "n": -r["count"]}, "k bigint, n bigint")
    seen = pa.schema([("seen", pa.list_(pa.int64()))])
    ordered = hg.Update(told, output=seen, rows_as="dicts", ordered=True)
    counts.union(rows).globally().process(ordered, name="told").to_memory("out")

    (row,) = run_quickly(flow, slots=slots, buckets=BUCKETS, partitions=3).rows("out")

    assert row["seen"][:20] == list(range(20))
    assert sorted(row["seen"][20:]) == [-3] * 6 + [-2]


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("per_row", [False, True])
@pytest.mark.parametrize("key", [(), ("a",), ("a", "b")])
def test_a_keyed_filter_before_it_does_not_change_its_groups(
    key: tuple[str, ...], per_row: bool, slots: int
) -> None:
    """A filter passes its rows on as they came, with what was known of them under its own key."""
    given = [{"a": i % 7, "b": i % 3} for i in range(40)]

    def flow(split: bool) -> Flow:
        flow = Flow("f")
        first = flow.source(ListSource("a bigint, b bigint", [given]))
        first = first.key_by("b").process(Count(emit="rows"), name="first")
        grouped = first.key_by(*key) if key else first.globally()
        if per_row:
            rows = grouped.filter_rows(lambda r: r["a"] != 5, name="some")
        else:
            rows = grouped.filter(pc.field("a") != 5, name="some")
        rows.key_by("b", grouping="partial" if split else "hash").process(
            Count(), name="counted"
        ).to_memory("out")
        return flow

    done, plain = run_quickly(flow(True), slots=slots), run_quickly(flow(False), slots=slots)
    assert outcome(done) == outcome(plain)
    assert len(done.rows("out")) == 3
