"""Calibration, the probe of a flow, and starts with settings chosen, on a real session."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.spark.feeding import ONCE, read_files, write_epoch
from tests.waiting import PATIENCE_S, wait_until

import headgate as hg
from headgate.commit.facts_json import to_json
from headgate.control.tuner import RETUNE_EPOCHS, SavedTuning, load_tuning, save_tuning
from headgate.planner.tuning.cost_model import Calibration, EngineCosts
from headgate.planner.tuning.epochs import EpochPrediction, EpochSettings
from headgate.planner.tuning.explained import TunedEpochs
from headgate.runtime.auto import AT_START, calibrate, cpus_of
from headgate.runtime.query import FlowQuery
from headgate.runtime.tune_probe import probe_flow
from headgate.state.storage import Storage

SCHEMA, PAIR = "k bigint", "a bigint, b bigint"
COSTS = EngineCosts(1e-4, 5e-9, task_s=0.02, epoch_s=0.05, message_bytes_max=8 << 20)
KNOWN = Calibration(COSTS, (), 0.0)


def counting(folder: Path, told: list[int | None], sink: Any) -> hg.Flow:
    def read(spark: SparkSession, rows_per_epoch: int | None) -> DataFrame:
        told.append(rows_per_epoch)
        files = 1 if rows_per_epoch is None else max(1, rows_per_epoch // 10)
        reader = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", files)
        return reader.parquet(str(folder))

    flow = hg.Flow("tuned")
    rows = flow.source(read, schema=SCHEMA, name="in")
    rows.key_by("k").process(hg.Count(), name="count").to(sink, name="out")
    return flow


def feed(folder: Path, epochs: int, *, start: int = 0) -> None:
    for epoch in range(start, start + epochs):
        write_epoch(folder, SCHEMA, epoch, [{"k": k} for k in range(10)])


def test_probes_find_costs_that_explain_them(spark: SparkSession) -> None:
    found = calibrate(spark, AT_START)

    costs = found.costs
    parts = (costs.epoch_s, costs.level_s, costs.task_s, costs.message_s, costs.byte_s)
    assert min(parts) >= 0 and sum(parts) > 0
    assert len(found.probes) == 9
    assert found.engine == f"Spark {spark.version}, local, 2 cores"
    processors = cpus_of(spark, 2)
    assert processors == len(os.sched_getaffinity(0))
    assert {probe.cores for probe in found.probes} == {min(2, processors)}
    assert spark.conf.get("spark.sql.adaptive.enabled") == "true"


def test_a_flow_is_measured_without_telling_its_sinks(spark: SparkSession, tmp_path: Path) -> None:
    feed(tmp_path / "in", 12)
    called: list[int] = []
    told: list[int | None] = []
    flow = counting(tmp_path / "in", told, lambda rows, epoch: called.append(epoch))

    measured, epochs = probe_flow(flow, spark, KNOWN, slots=2, epochs=6, wait_s=PATIENCE_S)

    assert called == [] and told == [None, 40]
    sizes = [epoch.rows for epoch in epochs]
    assert {10, 40} <= set(sizes)
    assert measured.sizes_differ
    step = measured.model.flow.step["count"]
    assert step.ppt_s + step.instance_s > 0
    assert measured.rows_per_s > 0


def known(storage: Storage, *, slots: int, rows_per_epoch: int) -> None:
    """Put into the checkpoint what an earlier run would have left there."""
    settings = EpochSettings(slots, rows_per_epoch, batch_rows={})
    tuned = TunedEpochs(settings, EpochPrediction(1, 1, 1, 1, 1), {}, "count", ())
    save_tuning(storage, SavedTuning(KNOWN, tuned))


class Thoughtful:
    """A sink that returns when the flow has thought about its epochs: a busy machine takes longer
    to decide, and would be done with all rows before.
    """

    def __init__(self) -> None:
        self.called: list[int] = []
        self.query: FlowQuery | None = None

    def __call__(self, rows: DataFrame, epoch: int) -> None:
        self.called.append(epoch)
        wait_until(self._has_decided, f"a decision before epoch {epoch + 1}")

    def _has_decided(self) -> bool:
        planning = None if self.query is None else self.query.coordinator._planning
        return planning is not None and (planning._under_way is None or planning._under_way.done())


def test_a_backlog_gets_larger_epochs_while_the_flow_runs(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Ten rows an epoch are what was told; then the query is handed over, and nothing is lost."""
    files = RETUNE_EPOCHS + 24
    feed(tmp_path / "in", files)
    storage = Storage.at(str(tmp_path / "ck"))
    known(storage, slots=2, rows_per_epoch=10)
    sink = Thoughtful()
    flow = hg.Flow("tuned")
    reader = hg.Reader("parquet", path=str(tmp_path / "in"), schema=SCHEMA)
    counts = flow.source(reader, name="in").key_by("k").process(hg.Count(), name="count")
    counts.to(sink, name="out")

    query = flow.start(
        spark,
        slots=hg.Scaling(max_slots=2),
        checkpoint=str(tmp_path / "ck"),
        trigger=ONCE,
        manager=None,
    )
    sink.query, first = query, query.sparkQuery
    query.awaitTermination()

    journal = query.journal()
    rows = [r["rows"] for r in journal if r["kind"] == "epoch"]
    assert rows[:RETUNE_EPOCHS] == [10] * RETUNE_EPOCHS
    assert sum(rows) == 10 * files and len(rows) < files
    assert sink.called == list(range(len(rows)))
    state = query.state("count")
    assert dict(zip(*state.to_pydict().values(), strict=True)) == dict.fromkeys(range(10), files)

    assert first is not None and query.sparkQuery is not None
    assert first.id == query.sparkQuery.id and first.runId != query.sparkQuery.runId
    assert not query.isActive and query.exception() is None and first.exception() is None
    asked = [r for r in journal if r["kind"] == "tuning" and "rows_per_epoch" in r]
    assert len(asked) == 1 and asked[0]["rows_per_epoch"] > 10
    assert "rows wait, and epochs have 10 rows" in asked[0]["why_rows"]
    epochs = [r for r in journal if r["kind"] == "epoch"]
    assert {r["cores"] for r in epochs} == {2}
    assert all(r["last_trigger_ms"] > 0 for r in epochs[1:RETUNE_EPOCHS])
    changed = next(i for i, many in enumerate(rows) if many > 10)
    assert "last_trigger_ms" not in epochs[changed]  # the first of its query
    saved = load_tuning(storage)
    tunings = [r["settings"] for r in journal if r["kind"] == "tuning" and "settings" in r]
    assert saved is not None and saved.tuned is not None
    assert to_json(saved.tuned)["settings"] == tunings[-1]["settings"]


