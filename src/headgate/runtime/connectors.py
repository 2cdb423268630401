"""The ends of a flow on Spark: its sources as one DataFrame, its sinks called with committed files.

One source is passed as it is, cut to the columns that are needed. Several are tagged and unioned,
each in a struct column of its own, so they may differ in every column.

A Parquet or table sink is published by renaming: tasks write into a hidden staging folder of the
destination, the manifest names the files, and then they appear under names that carry flow, sink
and epoch. Calling again changes nothing.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import reduce
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from headgate.commit.checkpoint import Checkpoint
from headgate.commit.manifest import Manifest
from headgate.commit.published import (
    CompactionsBeside,
    TableCompaction,
    check_published,
    missing_files,
    published_files,
    rows_published,
    visible,
)
from headgate.commit.publishing import publish, published_glob, staging_uri
from headgate.errors import DeclarationError
from headgate.runtime.exchange import with_conf
from headgate.slot.file_rows import files_of
from headgate.slot.program import Program
from headgate.state.storage import Storage
from headgate.topology.arguments import absolute, spark_uri
from headgate.topology.builder import Reader
from headgate.topology.files import Files
from headgate.topology.graph import FlowGraph, Node
from headgate.topology.kafka import Kafka
from headgate.topology.kafka_sink import KafkaSink
from headgate.topology.schema import as_spark_reads, from_spark_json
from headgate.topology.text import plain_text

SOURCE_TAG = "__hg_source"


def read_sources(
    spark: SparkSession,
    graph: FlowGraph,
    program: Program,
    rows_per_epoch: int | None,
    names: Mapping[str, str] = MappingProxyType({}),
) -> DataFrame:
    """The frame of all sources; checks that each is what the declaration says.

    Sources that are functions of two arguments (without defaults) are given how many rows an epoch
    should have, in all sources together, or None. `names` is what Spark's checkpoint calls sources,
    if it does (`runtime/named_sources.py`).
    """
    frames = [
        _frame(spark, node, rows_per_epoch, names.get(node.own_name))
        for node in graph.of_kind("source")
    ]
    if len({frame.isStreaming for frame in frames}) > 1:
        raise DeclarationError("a flow's sources must be all streaming or all batch DataFrames")
    files = files_of(program)  # these are lists of files, which tasks read themselves
    chosen = [
        frame if number in files else _cut(frame, program.node_schema[node.id].names)
        for number, (frame, node) in enumerate(zip(frames, program.sources, strict=True))
    ]
    if len(chosen) == 1:
        return chosen[0]
    tagged = []
    for number, frame in enumerate(chosen):
        columns = [F.lit(number).cast("int").alias(SOURCE_TAG)]
        for i, other in enumerate(chosen):
            rows = F.struct("*") if i == number else F.lit(None).cast(other.schema)
            columns.append(rows.alias(f"source_{i}"))
        tagged.append(frame.select(*columns))
    return reduce(DataFrame.union, tagged)


def takes_rows(graph: FlowGraph) -> bool:
    """Can any source be told how many rows an epoch should have?

    A function of two arguments can, whatever it makes of it. A `Reader` knows, and so do `Files`.
    """
    given = [node.spec.frame for node in graph.of_kind("source")]
    return any(
        g.takes_rows if isinstance(g, Reader | Files | Kafka) else _has_two_arguments(g)
        for g in given
    )


def _has_two_arguments(given: Any) -> bool:
    if not callable(given) or hasattr(given, "isStreaming"):
        return False
    required = [
        parameter
        for parameter in inspect.signature(given).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    return len(required) > 1


def _cut(frame: DataFrame, columns: list[str]) -> DataFrame:
    """The frame with these columns alone: a few calls to the JVM, however many they are."""
    if frame.columns == columns:
        return frame
    fields = {field.name: field for field in frame.schema.fields}
    return frame.to(StructType([fields[name] for name in columns]))


def _frame(
    spark: SparkSession, node: Node, rows_per_epoch: int | None, name: str | None
) -> DataFrame:
    given = node.spec.frame
    if isinstance(given, Files):
        files: DataFrame = given(spark, rows_per_epoch, name)
        return files
    if isinstance(given, Kafka):
        from headgate.runtime.kafka_source import KafkaDataSource  # needs Spark 4.2

        spark.dataSource.register(KafkaDataSource)
        rows: DataFrame = given(spark, rows_per_epoch, name)
        return rows
    if hasattr(given, "isStreaming"):
        frame: DataFrame = given
    elif _has_two_arguments(given):
        frame = given(spark, rows_per_epoch)
    else:
        frame = given(spark)
    if not hasattr(frame, "isStreaming"):
        raise DeclarationError(
            f"source {node.own_name!r} gave a {type(frame).__name__}, not a DataFrame"
        )
    found = {field.name: field.type for field in from_spark_json(frame.schema.jsonValue())}
    for wanted in node.schema:
        if wanted.name not in found:
            raise DeclarationError(
                f"source {node.own_name!r} declares column {wanted.name!r}, but the DataFrame has "
                f"{', '.join(found)}",
                column=wanted.name,
            )
        if found[wanted.name] != wanted.type:
            raise DeclarationError(
                f"source {node.own_name!r}: column {wanted.name!r} is declared {wanted.type}, the "
                f"DataFrame has {found[wanted.name]}",
                column=wanted.name,
            )
    return frame


# Spark keeps what it listed of every file it ever read in this way, up to 250 MB of heap, for a
# second read by the same frame; here every epoch has files of its own.
UNCACHED = {"spark.sql.hive.filesourcePartitionFileCacheSize": "0"}


class Delivery:
    """Calls the sinks of one flow; `uris` is where tasks put the files of each, `memory` holds what
    memory sinks got.
    """

    def __init__(self, spark: SparkSession, graph: FlowGraph, checkpoint: Checkpoint) -> None:
        self._spark, self._flow, self._checkpoint = spark, graph.name, checkpoint
        self._sinks = {sink.name: sink.spec for sink in graph.of_kind("sink")}
        self.memory: dict[str, dict[int, pa.Table]] = {}
        self.uris: dict[str, str] = {}
        tables = {}
        for sink in graph.of_kind("sink"):
            name, kind = sink.name, sink.spec.kind
            if kind in ("parquet", "table"):
                self.uris[name] = staging_uri(self._published(sink), graph.name, name)
            else:
                self.uris[name] = checkpoint.sinks.child(name).uri
            if kind == "table":
                tables[name] = TableCompaction(Storage.at(self._published(sink)), graph.name, name)
            elif kind == "memory":
                self.memory[name] = {}
        self._compactions = CompactionsBeside(tables)

    def __call__(self, sink: Node, epoch: int, files: list[dict[str, Any]]) -> None:
        kind = sink.spec.kind
        if kind == "function":
            frame = self._read_frame(sink, [f"{self.uris[sink.name]}/{f['name']}" for f in files])
            target = self._sinks[sink.name].target
            if isinstance(target, KafkaSink):
                target = replace(
                    target, checkpoint=(self._checkpoint.identity() or {}).get("id", "")
                )
            target(frame, epoch)  # a program's sinks have no functions
        elif kind in ("parquet", "table"):
            publish(self._flow, sink.name, epoch, files, self.uris[sink.name])
            if kind == "table":
                self._compactions.after(sink.name, epoch)
        elif kind == "memory":
            self.memory[sink.name][epoch] = self._read(sink, files)
        elif files:
            self._show(sink, epoch, files)

    def close(self) -> None:
        self._compactions.close()

    def table(self, sink: Node, last: Manifest | None, verify: bool) -> DataFrame:
        """All published rows of a table or Parquet sink, whatever else is in its folder.

        `verify`: no file may be damaged, nor any of a table be missing.
        """
        uri = self._published(sink)
        # Rows first: an epoch that is published meanwhile must not be missed among the files.
        rows = rows_published(self._checkpoint, last, sink.name) if verify else 0
        taken, _ = visible(published_files(Storage.at(uri).list(), self._flow, sink.name))
        if verify:
            check_published(Storage.at(uri), taken, sink.name, rows)
        # By name: compaction changes the folder, and others may have folders x=1 in it.
        if sink.spec.kind == "table" or sink.spec.partition_by or not taken:
            return self._read_frame(sink, [f"{uri}/{file.name}" for file in taken], uri)
        with with_conf(self._spark, UNCACHED):
            return self._spark.read.schema(_spark_schema(sink)).parquet(
                spark_uri(uri),
                pathGlobFilter=published_glob(self._flow, sink.name),
                recursiveFileLookup=True,  # or a folder x=1 of somebody's would be a partition
            )

    def missing(self) -> Iterator[tuple[str, list[str]]]:
        """Parquet sinks, with what they published in the last epochs and is no longer there."""
        for sink, spec in self._sinks.items():
            if spec.kind == "parquet" and Storage.at(self.uris[sink]).is_local:
                manifests = filter(None, map(self._checkpoint.manifest, self._checkpoint.epochs()))
                place = self._checkpoint, self._flow, sink, self.uris[sink]
                if gone := missing_files(*place, manifests):
                    yield sink, gone

    def _published(self, sink: Node) -> str:
        if sink.spec.kind == "table":
            return self._checkpoint.storage.child("tables", sink.name).uri
        return absolute(sink.spec.target)

    def _read_frame(self, sink: Node, uris: list[str], base: str | None = None) -> DataFrame:
        schema = _spark_schema(sink)
        if not uris:
            return self._spark.createDataFrame([], schema)
        with with_conf(self._spark, UNCACHED):
            reader = self._spark.read.schema(schema)
            if base is not None and sink.spec.partition_by:
                reader = reader.option("basePath", spark_uri(base))
            found = reader.parquet(*map(spark_uri, uris))
            return found.select(*schema.names) if sink.spec.partition_by else found

    def _read(self, sink: Node, files: list[dict[str, Any]]) -> pa.Table:
        storage = Storage.at(self.uris[sink.name])
        parts = [pq.read_table(pa.py_buffer(storage.read(f["name"]))) for f in files]
        if not parts:
            return sink.schema.empty_table()
        return pa.concat_tables(parts, promote_options="default")  # sides of a union may differ

    def _show(self, sink: Node, epoch: int, files: list[dict[str, Any]]) -> None:
        table = self._read(sink, files)
        lines = [f"--- {sink.name}, epoch {epoch}: {table.num_rows} rows ---"]
        for row in table.slice(0, sink.spec.rows_shown).to_pylist():
            shown = ", ".join(f"{name}={value}" for name, value in row.items())
            lines.append("  " + plain_text(shown))
        sys.stdout.write("\n".join(lines) + "\n")


def _spark_schema(sink: Node) -> StructType:
    return from_arrow_schema(as_spark_reads(sink.name, sink.spec.written(sink.schema)))
