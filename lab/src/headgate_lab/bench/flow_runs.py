"""Runs of a flow on Spark, with given slots, instances, batch rows and rows per epoch.

Throughput is that of epochs that lie ready and are run one after the other (`run_once`). Latency
is measured (`run_steadily`): rows come evenly, so fast that the flow is busy `LOAD` of its time,
and the source hands them on whole epochs at a time. Every row has its time of arrival, and the
engine counts from there to the commit of the last sink. So a row waits until its epoch is complete,
half of one on average, and then for its own epoch; if that took longer than the one before it left
time for, it waits for that as well.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from headgate.commit.facts import EpochFacts, epochs_of
from headgate.commit.settings import Options
from headgate.control.settings import Scaling
from headgate.demo import write_epochs
from headgate.errors import EngineError
from headgate.runtime.auto import cores_of
from headgate.runtime.query import FlowQuery
from headgate.slot.plan import BatchRows
from headgate_lab.bench.contestant import epoch_seconds
from headgate_lab.bench.tune_flows import ARRIVED, BenchFlow

LOAD = 0.9  # of the time that a configuration is busy while latency is measured
SHARE = "share_of_epoch"  # a column beside the flow's: when in the time of its epoch a row came
_FIRST_FILE_S = 1_600_000_000.0
_POLL_S = 0.02
_PATIENCE_S = 600.0


@dataclass(frozen=True)
class Setting:
    """What one run uses. `batch` as in `Options`; rows per epoch are what is fed.

    `parallelism` is by operator; those without an entry have an instance in every slot.
    """

    slots: int
    batch: BatchRows
    rows_per_epoch: int
    parallelism: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Timed:
    """The epochs after the warm-up, and what is known of all of the run."""

    rows: int
    seconds: tuple[float, ...]
    epochs: list[EpochFacts]

    @property
    def rows_per_s(self) -> float:
        return self.rows / self.epoch_s

    @property
    def epoch_s(self) -> float:
        """From the start of an epoch to its commit, which all its rows wait for."""
        return median(self.seconds)


@dataclass(frozen=True)
class Latencies:
    """Of the rows of every epoch after the warm-up, in milliseconds; `rate` rows came a second."""

    rate: float
    p50_ms: tuple[float, ...]
    p95_ms: tuple[float, ...]
    mean_ms: tuple[float, ...]

    def told(self) -> dict[str, Any]:
        """Medians over epochs, and the raw numbers."""
        raw = asdict(self)
        found = {name: median(raw[name]) for name in ("p50_ms", "p95_ms", "mean_ms")}
        return found | {"rate": self.rate, "raw": raw}


@dataclass(frozen=True)
class Ground:
    """Where flows run: a session, a folder that all its hosts see, and tasks that read sources."""

    spark: SparkSession
    work: Path
    source_tasks: int = 2

    @property
    def cores(self) -> int:
        """Tasks that can run at once."""
        return cores_of(self.spark)

    def run_once(self, flow: BenchFlow, setting: Setting, *, epochs: int, warmup: int) -> Timed:
        """Run so many epochs in a checkpoint of their own; the first ones are not timed."""
        seconds, facts = self._run(flow, setting, (setting.rows_per_epoch,) * epochs)
        return Timed(setting.rows_per_epoch, seconds[warmup:], facts)

    def probe(self, flow: BenchFlow, setting: Setting, sizes: tuple[int, ...]) -> list[EpochFacts]:
        """Epochs of these sizes; the setting's own does not matter."""
        return self._run(flow, setting, sizes)[1]

    def run_live(self, flow: BenchFlow, slots: int, rows: int, epochs: int) -> FlowQuery:
        """Epochs of so many rows in so many slots, where the flow itself chooses its instances and
        batches while it runs; the query has ended.
        """
        given = Setting(slots, None, rows)
        return self._run_through(flow, given, (rows,) * epochs, Scaling(slots, slots))

    def run_steadily(
        self, flow: BenchFlow, setting: Setting, epoch_s: float, *, epochs: int, warmup: int
    ) -> Latencies:
        """Latency while rows come evenly; `epoch_s` is what an epoch takes with this setting.

        The first epochs are fed one by one, as soon as the one before is done, and do not count.
        """
        apart_s = epoch_s / LOAD
        self._clear()
        feed = self._feed(flow, (setting.rows_per_epoch,) * (epochs + warmup))
        frame = self._frame(flow, feed).withColumn(ARRIVED.name, _arrival(apart_s)).drop(SHARE)
        query = self._start(flow, setting, frame, arrival=True)
        try:
            for _ in range(warmup):
                feed.deliver(time.time())
                _wait_for(query, feed.delivered)
            begun = time.monotonic()
            for number in range(epochs):
                _sleep_until(begun + (number + 1) * apart_s)
                feed.deliver(time.time())
            _wait_for(query, feed.delivered)
            facts = [epoch for epoch in epochs_of(query.journal()) if epoch.rows]
        finally:
            query.stop()
            self._clear()
        return _latencies(facts[warmup:], setting.rows_per_epoch / apart_s)

    def _run(
        self, flow: BenchFlow, setting: Setting, sizes: tuple[int, ...]
    ) -> tuple[tuple[float, ...], list[EpochFacts]]:
        query = self._run_through(flow, setting, sizes)
        return epoch_seconds(query, len(sizes)), epochs_of(query.journal())

    def _run_through(
        self,
        flow: BenchFlow,
        setting: Setting,
        sizes: tuple[int, ...],
        slots: Scaling | None = None,
    ) -> FlowQuery:
        self._clear()
        feed = self._feed(flow, sizes)
        for number in range(len(sizes)):
            feed.deliver(_FIRST_FILE_S + number)
        frame = self._frame(flow, feed).drop(SHARE)
        trigger = {"availableNow": True}
        query = self._start(flow, setting, frame, slots=slots, trigger=trigger)
        try:
            query.awaitTermination()
        finally:
            query.stop()
        return query

    def _start(
        self,
        flow: BenchFlow,
        setting: Setting,
        frame: DataFrame,
        *,
        arrival: bool = False,
        slots: Scaling | None = None,
        trigger: Mapping[str, Any] | None = None,
    ) -> FlowQuery:
        return flow.declare(frame, arrival=arrival).start(
            self.spark,
            slots=slots or setting.slots,
            checkpoint=str(self.work / "checkpoint"),
            options=Options(batch_rows=setting.batch, park_bytes=None),
            trigger=trigger,
            manager=None,
            parallelism=setting.parallelism,
        )

    def _frame(self, flow: BenchFlow, feed: _Feed) -> DataFrame:
        from pyspark.sql.pandas.types import from_arrow_schema

        schema = from_arrow_schema(flow.schema.append(pa.field(SHARE, pa.float32())))
        reader = self.spark.readStream.schema(schema)
        return reader.option("maxFilesPerTrigger", self.source_tasks).parquet(
            f"file://{feed.live}/*"
        )

    def _feed(self, flow: BenchFlow, sizes: tuple[int, ...]) -> _Feed:
        """Epochs of these sizes, of as many files as source tasks; each is made only once."""
        epochs = []
        for number, rows in enumerate(sizes):
            folder = self.work / "in" / flow.name / f"{rows}-{number}"
            if not folder.exists():
                made = _with_share(flow.make(rows, number))
                write_epochs([made], folder, files_per_epoch=self.source_tasks)
            epochs.append(sorted(folder.glob("*.parquet")))
        return _Feed(epochs, self.work / "feed")

    def _clear(self) -> None:
        for name in ("checkpoint", "feed"):
            shutil.rmtree(self.work / name, ignore_errors=True)


