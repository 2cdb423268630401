"""Spark's own checkpoint on a local disk, written without starting a process for every file.

Spark writes three small files an epoch (offsets, commits, what a file source has read). By way of
Hadoop's `FileContext`, its default, each is given its mode by a `chmod` in a process of its own, 10
ms or more beside a large JVM, and by default so is its checksum file. By way of Hadoop's
`FileSystem` a file has the mode that the process gives it; the folder above is private. Either way
Spark writes it under another name first and renames it. Other storages keep Spark's choice.

The settings hold while a query starts, until Spark has made its logs, and are taken back in the
query's session before the first epoch, so that no source and no sink meets them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from headgate.runtime.exchange import with_conf
from headgate.state.storage import Storage

MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
BY_FILE_SYSTEM = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
RAW_FILES = {
    MANAGER: BY_FILE_SYSTEM,
    "fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "fs.file.impl.disable.cache": "true",  # or Spark gets the one that somebody had before
}
SOURCES_S = 10.0  # to wait for a query that makes its sources; then they log as Spark likes


@contextmanager
def without_processes(spark: SparkSession, checkpoint: Storage) -> Iterator[bool]:
    """Hold the settings, unless the user has chosen one of them, or Spark has no such class; does
    it?
    """
    jvm: Any = spark.sparkContext._jvm
    is_there = "JavaClass" in type(_named(jvm, BY_FILE_SYSTEM)).__name__
    is_free = all(spark.conf.get(name, None) is None for name in RAW_FILES)
    holds = checkpoint.is_local and is_there and is_free
    with with_conf(spark, RAW_FILES if holds else {}):
        yield holds


def wait_for_sources(query: StreamingQuery) -> None:
    """Return when a query that was started has made its sources, and they their logs."""
    until = time.monotonic() + SOURCES_S
    while query.isActive and str(query.status["message"]).startswith("Initializing"):
        if time.monotonic() > until:
            return
        time.sleep(0.002)


def take_back(session: SparkSession) -> None:
    """In the session of a query that has started: what is read and written from now on goes as the
    user wants it.
    """
    if all(session.conf.get(name, None) == value for name, value in RAW_FILES.items()):
        for name in RAW_FILES:
            session.conf.unset(name)


def _named(jvm: Any, name: str) -> Any:
    for part in name.split("."):
        jvm = getattr(jvm, part)
    return jvm
