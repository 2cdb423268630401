"""Call sinks with the committed files of an epoch.

A Parquet or table sink is published by renaming: tasks write into a hidden staging folder of the
destination, the manifest names the files, and then they appear under names that carry flow, sink
and epoch. Calling again changes nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
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
from headgate.slot.program import Program
from headgate.state.storage import Storage
from headgate.topology.arguments import absolute, spark_uri
from headgate.topology.graph import FlowGraph, Node
from headgate.topology.schema import as_spark_reads
from headgate.topology.text import plain_text


def sink_uris(program: Program, checkpoint: Checkpoint) -> dict[str, str]:
    """Where tasks put the files of each sink."""
    uris = {}
    for sink in program.sinks:
        if sink.spec.kind in ("parquet", "table"):
            published = published_uri(sink, checkpoint)
            uris[sink.name] = staging_uri(published, program.graph.name, sink.name)
        else:
            uris[sink.name] = checkpoint.sinks.child(sink.name).uri
    return uris


def published_uri(sink: Node, checkpoint: Checkpoint) -> str:
    if sink.spec.kind == "table":
        return checkpoint.storage.child("tables", sink.name).uri
    return absolute(sink.spec.target)


class Delivery:
    """Delivers to all sinks of one flow; `memory` holds what memory sinks got."""

    def __init__(
        self,
        spark: SparkSession,
        graph: FlowGraph,
        checkpoint: Checkpoint,
        uris: Mapping[str, str],
    ) -> None:
        self._spark, self._flow, self._checkpoint, self._uris = spark, graph.name, checkpoint, uris
        self._functions = {n.name: n.spec.target for n in graph.of_kind("sink")}
        self._kinds = {n.name: n.spec.kind for n in graph.of_kind("sink")}
        self._compactions = CompactionsBeside(
            {
                node.name: TableCompaction(
                    Storage.at(published_uri(node, checkpoint)), graph.name, node.name
                )
                for node in graph.of_kind("sink")
                if node.spec.kind == "table"
            }
        )
        self.memory: dict[str, dict[int, pa.Table]] = {
            n.name: {} for n in graph.of_kind("sink") if n.spec.kind == "memory"
        }

    def __call__(self, sink: Node, epoch: int, files: list[dict[str, Any]]) -> None:
        kind = sink.spec.kind
        if kind == "function":
            self._functions[sink.name](self._frame(sink, files), epoch)
        elif kind in ("parquet", "table"):
            publish(self._flow, sink.name, epoch, files, self._uris[sink.name])
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
        uri = published_uri(sink, self._checkpoint)
        rows = rows_published(self._checkpoint, last, sink.name) if verify else None
        taken, _ = visible(published_files(Storage.at(uri).list(), self._flow, sink.name))
        if verify:
            check_published(Storage.at(uri), taken, sink.name, rows)
        schema = _spark_schema(sink)
        if not taken:
            return self._spark.createDataFrame([], schema)
        if sink.spec.kind == "table":  # by name: compaction changes what is in the folder
            paths = [f"{spark_uri(uri)}/{file.name}" for file in taken]
            return self._spark.read.schema(schema).parquet(*paths)
        return self._spark.read.schema(schema).parquet(
            spark_uri(uri),
            pathGlobFilter=published_glob(self._flow, sink.name),
            recursiveFileLookup=True,  # or a folder x=1 of somebody's would be a partition
        )

    def missing(self) -> Iterator[tuple[str, list[str]]]:
        """Parquet sinks, with what they published in the last epochs and is no longer there."""
        for sink, kind in self._kinds.items():
            if kind == "parquet" and Storage.at(self._uris[sink]).is_local:
                manifests = filter(None, map(self._checkpoint.manifest, self._checkpoint.epochs()))
                place = self._checkpoint, self._flow, sink, self._uris[sink]
                if gone := missing_files(*place, manifests):
                    yield sink, gone

    def _frame(self, sink: Node, files: list[dict[str, Any]]) -> DataFrame:
        schema = _spark_schema(sink)
        if not files:
            return self._spark.createDataFrame([], schema)
        root = spark_uri(self._uris[sink.name])
        return self._spark.read.schema(schema).parquet(*(f"{root}/{f['name']}" for f in files))

    def _read(self, sink: Node, files: list[dict[str, Any]]) -> pa.Table:
        storage = Storage.at(self._uris[sink.name])
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
    return from_arrow_schema(as_spark_reads(sink.name, sink.schema))
