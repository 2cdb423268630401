"""What slots count equals a plain count of the rows, through branches and stateless operators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from headgate import Count, Flow
from headgate.routing.hashing import hash_columns
from headgate.slot.compile import compile_flow
from headgate.slot.statistics import LABELLED_KEYS, TaskStatistics, key_text
from headgate.testing import ListSource, run
from strategies import examples

ROWS = st.lists(
    st.fixed_dictionaries(
        {"a": st.integers(0, 5), "b": st.integers(0, 7), "c": st.sampled_from(["x", "y", None])}
    ),
    max_size=60,
)


def statistics_of(flow: Flow, memory_bytes: int = 1 << 20, **options: Any) -> list[TaskStatistics]:
    return run(flow, statistics_bytes=memory_bytes, **options).statistics


def pairs(told: Sequence[TaskStatistics], edge: tuple[str, str]) -> Counter[tuple[int, int]]:
    total: Counter[tuple[int, int]] = Counter()
    for task in told:
        sketch = task.pairs.get(edge)
        if sketch is not None:
            for a, b, n in zip(sketch.a.tolist(), sketch.b.tolist(), sketch.count, strict=True):
                total[a, b] += int(n)
    return total


def loads(told: Sequence[TaskStatistics], operator: str) -> Counter[int]:
    total: Counter[int] = Counter()
    for task in told:
        sketch = task.loads.get(operator)
        if sketch is not None:
            for h, n in zip(sketch.a.tolist(), sketch.count, strict=True):
                total[h] += int(n)
    return total


def hashed(values: Sequence[Any], kind: pa.DataType) -> list[int]:
    return hash_columns([pa.array(values, kind)], len(values)).tolist()


def exact_pairs(rows: list[dict[str, Any]], a: str, b: str) -> Counter[tuple[int, int]]:
    kinds = {"a": pa.int64(), "b": pa.int64(), "c": pa.string()}
    left, right = (hashed([r[name] for r in rows], kinds[name]) for name in (a, b))
    return Counter(zip(left, right, strict=True))


@examples(30)
@given(rows=ROWS, slots=st.integers(1, 3))
def test_pairs_of_a_chain_with_stateless_steps_and_two_consumers(
    rows: list[dict[str, Any]], slots: int
) -> None:
    flow = Flow("f")
    source = flow.source(ListSource("a long, b long, c string", [rows]))
    first = source.key_by("a").process(Count(emit="rows"), name="first")
    kept = first.filter(lambda batch: np.ones(batch.num_rows, np.bool_), name="all")
    kept.key_by("b").process(Count(), name="second").to_memory("x")
    first.key_by("c").process(Count(), name="third").to_memory("y")

    told = statistics_of(flow, slots=slots)

    assert pairs(told, ("first", "second")) == exact_pairs(rows, "a", "b")
    assert pairs(told, ("first", "third")) == exact_pairs(rows, "a", "c")
    assert loads(told, "second") == Counter(hashed([r["b"] for r in rows], pa.int64()))


@examples(20)
@given(left=ROWS, right=ROWS)
def test_pairs_of_a_merge_are_told_apart_by_their_operator(
    left: list[dict[str, Any]], right: list[dict[str, Any]]
) -> None:
    flow = Flow("f")
    made = []
    for name, rows in (("l", left), ("r", right)):
        source = flow.source(ListSource("a long, b long, c string", [rows]), name=f"{name}_in")
        made.append(source.key_by("a").process(Count(emit="rows"), name=name))
    both = made[0].union(made[1]).filter(lambda b: np.ones(b.num_rows, np.bool_), name="all")
    both.key_by("b").process(Count(), name="end").to_memory("x")

    told = statistics_of(flow, slots=2)

    assert pairs(told, ("l", "end")) == exact_pairs(left, "a", "b")
    assert pairs(told, ("r", "end")) == exact_pairs(right, "a", "b")


def test_key_pairs_of_a_program_end_at_an_exchange_without_a_key() -> None:
    flow = Flow("f")
    source = flow.source(ListSource("a long, b long", [[]]))
    first = source.key_by("a").process(Count(emit="rows"), name="first")
    first.key_by("b").process(Count(), name="second").to_memory("x")
    spread = first.shuffle().map(lambda batch: batch, schema="a long, b long", name="spread")
    spread.key_by("b").process(Count(), name="third").to_memory("y")

    assert compile_flow(flow.graph()).key_pairs == (("first", "second"),)


def test_statistics_survive_the_wire_and_know_their_keys_by_name() -> None:
    flow = Flow("f")
    rows = [{"a": i % 3, "b": i} for i in range(30)]
    source = flow.source(ListSource("a long, b long", [rows]))
    source.key_by("a").process(Count(emit="rows"), name="first").key_by("b").process(
        Count(), name="second"
    ).to_memory("x")

    told = statistics_of(flow, slots=1)

    labels = {text for task in told for text in task.labels.get("first", {}).values()}
    assert labels == {"0", "1", "2"}
    assert {task.slot for task in told} == {0}


def test_memory_of_a_task_is_bounded() -> None:
    flow = Flow("f")
    rows = pa.table({"a": np.arange(20_000), "b": np.arange(20_000)[::-1].copy()})
    source = flow.source(ListSource("a long, b long", [rows]))
    source.key_by("a").process(Count(emit="rows"), name="first").key_by("b").process(
        Count(), name="second"
    ).to_memory("x")

    told = statistics_of(flow, 1 << 16, slots=1)

    assert told
    for task in told:
        kept = [*task.pairs.values(), *task.loads.values()]
        assert sum(len(s) * 32 for s in kept) <= 1 << 16
        assert all(len(known) <= LABELLED_KEYS for known in task.labels.values())


def test_a_flow_without_a_manager_counts_nothing() -> None:
    flow = Flow("f")
    source = flow.source(ListSource("a long", [[{"a": 1}]]))
    source.key_by("a").process(Count(), name="n").to_memory("x")

    assert run(flow).statistics == []


def test_a_long_key_is_cut_to_a_line() -> None:
    assert key_text([None, "a\nb"]) == "null, a b"
    assert len(key_text(["x" * 500])) == 60
