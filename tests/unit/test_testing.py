"""The testing kit itself: it runs, resumes, and catches what would fail on a cluster."""

from __future__ import annotations

import doctest
import gc
import itertools
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headgate.testing
from headgate import Count, Flow, StateFields, StatefulOperator
from headgate.errors import DeclarationError, OperatorFailed
from headgate.slot.wire import TUPLE_SCHEMA, BatchTuple, decode
from headgate.testing import ImpureTask, ListSource, ManualClock, run
from strategies import quick_folder, run_quickly

ticket = itertools.count()


def counting(epochs: Sequence[Any], operator: StatefulOperator | None = None) -> Flow:
    flow = Flow("f")
    rows = flow.source(ListSource("k bigint", epochs), name="in")
    rows.key_by("k").process(operator or Count(), name="op").to_memory("out")
    return flow


def test_the_examples_in_the_docstrings_run() -> None:
    result = doctest.testmod(headgate.testing)

    assert result.attempted >= 6
    assert result.failed == 0


# --- purity -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Echo(StatefulOperator):
    def state_fields(self, rows: pa.Schema, key: Sequence[str]) -> StateFields:
        return StateFields(pa.schema([pa.field("x", pa.int64())]))

    def output_schema(self, rows: pa.Schema, key: Sequence[str]) -> pa.Schema:
        return pa.schema({"x": pa.int64()})

    def process(self, rows: Any, state: Any, clock: Any) -> Any:
        return pa.RecordBatch.from_pydict({"x": [next(ticket)]})


class Secretive(Echo):
    """Says nothing, but writes something else into its state every time."""

    def process(self, rows: Any, state: Any, clock: Any) -> Any:
        count = len(rows.groups)
        state.write(rows.groups, {"x": pa.array([next(ticket)] * count, pa.int64())})


class Late(Echo):
    def process(self, rows: Any, state: Any, clock: Any) -> Any:
        return None

    def finish(self, state: Any, clock: Any, carry: Any = None) -> Any:
        return pa.RecordBatch.from_pydict({"x": [next(ticket)]})


@pytest.mark.parametrize("operator", [Echo(), Secretive(), Late()])
def test_an_operator_that_is_not_pure_is_caught(operator: StatefulOperator) -> None:
    with pytest.raises(ImpureTask) as caught:
        run_quickly(counting([[{"k": 1}]], operator))

    assert caught.value.level == 1


def test_a_map_that_is_not_pure_is_caught() -> None:
    flow = Flow("f")
    rows = flow.source(ListSource("k bigint", [[{"k": 1}]]))
    noisy = rows.map_rows(lambda r: {"k": random.getrandbits(60)}, "k bigint")
    noisy.key_by("k").process(Count(), name="op").to_memory("out")

    with pytest.raises(ImpureTask) as caught:
        run_quickly(flow)
    assert (caught.value.level, caught.value.producer) == (0, 0)


def test_purity_can_be_left_unchecked() -> None:
    done = run_quickly(counting([[{"k": 1}]], Echo()), check_purity=False)

    assert len(done.rows("out")) == 1


# --- what tasks send --------------------------------------------------------------------------


def test_tuples_cross_as_the_batches_that_spark_shuffles(monkeypatch: pytest.MonkeyPatch) -> None:
    crossed: Counter[str] = Counter()

    def decode_and_count(batch: pa.RecordBatch) -> Iterator[BatchTuple]:
        assert batch.schema == TUPLE_SCHEMA
        for item in decode(batch):
            crossed[item.kind.name] += 1
            yield item

    monkeypatch.setattr(headgate.testing, "decode", decode_and_count)
    run_quickly(counting([[{"k": k} for k in range(9)]]), slots=2, partitions=2)

    assert crossed == {"DATA": 4, "CONTROL": 4}  # a record per source task and per slot


def test_a_run_leaves_no_arrow_memory_behind() -> None:
    gc.collect()
    before = pa.total_allocated_bytes()

    run_quickly(counting([[{"k": k} for k in range(5_000)] for _ in range(3)]))

    gc.collect()
    assert pa.total_allocated_bytes() == before


# --- running ----------------------------------------------------------------------------------


def test_a_run_resumes_from_its_checkpoint() -> None:
    with quick_folder() as folder:
        first = run(counting([[{"k": 1}], [{"k": 1}]]), checkpoint=folder)
        second = run(counting([[{"k": 1}], [{"k": 1}], [{"k": 1}]]), checkpoint=folder)

    assert [row["count"] for row in first.rows("out")] == [1, 2]
    assert [row["count"] for row in second.rows("out")] == [3]  # the sink had the others already
    assert second.state("op") == [{"k": 1, "count": 3}]


def test_a_checkpoint_may_be_a_relative_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run(counting([[{"k": 1}]]), checkpoint="here")

    assert (tmp_path / "here" / "headgate.json").exists()


