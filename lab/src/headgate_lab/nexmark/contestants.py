"""Runs of one query over the same files, in Headgate and native Spark; seconds by epoch.

Seconds are Spark's `triggerExecution` in both.

Nobody keeps the results while the clock runs: rows are made and dropped, at Headgate's sink as at
Spark's `noop`. Only q10 is about files, and writes them. A run that is checked keeps them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import headgate as hg
from headgate_lab.baselines import spark_query
from headgate_lab.baselines.result import RivalUnavailable
from headgate_lab.nexmark import peer_sql
from headgate_lab.nexmark.auction_site import WATERMARK, AuctionSite
from headgate_lab.nexmark.event_files import EventFiles
from headgate_lab.nexmark.oracle import Answer, Oracle
from headgate_lab.nexmark.query import Query, last_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RESULTS = "results"
LONGEST_S = 600.0


@dataclass(frozen=True)
class Ran:
    """Seconds of every epoch; the rows that came of it, if they were kept, in order of epochs.

    `arrived_us` is the clock of each epoch, `open_rows` the windows of q12 that are still open.
    """

    epoch_seconds: tuple[float, ...]
    rows: pa.Table | None = None
    closed_us: int | None = None
    arrived_us: tuple[int, ...] = ()
    open_rows: pa.Table | None = None


def declare(query: Query, files: EventFiles, out: str) -> tuple[hg.Flow, hg.Stream]:
    """The query's flow over the files, and its results."""
    flow = hg.Flow(query.name)

    def read(name: str) -> hg.Files:
        table = files.tables[name]
        return hg.Files(table.directory, max_files=table.files_per_epoch)

    return flow, query.declare(AuctionSite(flow, read, side=str(files.side), out=out))


def run_headgate(
    query: Query,
    files: EventFiles,
    work: Path,
    slots: int,
    *,
    keep: bool,
    longest_s: float = LONGEST_S,
) -> Ran:
    """A start from nothing, until all files are read.

    Raises:
        TimeoutError: when that takes longer than `longest_s`; the flow is stopped then.
    """
    flow, results = declare(query, files, str(work / "out"))
    kept: list[pa.Table] = []
    if keep and not query.writes:
        results.to(lambda frame, epoch: kept.append(frame.toArrow()), name=RESULTS)
    elif not query.writes:
        results.filter(nothing, name="made").to_memory(RESULTS)
    query_run = flow.start(
        spark_query.session(slots),
        slots=slots,
        checkpoint=str(work / "headgate"),
        trigger={"availableNow": True},
        manager=None,
    )
    if not query_run.awaitTermination(longest_s):
        query_run.stop()
        raise TimeoutError(f"not done in {longest_s:.0f} s")
    spark = query_run.sparkQuery
    assert spark is not None
    batches = [p for p in spark.recentProgress if "addBatch" in p.durationMs]
    seconds = tuple(p.durationMs["triggerExecution"] / 1000 for p in batches)
    rows = pa.concat_tables(kept) if kept else None
    told = [record for record in query_run.journal() if record["kind"] == "epoch"]
    closed = max((record["watermark_us"] or 0 for record in told), default=0)
    arrived = tuple(record["now_ms"] * 1000 for record in told)
    open_rows = query_run.state("counts") if keep and query.name == "q12" else None
    return Ran(seconds, rows, closed or None, arrived, open_rows)


def check_headgate(
    query: Query,
    files: EventFiles,
    oracle: Oracle,
    work: Path,
    slots: int,
    longest_s: float = LONGEST_S,
) -> Answer:
    """Is the result right, up to what event time has closed?

    q12 goes by the clock: each epoch's rows arrived when its plan says, and windows that are open
    at the end count as they are held.
    """
    ran = run_headgate(query, files, work, slots, keep=True, longest_s=longest_s)
    if query.name == "q12":
        return _check_by_clock(query, files, ran)
    if query.writes:
        return oracle.check(query.name, written(work / "out"))
    if ran.rows is None:  # nothing was told
        return oracle.check(query.name, oracle.answer(query.name).slice(0, 0), ran.closed_us)
    rows = last_rows(ran.rows, query.key)
    return oracle.check(query.name, rows, ran.closed_us)


def _check_by_clock(query: Query, files: EventFiles, ran: Ran) -> Answer:
    assert ran.open_rows is not None
    held = ran.open_rows.rename_columns({"count": "bid_count"})
    parts = [held] if ran.rows is None else [ran.rows.select(held.column_names), held]
    rows = pa.concat_tables(parts, promote_options="permissive")
    return Oracle(files, ran.arrived_us[: files.epochs]).check(query.name, rows)


def nothing(batch: pa.RecordBatch) -> Any:
    """No row: a filter that has rows made and dropped."""
    return np.zeros(batch.num_rows, np.bool_)


def written(folder: Path) -> pa.Table:
    """What q10 has written, with the columns that its folders name."""
    paths = sorted(folder.rglob("*.parquet"))
    parts = []
    for path in paths:
        table = pq.ParquetFile(path).read()
        for part in path.relative_to(folder).parts[:-1]:
            name, _, value = part.partition("=")
            text = pa.repeat(pa.scalar(unquote(value)), len(table))
            table = table.append_column(name, text)
        parts.append(table)
    return pa.concat_tables(parts)


def run_native(
    query: Query,
    files: EventFiles,
    work: Path,
    slots: int,
    store: str,
    longest_s: float = LONGEST_S,
) -> Ran:
    """Spark's own streaming SQL, with its state in that store.

    Raises:
        RivalUnavailable: when Spark cannot say the query, refuses it or takes longer than
            `longest_s`; with the reason.
    """
    if query.name in peer_sql.NATIVE_REASONS:
        raise RivalUnavailable(peer_sql.NATIVE_REASONS[query.name])
    spark = spark_query.session(slots, store)
    for name in query.reads:
        _stream(spark, files, name).createOrReplaceTempView(name)
    if query.name == "q13":
        spark.read.parquet(str(files.side)).createOrReplaceTempView("side")
    from pyspark.errors import PySparkException

    try:
        writer = spark.sql(peer_sql.NATIVE[query.name]).writeStream
        if query.name == "q10":
            sink = (
                writer.partitionBy("dt", "hm").format("parquet").option("path", str(work / "out"))
            )
        else:
            sink = writer.format("noop")
        running = (
            sink.outputMode("update" if query.name in peer_sql.UPDATING else "append")
            .option("checkpointLocation", str(work / "native"))
            .trigger(availableNow=True)
            .start()
        )
        if not running.awaitTermination(longest_s):  # type: ignore[arg-type]
            running.stop()
            raise RivalUnavailable(f"Spark: not done in {longest_s:.0f} s")
    except PySparkException as problem:
        raise RivalUnavailable(f"Spark: {' '.join(str(problem).split())[:300]}") from problem
    batches = [p for p in running.recentProgress if "addBatch" in p.durationMs]
    return Ran(tuple(p.durationMs["triggerExecution"] / 1000 for p in batches))


def _stream(spark: SparkSession, files: EventFiles, name: str) -> DataFrame:
    table = files.tables[name]
    schema = spark.read.parquet(str(table.paths[0])).schema
    return (
        spark.readStream.schema(schema)
        .option("maxFilesPerTrigger", table.files_per_epoch)
        .parquet(str(table.directory))
        .withWatermark("dateTime", WATERMARK)
    )