class _Feed:
    """Puts epochs, one at a time and each at once, where a query looks for them."""

    def __init__(self, epochs: list[list[Path]], folder: Path) -> None:
        self._ready, self.live = folder / "ready", folder / "live"
        self.delivered = 0
        self.live.mkdir(parents=True)
        for number, parts in enumerate(epochs):
            (self._ready / str(number)).mkdir(parents=True)
            for part in parts:
                os.link(part, self._ready / str(number) / part.name)

    def deliver(self, now: float) -> None:
        """The next epoch; its last row came now."""
        folder = self._ready / str(self.delivered)
        for part in folder.iterdir():
            os.utime(part, (now, now))
        folder.rename(self.live / f"epoch-{self.delivered:06d}")
        self.delivered += 1


def _arrival(apart_s: float) -> Any:
    """When a row came: evenly over the time until its files were delivered."""
    from pyspark.sql import functions as fn

    complete_us = fn.unix_micros(fn.col("_metadata.file_modification_time"))
    before_us = (fn.lit(1.0) - fn.col(SHARE)) * fn.lit(apart_s * 1e6)
    return fn.timestamp_micros(complete_us - before_us.cast("long"))


def _with_share(rows: pa.Table) -> pa.Table:
    """Rows come in their order, evenly over the time of an epoch."""
    share = (np.arange(rows.num_rows) + 0.5) / max(1, rows.num_rows)
    return rows.append_column(SHARE, pa.array(share.astype(np.float32)))


def _wait_for(query: FlowQuery, epochs: int) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while sum(1 for done in query.recentProgress if done["numInputRows"]) < epochs:
        if query.awaitTermination(_POLL_S):
            raise EngineError("the flow ended while rows were still to come")
        if time.monotonic() > deadline:
            raise EngineError(f"an epoch was not done after {_PATIENCE_S:g} s; make epochs smaller")


def _sleep_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.monotonic()))


def _latencies(epochs: list[EpochFacts], rate: float) -> Latencies:
    known = [e.latency for e in epochs if e.latency is not None and e.latency.since == "arrival"]
    if len(known) != len(epochs) or not known:
        raise EngineError("an epoch has no times of arrival, so its latency was not measured")
    return Latencies(
        rate,
        tuple(of.p50_ms for of in known),
        tuple(of.p95_ms for of in known),
        tuple(of.mean_ms for of in known),
    )
