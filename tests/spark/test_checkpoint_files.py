"""Spark's own checkpoint files are written without processes, and nobody else notices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.spark.feeding import ONCE

import headgate as hg
from headgate.runtime.checkpoint_files import BY_FILE_SYSTEM, MANAGER, RAW_FILES


def manager_of(query: hg.FlowQuery) -> str:
    """The class that writes the offsets of a query."""
    assert query.sparkQuery is not None
    java_query: Any = query.sparkQuery._jsq
    return str(java_query.streamingQuery().offsetLog().fileManager().getClass().getName())


def manager_of_source(query: hg.FlowQuery) -> str:
    """The class that writes which files a query's source has read."""
    assert query.sparkQuery is not None
    java_query: Any = query.sparkQuery._jsq
    source = java_query.streamingQuery().uniqueSources().keys().head()
    log = source.getClass().getDeclaredField("metadataLog")
    log.setAccessible(True)
    return str(log.get(source).fileManager().getClass().getName())


def settings_of(session: SparkSession) -> set[str | None]:
    return {session.conf.get(name, None) for name in RAW_FILES}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    for number in range(2):
        rows = pa.table({"k": pa.array([number], pa.int64())})
        pq.write_table(rows, tmp_path / "in" / f"{number}.parquet")
    return tmp_path


@pytest.mark.parametrize("way", ["files", "frame"])
def test_the_settings_hold_for_sparks_logs_only(
    spark: SparkSession, folder: Path, way: str
) -> None:
    """Not for the user's session, nor for a sink, which runs in the query's."""
    met: list[set[str | None]] = []

    def look(rows: DataFrame, epoch: int) -> None:
        met.append(settings_of(rows.sparkSession) | settings_of(spark))

    frame = spark.readStream.schema("k bigint").option("maxFilesPerTrigger", 1)
    source: Any = hg.Files(folder / "in", schema="k bigint", max_files=1)
    flow = hg.Flow("raw")
    rows = flow.source(source if way == "files" else frame.parquet(str(folder / "in")))
    rows.key_by("k").process(hg.Count(), name="n").to(look)
    query = flow.start(spark, checkpoint=str(folder / "c"), slots=1, trigger=ONCE)
    query.awaitTermination()

    assert manager_of(query) == manager_of_source(query) == BY_FILE_SYSTEM
    assert met == [{None}, {None}]
    assert settings_of(spark) == {None}
    assert len(list((folder / "c" / "spark" / "offsets").glob("[0-9]"))) == 2
    assert query.state("n").num_rows == 2


def test_what_the_user_has_chosen_is_left_alone(spark: SparkSession, folder: Path) -> None:
    theirs = BY_FILE_SYSTEM.replace("FileSystemBased", "FileContextBased")
    spark.conf.set(MANAGER, theirs)
    try:
        flow = hg.Flow("theirs")
        rows = flow.source(hg.Files(folder / "in", schema="k bigint"))
        rows.key_by("k").process(hg.Count(), name="n").discard()
        query = flow.start(spark, checkpoint=str(folder / "c"), slots=1, trigger=ONCE)
        query.awaitTermination()
        assert manager_of(query) == theirs
        assert spark.conf.get(MANAGER) == theirs
    finally:
        spark.conf.unset(MANAGER)
