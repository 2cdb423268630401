"""The two flows of Sax et al. 2013 on Spark, with given slots, batch rows and rows per epoch."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa

from headgate.commit.facts import EpochFacts, epochs_of
from headgate.commit.settings import Options
from headgate.demo import EpochFiles, write_epochs
from headgate.flow import Flow
from headgate.slot.compile import compile_flow
from headgate.slot.plan import BatchRows
from headgate.slot.program import Program
from headgate_lab.baselines import spark_query
from headgate_lab.bench.contestant import epoch_seconds
from headgate_lab.bench.edges import data_folder
from headgate_lab.papers.linear_road import LINES, linear_road, position_reports
from headgate_lab.papers.sentiment import TEXTS, sentiment
from headgate_lab.papers.sentiment_texts import short_texts

CORES = 2


@dataclass(frozen=True)
class PaperFlow:
    """A flow with rows to feed it: `make(rows, epoch)` is an epoch of input."""

    name: str
    make: Callable[[int, int], pa.Table]
    declare: Callable[[Any], Flow]


@dataclass(frozen=True)
class Setting:
    """What one run uses. `batch` as in `flow.start`; rows per epoch are what is fed."""

    slots: int
    batch: BatchRows
    rows_per_epoch: int


@dataclass(frozen=True)
class Timed:
    """The epochs after the warm-up, and what is known of all of the run."""

    rows: int
    seconds: tuple[float, ...]
    epochs: list[EpochFacts]

    @property
    def rows_per_s(self) -> float:
        return self.rows / self.latency_s

    @property
    def latency_s(self) -> float:
        """From the start of an epoch to its commit, which all its rows wait for."""
        return median(self.seconds)


def paper_flow(name: str, seed: int) -> PaperFlow:
    """`linear-road` or `sentiment`."""
    if name == "linear-road":
        return PaperFlow(
            name, lambda rows, epoch: position_reports(rows, seed=seed, epoch=epoch), _linear_road
        )
    folder = data_folder()
    return PaperFlow(
        name, lambda rows, epoch: short_texts(rows, seed=seed, epoch=epoch, folder=folder), _texts
    )


def program_of(flow: PaperFlow) -> Program:
    return compile_flow(flow.declare(_not_read).graph())


def run_once(flow: PaperFlow, setting: Setting, *, epochs: int, warmup: int, work: Path) -> Timed:
    """Run so many epochs in a checkpoint of their own; the first ones are not timed."""
    sizes = (setting.rows_per_epoch,) * epochs
    seconds, told = _run(flow, setting.slots, setting.batch, sizes, work)
    return Timed(setting.rows_per_epoch, seconds[warmup:], told)


def probe_once(flow: PaperFlow, slots: int, sizes: tuple[int, ...], work: Path) -> list[EpochFacts]:
    """Epochs of these sizes with large batches."""
    return _run(flow, slots, None, sizes, work)[1]


def _run(
    flow: PaperFlow, slots: int, batch: BatchRows, sizes: tuple[int, ...], work: Path
) -> tuple[tuple[float, ...], list[EpochFacts]]:
    files = _written(flow, sizes, work)
    spark = spark_query.session(CORES)
    schema = spark.read.parquet(str(files.directory)).schema
    frame = (
        spark.readStream.schema(schema)
        .option("maxFilesPerTrigger", files.files_per_epoch)
        .parquet(str(files.directory))
    )
    place = work / "checkpoint"
    query = flow.declare(frame).start(
        spark,
        slots=slots,
        checkpoint=str(place),
        options=Options(batch_rows=batch),
        trigger={"availableNow": True},
        manager=None,
    )
    query.awaitTermination()
    seconds = epoch_seconds(query, len(sizes))
    told = epochs_of(query.journal())
    shutil.rmtree(place, ignore_errors=True)
    return seconds, told


def _written(flow: PaperFlow, sizes: tuple[int, ...], work: Path) -> EpochFiles:
    """As many source partitions as cores; made once per choice of sizes."""
    folder = work / "in-{}".format("-".join(map(str, sizes)))
    found = sorted(folder.glob("*.parquet"))
    if found:
        parts = (found[at : at + CORES] for at in range(0, len(found), CORES))
        return EpochFiles(folder, tuple(map(tuple, parts)))
    tables = (flow.make(rows, epoch) for epoch, rows in enumerate(sizes))
    return write_epochs(tables, folder, files_per_epoch=CORES)


def _linear_road(frame: Any) -> Flow:
    flow = Flow("linear_road")
    linear_road(flow.source(frame, schema=LINES, name="spout", event_time="ts"))
    return flow


def _texts(frame: Any) -> Flow:
    flow = Flow("sentiment")
    sentiment(flow.source(frame, schema=TEXTS, name="spout")).to_table("sentences")
    return flow


def _not_read(spark: Any) -> Any:
    raise AssertionError("a program is compiled without reading its source")
