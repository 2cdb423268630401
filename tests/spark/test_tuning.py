"""Calibration, the probe of a flow, and starts with settings chosen, on a real session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from tests.spark.feeding import ONCE, write_epoch

import headgate as hg
from headgate.control.tuner import RETUNE_EPOCHS
from headgate.control.tuning_file import SavedTuning, load_tuning, save_tuning
from headgate.planner.tuning.calibration import Calibration
from headgate.planner.tuning.cost_model import EngineCosts
from headgate.planner.tuning.epochs import EpochPrediction, EpochSettings, TunedEpochs
from headgate.runtime.calibration import QUICK, calibrate
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


def feed(folder: Path, epochs: int) -> None:
    for epoch in range(epochs):
        write_epoch(folder, SCHEMA, epoch, [{"k": k} for k in range(10)])


def test_probes_find_costs_that_explain_them(spark: SparkSession) -> None:
    found = calibrate(spark, QUICK)

    costs = found.costs
    assert costs.message_s > 0 or costs.byte_s > 0
    assert costs.epoch_s + costs.task_s > 0
    assert len(found.probes) == 7
    assert spark.conf.get("spark.sql.adaptive.enabled") == "true"


def test_a_flow_is_measured_without_telling_its_sinks(spark: SparkSession, tmp_path: Path) -> None:
    feed(tmp_path / "in", 4)
    called: list[int] = []
    flow = counting(tmp_path / "in", [], lambda rows, epoch: called.append(epoch))

    measured, records = probe_flow(flow, spark, KNOWN, slots=2, epochs=4)

    assert called == []
    assert len([r for r in records if r["kind"] == "epoch"]) == 4
    assert measured.model.flow.step["count"].ppt_s > 0
    assert measured.rows_per_s > 0


def test_auto_starts_from_what_was_measured_and_measures_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    feed(tmp_path / "in", 2 * RETUNE_EPOCHS)
    storage = Storage.at(str(tmp_path / "ck"))
    settings = EpochSettings(slots=2, rows_per_epoch=20, batch_rows={})
    tuned = TunedEpochs(settings, EpochPrediction(1, 1, 1, 1, 1), {}, "count", ())
    save_tuning(storage, SavedTuning(KNOWN, tuned))
    told: list[int | None] = []
    flow = counting(tmp_path / "in", told, lambda rows, epoch: None)

    query = flow.start(
        spark,
        parallelism="auto",
        batch="auto",
        slots_max=2,
        checkpoint=str(tmp_path / "ck"),
        trigger=ONCE,
    )
    query.awaitTermination()

    assert told == [20]
    journal = query.journal()
    epochs = [r for r in journal if r["kind"] == "epoch"]
    assert [r["rows"] for r in epochs] == [20] * RETUNE_EPOCHS
    assert journal[0]["tuned"]["rows_per_epoch"] == 20
    tunings = [r["settings"] for r in journal if r["kind"] == "tuning" and "settings" in r]
    assert tunings
    saved = load_tuning(storage)
    assert saved is not None and saved.tuned is not None
    assert saved.tuned.to_json()["settings"] == tunings[-1]["settings"]
    counts = query.state("count").column("count").to_pylist()
    assert sum(counts) == 20 * RETUNE_EPOCHS
