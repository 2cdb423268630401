"""Reach of tweets on Spark: a cost-aware shuffle against round robin and many small partitions.

Every contestant computes the reach of the same authors, as a stateless operator, on two cores.
Two streams: *mixed* authors, drawn one by one, and *interleaved* feeds, one of authors with many
followers and one of authors with few, read in turn by one source. Round robin over two slots then
gives one of them all the dear tuples; a period in the input is what makes it uneven in practice.

A figure is the duration of an epoch's longest stage, by Spark's own clock: that is the stage that
computes. Contestants take turns; medians of all epochs after the warm-up, raw numbers kept.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from headgate.arrays import I32
from headgate.demo import EpochFiles, write_epochs
from headgate.flow import Flow
from headgate_lab.baselines import spark_query
from headgate_lab.osg.reach import FollowerGraph, follower_graph, neighbours_of, reach
from headgate_lab.record import side_by_side

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Say = Callable[[str], None]
OUT = "author bigint, reach double"


@dataclass(frozen=True)
class SparkOptions:
    rows_per_epoch: int = 400
    epochs: int = 9
    warmup: int = 4
    rounds: int = 2
    slots: int = 2
    small_partitions: int = 8
    depth: int = 3
    seed: int = 3
    graph: tuple[int, int, int] = (9_960, 183_005, 1)  # nodes, edges, seed


def run_on_spark(options: SparkOptions, say: Say) -> dict[str, Any]:
    """Median stage times of every contestant on both streams, and ratios."""
    graph = follower_graph(*options.graph)
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as folder:
        for name in ("interleaved", "mixed"):
            tables = (
                pa.table({"author": _authors(graph, options, name, epoch).astype(np.int64)})
                for epoch in range(options.epochs)
            )
            files = write_epochs(tables, Path(folder) / name)
            found[name] = _compare(files, Path(folder), options, name, say)
    told = {
        "stage_round_robin_over_cost": found["interleaved"]["stage_round_robin_over_cost"],
        "stage_small_partitions_over_cost": min(
            one["stage_small_partitions_over_cost"] for one in found.values()
        ),
    }
    return {**told, **found}


def _authors(graph: FollowerGraph, options: SparkOptions, name: str, epoch: int) -> I32:
    """An epoch's authors: as drawn, or a dear one and a cheap one in turn."""
    drawn = graph.authors(options.rows_per_epoch, options.seed * 1000 + epoch)
    if name == "mixed":
        return drawn
    order = np.argsort(graph.degrees[drawn], kind="stable")
    half = len(drawn) // 2
    cheap, dear = np.sort(order[:half]), np.sort(order[half:])
    turns = np.empty(len(drawn), np.int64)
    turns[0::2], turns[1::2] = dear, cheap
    return drawn[turns]


def _compare(
    files: EpochFiles,
    work: Path,
    options: SparkOptions,
    name: str,
    say: Say,
) -> dict[str, Any]:
    spark = spark_query.session(options.slots)
    number = iter(range(1_000_000))
    stages: dict[str, list[list[float]]] = {}

    def timed(contestant: str, run: Contestant) -> float:
        place = work / f"{name}-{next(number)}"
        before = _last_stage(spark)
        run(spark, files, options, place)
        took = _stage_ms(spark, before, len(files))[options.warmup :]
        shutil.rmtree(place, ignore_errors=True)
        stages.setdefault(contestant, []).append(took)
        return median(took)

    turns = side_by_side(
        {entry: partial(timed, entry, run) for entry, run in CONTESTANTS.items()},
        options.rounds,
        lambda turn, entry, ms: say(f"{name}, round {turn + 1}: {entry:22} {ms:8,.0f} ms a stage"),
    )
    medians = {entry: median(ms for run in runs for ms in run) for entry, runs in stages.items()}
    small = min(medians["small_partitions"], medians["spark_small_partitions"])
    return {
        "stage_ms": medians,
        "stage_round_robin_over_cost": medians["round_robin"] / medians["cost"],
        "stage_round_robin_over_online": medians["round_robin"] / medians["cost_online"],
        "stage_small_partitions_over_cost": small / medians["cost"],
        "stage_ms_raw": stages,
        "order": [list(names) for names in turns.order],
    }


