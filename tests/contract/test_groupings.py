"""Every grouping delivers every row, whatever the slots, partitions and tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, get_args

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import Count, Flow
from headgate.testing import ListSource
from headgate.topology.graph import KeyGrouping
from headgate.topology.stream import Stream
from strategies import examples, run_quickly, tables

SCHEMA = "k bigint, n bigint"
KEYS = [*range(9), None]
BUCKETS = 16
GROUPINGS: dict[str, Callable[[Stream], Stream]] = {
    "fields": lambda s: s.key_by("k"),
    "composite": lambda s: s.key_by("n", "k"),
    "shuffle": lambda s: s.shuffle(),
    "cost": lambda s: s.shuffle(grouping="cost", attribute="k"),
    "local": lambda s: s.local_or_shuffle(),
    "all": lambda s: s.broadcast(),
    "global": lambda s: s.globally(),
}


def same(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows


def through(grouping: Callable[[Stream], Stream], epochs: list[list[dict[str, Any]]]) -> Flow:
    """The grouping twice: from the source, where a task has no slot, and between slots."""
    flow = Flow("f")
    rows = flow.source(ListSource(SCHEMA, epochs))
    first = grouping(rows).map(same, SCHEMA, name="first")
    grouping(first).map(same, SCHEMA, name="second").to_memory("out")
    first.to_memory("first_out")
    return flow


@pytest.mark.parametrize("name", GROUPINGS)
@examples(6)
@given(
    keys=st.lists(st.lists(st.sampled_from(KEYS), max_size=12), min_size=1, max_size=2),
    slots=st.integers(1, 4),
    partitions=st.integers(1, 3),
    data=st.data(),
)
def test_every_row_arrives_once_or_once_per_slot_if_broadcast(
    name: str, keys: list[list[int | None]], slots: int, partitions: int, data: st.DataObject
) -> None:
    epochs = [[{"k": k, "n": n} for n, k in enumerate(epoch)] for epoch in keys]
    chosen = {}
    if name == "fields":
        column = pa.array(KEYS, pa.int64())
        chosen = {op: data.draw(tables(slots, column, BUCKETS)) for op in ("first", "second")}

    done = run_quickly(
        through(GROUPINGS[name], epochs), slots=slots, partitions=partitions, tables=chosen,
        buckets=BUCKETS, check_purity=False,
    )  # fmt: skip

    copies = slots if name == "all" else 1
    once = Counter((row["k"], row["n"]) for epoch in epochs for row in epoch)
    first = Counter((row["k"], row["n"]) for row in done.rows("first_out"))
    second = Counter((row["k"], row["n"]) for row in done.rows("out"))
    assert first == Counter({row: n * copies for row, n in once.items()})
    assert second == Counter({row: n * copies**2 for row, n in once.items()})


@pytest.mark.parametrize("slots", [1, 3])
def test_equal_keys_meet_and_a_global_operator_sees_all(slots: int) -> None:
    epochs = [[{"k": k, "n": n} for n, k in enumerate(KEYS * 3)]]
    flow = Flow("f")
    rows = flow.source(ListSource(SCHEMA, epochs))
    spread = rows.shuffle().map(same, SCHEMA)
    spread.key_by("k").process(Count(), name="by_key").to_memory("keys")
    spread.globally().process(Count(), name="all").to_memory("total")

    done = run_quickly(flow, slots=slots)

    assert Counter({r["k"]: r["count"] for r in done.rows("keys")}) == Counter(KEYS * 3)
    assert done.rows("total") == [{"count": 30}]


@pytest.mark.parametrize("nulls", ["key", "drop"])
def test_null_keys_are_kept_or_dropped_as_declared(nulls: Any) -> None:
    flow = Flow("f")
    rows = flow.source(ListSource("k bigint", [[{"k": None}, {"k": 1}, {"k": None}]]))
    rows.key_by("k", nulls=nulls).process(Count(), name="count").to_memory("out")

    counted = {r["k"]: r["count"] for r in run_quickly(flow, slots=2).rows("out")}

    assert counted == ({None: 2, 1: 1} if nulls == "key" else {1: 1})


@pytest.mark.parametrize("grouping", get_args(KeyGrouping))
@examples(6)
@given(
    epochs=st.lists(
        st.lists(st.tuples(st.sampled_from([0, 0, 0, 0, *KEYS]), st.integers(0, 3)), max_size=90),
        min_size=1,
        max_size=3,
    ),
    slots=st.integers(1, 4),
    partitions=st.integers(1, 3),
    data=st.data(),
)
def test_a_grouping_for_hot_keys_changes_no_result(
    grouping: KeyGrouping,
    epochs: list[list[tuple[int | None, int]]],
    slots: int,
    partitions: int,
    data: st.DataObject,
) -> None:
    """From a source and between slots; every task is run twice and must send the same."""
    chosen = {
        "first": data.draw(tables(slots, pa.array(KEYS, pa.int64()), BUCKETS)),
        "second": data.draw(tables(slots, pa.array(range(4), pa.int64()), BUCKETS)),
    }
    rows = [[{"k": k, "n": n} for k, n in epoch] for epoch in epochs]
    flow = Flow("f")
    source = flow.source(ListSource(SCHEMA, rows))
    first = source.key_by("k", grouping=grouping).process(Count(emit="rows"), name="first")
    second = first.key_by("n", grouping=grouping).process(Count(), name="second")
    second.to_memory("out")

    done = run_quickly(flow, slots=slots, partitions=partitions, tables=chosen, buckets=BUCKETS)

    seen: Counter[int] = Counter()
    for number, epoch in enumerate(epochs):
        seen.update(n for _, n in epoch)
        told = {r["n"]: r["count"] for at, r in done.outputs.get("out", []) if at == number}
        assert told == {n: seen[n] for n in {n for _, n in epoch}}
    for operator, key, field in (("first", "k", 0), ("second", "n", 1)):
        counts = Counter(row[field] for epoch in epochs for row in epoch)
        state = [(row[key], row["count"]) for row in done.state(operator)]
        assert Counter(state) == Counter(counts.items())  # every key once: it has one owner