def test_the_result_does_not_depend_on_partitions_slots_or_seed() -> None:
    epochs = [[{"k": i % 7} for i in range(30)]]

    results = [
        sorted((r["k"], r["count"]) for r in run_quickly(counting(epochs), **options).rows("out"))
        for options in ({"slots": 1}, {"slots": 4, "seed": 9}, {"partitions": 1}, {"partitions": 7})
    ]

    assert len(set(map(tuple, results))) == 1


def test_sources_may_have_different_numbers_of_epochs_and_arrow_tables() -> None:
    flow = Flow("f")
    short = flow.source(ListSource("k bigint", [[{"k": 1}]]))
    longer = flow.source(ListSource("k bigint", [[], pa.table({"k": [1, 2]})]))
    short.union(longer).key_by("k").process(Count(), name="op").to_memory("out")

    done = run_quickly(flow)

    assert sorted((r["k"], r["count"]) for r in done.state("op")) == [(1, 2), (2, 1)]
    assert [record["rows"] for record in done.records] == [1, 2]


def test_function_sinks_get_the_rows_of_their_epoch() -> None:
    calls: list[tuple[int, list[int]]] = []
    flow = Flow("f")
    rows = flow.source(ListSource("k bigint", [[{"k": 1}], [], [{"k": 2}]]))
    rows.to(lambda got, epoch: calls.append((epoch, [r["k"] for r in got])), name="call")

    run_quickly(flow)

    assert calls == [(0, [1]), (1, []), (2, [2])]


def test_the_clock_moves_by_hand_and_state_grows_old_by_it() -> None:
    clock = ManualClock()
    flow = counting([[{"k": 1}]] * 3, Count(ttl=timedelta(seconds=10)))

    done = run_quickly(
        flow, clock=clock, before_epoch=lambda epoch: clock.advance([0, 9_000, 11_000][epoch])
    )

    assert [row["count"] for row in done.rows("out")] == [1, 2, 1]
    assert [record["now_ms"] for record in done.records] == [0, 9_000, 20_000]


def test_an_error_of_user_code_reaches_the_test() -> None:
    flow = Flow("f")
    flow.source(ListSource("k bigint", [[{"k": 0}]])).map_rows(
        lambda r: {"k": 1 // r["k"]}, "k bigint", name="divide"
    ).to_memory("out")

    with pytest.raises(OperatorFailed) as caught:
        run_quickly(flow)
    assert (caught.value.operator, caught.value.epoch) == ("divide", 0)


def test_only_list_sources_can_be_run() -> None:
    flow = Flow("f")
    flow.source(lambda spark: None, schema="k bigint", name="live").to_memory("out")

    with pytest.raises(DeclarationError, match="live"):
        run(flow)


def test_dictionary_columns_are_taken_as_their_values() -> None:
    words = pa.array(["x", "y", "x", None]).dictionary_encode()
    numbers = pa.array([1, 2, 1, None]).dictionary_encode()
    table = pa.table({"w": words, "n": numbers})
    flow = Flow("f")
    rows = flow.source(ListSource(table.schema, [table]))
    rows.key_by("w").process(Count(emit="rows"), name="words")
    rows.key_by("n", "w").process(Count(), name="both").to_memory("out")

    done = run_quickly(flow, slots=3)

    assert sorted((str(r["n"]), r["count"]) for r in done.rows("out")) == [
        ("1", 2), ("2", 1), ("None", 1),
    ]  # fmt: skip


def test_a_union_takes_columns_by_name() -> None:
    flow = Flow("f")
    one = flow.source(ListSource("a bigint, b string", [[{"a": 1, "b": "x"}]]))
    two = flow.source(ListSource("b string, a bigint", [[{"a": 2, "b": "y"}]]))
    merged = one.union(two)
    merged.to_memory("plain")
    merged.shuffle().map(lambda batch: batch, "a bigint, b string").to_memory("moved")
    merged.key_by("b").process(Count(emit="rows"), name="op").to_memory("kept")

    done = run_quickly(flow, slots=2)

    for sink in ("plain", "moved", "kept"):
        assert sorted((r["a"], r["b"]) for r in done.rows(sink)) == [(1, "x"), (2, "y")]


@pytest.mark.parametrize("kind", ["to_parquet", "to_table", "to_memory"])
def test_rows_of_every_kind_of_sink_can_be_asked_for(kind: str, tmp_path: Path) -> None:
    """Nothing is published by the kit: a Parquet sink's folder is not touched."""
    flow = Flow("f")
    rows = flow.source(ListSource("a bigint", [[{"a": 1}], [{"a": 2}]]))
    out = tmp_path / "out"
    rows.to_parquet(str(out), name="sink") if kind == "to_parquet" else getattr(rows, kind)("sink")

    assert [row["a"] for row in run_quickly(flow).rows("sink")] == [1, 2]
    assert not out.exists()


def test_a_run_without_warm_copies_makes_no_folder_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    done = run(counting([[{"k": 1}], [{"k": 1}]]), warm_dir="off")

    assert done.state("op") == [{"k": 1, "count": 2}]
    assert [*tmp_path.iterdir()] == []
