"""Calibration, the probe of a flow, and starts with settings chosen, on a real session."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from tests.spark.feeding import ONCE, write_epoch
from tests.waiting import PATIENCE_S

import headgate as hg
from headgate.control.tuner import RETUNE_EPOCHS, SavedTuning, load_tuning, save_tuning
from headgate.planner.tuning.cost_model import Calibration, EngineCosts
from headgate.planner.tuning.epochs import EpochPrediction, EpochSettings, TunedEpochs
from headgate.runtime.auto import AT_START, calibrate
from headgate.runtime.tune_probe import probe_flow
from headgate.state.storage import Storage

SCHEMA = "k bigint"
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
    assert measured.model.flow.step["count"].ppt_s + measured.model.instance_s > 0
    assert measured.rows_per_s > 0


def known(storage: Storage, *, slots: int, rows_per_epoch: int) -> None:
    """Put into the checkpoint what an earlier run would have left there."""
    settings = EpochSettings(slots, rows_per_epoch, batch_rows={})
    tuned = TunedEpochs(settings, EpochPrediction(1, 1, 1, 1, 1), {}, "count", ())
    save_tuning(storage, SavedTuning(KNOWN, tuned))


def test_a_backlog_gets_larger_epochs_while_the_flow_runs(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Ten rows an epoch are what was told; then the query is handed over, and nothing is lost."""
    files = RETUNE_EPOCHS + 24
    feed(tmp_path / "in", files)
    storage = Storage.at(str(tmp_path / "ck"))
    known(storage, slots=2, rows_per_epoch=10)
    called: list[int] = []
    flow = hg.Flow("tuned")
    reader = hg.Reader("parquet", path=str(tmp_path / "in"), schema=SCHEMA)
    counts = flow.source(reader, name="in").key_by("k").process(hg.Count(), name="count")
    counts.to(lambda rows, epoch: called.append(epoch), name="out")

    query = flow.start(
        spark,
        slots=hg.Scaling(max_slots=2),
        checkpoint=str(tmp_path / "ck"),
        trigger=ONCE,
    )
    first = query.sparkQuery
    query.awaitTermination()

    journal = query.journal()
    rows = [r["rows"] for r in journal if r["kind"] == "epoch"]
    assert rows[:RETUNE_EPOCHS] == [10] * RETUNE_EPOCHS
    assert sum(rows) == 10 * files and len(rows) < files
    assert called == list(range(len(rows)))
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
    assert asdict(saved.tuned)["settings"] == tunings[-1]["settings"]


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