Contestant = Callable[["SparkSession", EpochFiles, SparkOptions, Path], None]


# --- contestants -------------------------------------------------------------------------------
def _flow(grouping: str, slots: int | None, schedule: Any = "batch") -> Contestant:
    def run(
        spark: SparkSession,
        files: EpochFiles,
        options: SparkOptions,
        place: Path,
    ) -> None:
        depth, shape = options.depth, options.graph

        def weigh(row: dict[str, Any]) -> dict[str, Any]:
            author = row["author"]
            return {"author": author, "reach": reach(author, depth, neighbours_of(*shape))}

        flow = Flow("reach")
        rows = flow.source(_source(spark, files))
        if grouping == "cost":
            rows = rows.shuffle(grouping="cost", attribute="author", schedule=schedule)
        elif grouping == "round_robin":
            rows = rows.shuffle()
        else:
            rows = rows.local_or_shuffle()
        rows.map_rows(weigh, OUT, name="reach").to_parquet(str(place / "out"))
        query = flow.start(
            spark,
            slots=slots or options.small_partitions,
            checkpoint=str(place / "checkpoint"),
            trigger={"availableNow": True},
            manager=None,
        )
        query.awaitTermination()

    return run


def _plain_spark(
    spark: SparkSession, files: EpochFiles, options: SparkOptions, place: Path
) -> None:
    """Spark's own remedy without Headgate: more partitions than cores, and free cores take them."""
    depth, shape = options.depth, options.graph

    def weigh(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            authors = batch.column(0).to_pylist()
            made = [reach(author, depth, neighbours_of(*shape)) for author in authors]
            yield pa.RecordBatch.from_pydict({"author": authors, "reach": made})

    spread = _source(spark, files).repartition(options.small_partitions)
    query = (
        spread.mapInArrow(weigh, OUT)
        .writeStream.format("parquet")
        .option("path", str(place / "out"))
        .option("checkpointLocation", str(place / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


CONTESTANTS: dict[str, Contestant] = {
    "round_robin": _flow("round_robin", 2),
    "local_or_shuffle": _flow("local", 2),
    "small_partitions": _flow("round_robin", None),
    "spark_small_partitions": _plain_spark,
    "cost_online": _flow("cost", 2, "online"),
    "cost": _flow("cost", 2),
}


def _source(spark: SparkSession, files: EpochFiles) -> DataFrame:
    reader = spark.readStream.schema("author long")
    return reader.option("maxFilesPerTrigger", files.files_per_epoch).parquet(str(files.directory))


# --- Spark's own clock -------------------------------------------------------------------------
def _stages(spark: SparkSession) -> Iterator[Any]:
    """Completed stages as Spark's status store keeps them, newest first."""
    context = spark.sparkContext
    jvm, gateway = context._jvm, context._gateway
    assert jvm is not None and gateway is not None
    none = gateway.new_array(jvm.double, 0)
    store = context._jsc.sc().statusStore()
    all_of = jvm.java.util.ArrayList()
    found = store.stageList(all_of, False, False, none, all_of)
    for i in range(found.size()):
        stage = found.apply(i)
        if stage.status().toString() == "COMPLETE":
            yield stage


def _last_stage(spark: SparkSession) -> int:
    return max((stage.stageId() for stage in _stages(spark)), default=-1)


def _stage_ms(spark: SparkSession, after: int, epochs: int) -> list[float]:
    """Per epoch the longest stage. Jobs are told apart by their description; a flow's first is no
    epoch: it builds the anchor of its slots.
    """
    longest: dict[str, tuple[int, float]] = {}
    for stage in _stages(spark):
        if stage.stageId() <= after:
            continue
        begun, ended = stage.submissionTime().get(), stage.completionTime().get()
        took = float(ended.getTime() - begun.getTime())
        described = stage.description()
        key = described.get() if described.isDefined() else ""
        number, most = longest.get(key, (stage.stageId(), 0.0))
        longest[key] = min(number, stage.stageId()), max(most, took)
    took_ms = [ms for _, ms in sorted(longest.values())]
    if len(took_ms) < epochs:
        raise RuntimeError(f"{epochs} epochs, but stages of {len(took_ms)} descriptions")
    return took_ms[-epochs:]
