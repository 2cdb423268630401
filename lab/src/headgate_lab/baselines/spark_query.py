"""Spark rivals share this: a session of their own, a file source, and times from Spark's progress.

Nothing is counted twice or for free: a query writes to the `noop` sink, which evaluates every row
and keeps none, `triggerExecution` of Spark's own progress is the time, and the final counts are
read from the state store after the query has stopped.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from headgate.demo import EpochFiles

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
MEMORY = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"


def session(slots: int, store: str = ROCKSDB, *, tuned_files: bool = True) -> SparkSession:
    """A session with `slots` shuffle partitions and state in that store, apart from all others.

    Without `tuned_files` its checkpoint is written as Spark comes: with checksum files, and with a
    `chmod` process for each of them all.

    It shares the process's SparkContext if there is one (its cores stay as they are) and makes a
    local one with `slots` cores if not.
    """
    from pyspark.sql import SparkSession

    from headgate.runtime.session import LOCAL_FILES

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.Builder().master(f"local[{slots}]").appName("headgate-baselines")
    for name, value in LOCAL_FILES.items():
        builder = builder.config(name, value)
    shared = (
        builder.config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "4g")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    own = shared.newSession()
    if not tuned_files:
        own.conf.set("fs.AbstractFileSystem.file.impl", "org.apache.hadoop.fs.local.LocalFs")
    own.conf.set("spark.sql.shuffle.partitions", str(slots))
    own.conf.set("spark.sql.streaming.stateStore.providerClass", store)
    own.conf.set("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true")
    return own


def source(spark: SparkSession, epochs: EpochFiles) -> DataFrame:
    """The epochs as a stream: micro-batch i holds epoch i."""
    return (
        spark.readStream.schema("k1 long, k2 long")
        .option("maxFilesPerTrigger", epochs.files_per_epoch)
        .parquet(str(epochs.directory))
    )


def drain(
    stream: DataFrame, *, mode: str, checkpoint: Path, epochs: EpochFiles
) -> tuple[float, ...]:
    """Run the query over all epochs and return the seconds of each micro-batch, in order."""
    query = (
        stream.writeStream.format("noop")
        .outputMode(mode)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    batches = [p for p in query.recentProgress if p.numInputRows > 0]
    if len(batches) != len(epochs):
        raise RuntimeError(f"{len(epochs)} epochs became {len(batches)} micro-batches")
    return tuple(p.durationMs["triggerExecution"] / 1000 for p in batches)