def test_operators_get_the_instances_that_pay_while_the_flow_runs(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Six slots on two cores: every instance is a task, and so few rows need few of them."""
    files = RETUNE_EPOCHS + 8
    feed(tmp_path / "in", files)
    where, sink = str(tmp_path / "ck"), Thoughtful()
    dear_tasks = EngineCosts(1e-4, 5e-9, task_s=0.2, epoch_s=0.0, message_bytes_max=8 << 20)
    save_tuning(Storage.at(where), SavedTuning(Calibration(dear_tasks, (), 0.0)))
    flow = hg.Flow("tuned")
    rows = flow.source(read_files(spark, tmp_path / "in", SCHEMA), name="in")
    first = rows.key_by("k", grouping="hash").process(hg.Count(emit="rows"), name="first")
    second = first.key_by("k", grouping="hash").process(hg.Count(name="seen"), name="second")
    third = second.key_by("k", grouping="hash").process(
        hg.Count(name="told"), name="third", parallelism=2
    )
    third.to(sink, name="out")

    query = flow.start(spark, slots=hg.Scaling(6, 6), checkpoint=where, trigger=ONCE, manager=None)
    sink.query = query
    query.awaitTermination()

    journal = query.journal()
    asked = [r for r in journal if r["kind"] == "tuning" and "instances" in r]
    assert set(asked[0]["instances"]) == {"first", "second"}  # the third's are declared
    assert "instances of first" in asked[0]["why_instances"]
    epochs = [r for r in journal if r["kind"] == "epoch"]
    counts = {op: len(slots) for op, slots in query.instances.items()}
    assert max(counts["first"], counts["second"]) <= 3 and counts["third"] == 2
    assert max(epochs[-1]["tasks"]) < max(epochs[0]["tasks"]) == 6
    moving = [r["moved_rows"] for r in epochs if sum(r["moved_rows"].values())]
    assert moving and set().union(*moving) == {"first", "second"}
    batches = [r["batch_rows"] for r in journal if r["kind"] == "tuning" and "batch_rows" in r]
    assert set(batches[0]) == {"in->first", "first->second", "second->third"}
    for operator in query.instances:
        state = query.state(operator).to_pylist()
        assert {row["k"]: row["count"] for row in state} == dict.fromkeys(range(10), files)

    again = flow.start(spark, slots=hg.Scaling(6, 6), checkpoint=where, trigger=ONCE, manager=None)
    again.awaitTermination()
    assert again.instances == query.instances  # what was decided is what it goes on with


@pytest.mark.usefixtures("planned_between")
def test_keys_are_placed_and_instances_chosen_in_one_flow(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Key b goes with a = b mod 6. Placement and optimizer decide over the same slots."""
    files = RETUNE_EPOCHS + 8
    rows = [{"a": n % 6, "b": n % 60} for n in range(120)]
    for epoch in range(files):
        write_epoch(tmp_path / "in", PAIR, epoch, rows)
    where = str(tmp_path / "ck")
    dear_tasks = EngineCosts(1e-4, 5e-9, task_s=0.2, epoch_s=0.0, message_bytes_max=8 << 20)
    save_tuning(Storage.at(where), SavedTuning(Calibration(dear_tasks, (), 0.0)))
    flow = hg.Flow("both")
    source = flow.source(read_files(spark, tmp_path / "in", PAIR), name="in")
    by_a = source.key_by("a", grouping="hash").process(hg.Count(emit="rows"), name="by_a")
    by_b = by_a.key_by("b", grouping="hash").process(hg.Count(emit="rows"), name="by_b")
    by_b.key_by("a", grouping="hash").process(
        hg.Count(name="last"), name="two", parallelism=2
    ).to_memory("out")

    query = flow.start(
        spark,
        slots=hg.Scaling(4, 4),
        checkpoint=where,
        trigger=ONCE,
        manager=hg.Manager(every=4),
    )
    query.awaitTermination()

    journal = query.journal()
    moves = [r for r in journal if r["kind"] == "plan" and r.get("moves")]
    asked = [r for r in journal if r["kind"] == "tuning" and "instances" in r]
    assert moves and asked
    epochs = [r for r in journal if r["kind"] == "epoch"]
    assert sum(sum(r["moved_rows"].values()) for r in epochs) > 0
    assert max(epochs[-1]["tasks"]) < max(epochs[0]["tasks"]) == 4
    for operator, key in (("by_a", "a"), ("by_b", "b"), ("two", "a")):
        state = query.state(operator).to_pylist()
        fold = Counter(row[key] for row in rows)
        assert {r[key]: next(v for k, v in r.items() if k != key) for r in state} == {
            value: many * files for value, many in fold.items()
        }


def test_auto_follows_the_load_with_slots_and_moves_the_state(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A clock by hand: rows come within milliseconds of each other.

    Giving back takes more than a hundred epochs; tests/unit/control/test_tuner.py has it.
    """
    folder = tmp_path / "in"
    known(Storage.at(str(tmp_path / "ck")), slots=1, rows_per_epoch=10)
    clock = Clock(step_ms=5)
    flow = counting(folder, [], lambda rows, epoch: None)
    fed = 0
    feed(folder, 1)
    query = flow.start(
        spark,
        slots=hg.Scaling(max_slots=2),
        checkpoint=str(tmp_path / "ck"),
        options=hg.Options(clock_ms=clock),
    )
    try:
        while query.slots != 2:
            fed += 1
            assert fed < 30, query.journal()[-3:]
            feed(folder, 1, start=fed)
            query.processAllAvailable()
        feed(folder, 1, start=fed + 1)
        query.processAllAvailable()
    finally:
        query.stop()

    state = query.state("count")
    oracle = dict.fromkeys(range(10), fed + 2)
    assert dict(zip(*state.to_pydict().values(), strict=True)) == oracle
    journal = query.journal()
    scaled = [(r["before"], r["slots"], r["why"]) for r in journal if r["kind"] == "scale"]
    assert [s[:2] for s in scaled] == [(1, 2)]
    assert "is above" in scaled[0][2]
    asked = [r for r in journal if r["kind"] == "tuning" and "slots" in r]
    assert [(r["slots"], r["why"]) for r in asked] == [(s[1], s[2]) for s in scaled]
    moved = [r["moved_rows"].get("count", 0) for r in journal if r["kind"] == "epoch"]
    assert sum(moved) > 0


class Clock:
    """Processing time that goes on by so much whenever it is asked."""

    def __init__(self, step_ms: int) -> None:
        self.now_ms, self.step_ms = 0, step_ms

    def __call__(self) -> int:
        self.now_ms += self.step_ms
        return self.now_ms
