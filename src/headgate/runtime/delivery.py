"""Call sinks with the committed files of an epoch.

A Parquet or table sink is published by renaming: tasks write into a hidden staging folder of the
destination, the manifest names the files, and then they appear under names that carry flow, sink
and epoch. Calling again changes nothing.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from headgate.control.checkpoint import Checkpoint
from headgate.errors import StateFileError
from headgate.slot.program import Program
from headgate.state.storage import Storage
from headgate.topology.graph import FlowGraph, Node

STAGING = "_headgate"
STAGING_GRACE_EPOCHS = 8


def sink_uris(program: Program, checkpoint: Checkpoint) -> dict[str, str]:
    """Where tasks put the files of each sink."""
    uris = {}
    for sink in program.sinks:
        if sink.spec.kind in ("parquet", "table"):
            uris[sink.name] = f"{published_uri(sink, checkpoint)}/{STAGING}/{sink.name}"
        else:
            uris[sink.name] = checkpoint.sinks.child(sink.name).uri
    return uris


def published_uri(sink: Node, checkpoint: Checkpoint) -> str:
    if sink.spec.kind == "table":
        return checkpoint.storage.child("tables", sink.name).uri
    return absolute(sink.spec.target)


def absolute(uri: str) -> str:
    return uri if "://" in uri else str(Path(uri).resolve())


def spark_uri(uri: str) -> str:
    """The same place as Spark names it: a plain path is a local one, whatever the default is."""
    return uri if "://" in uri else f"file://{uri}"


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
        self.memory: dict[str, dict[int, pa.Table]] = {
            n.name: {} for n in graph.of_kind("sink") if n.spec.kind == "memory"
        }

    def __call__(self, sink: Node, epoch: int, files: list[dict[str, Any]]) -> None:
        kind = sink.spec.kind
        if kind == "function":
            self._functions[sink.name](self._frame(sink, files), epoch)
        elif kind in ("parquet", "table"):
            self._publish(sink, epoch, files)
        elif kind == "memory":
            self.memory[sink.name][epoch] = self._read(sink, files)
        elif files:
            self._show(sink, epoch, files)

    def table(self, sink: Node) -> DataFrame:
        """All published rows of a table or Parquet sink."""
        uri = published_uri(sink, self._checkpoint)
        schema = from_arrow_schema(sink.schema)
        if not any(name.endswith(".parquet") for name in _published(Storage.at(uri))):
            return self._spark.createDataFrame([], schema)
        return self._spark.read.schema(schema).parquet(spark_uri(uri))

    def _frame(self, sink: Node, files: list[dict[str, Any]]) -> DataFrame:
        schema = from_arrow_schema(sink.schema)
        if not files:
            return self._spark.createDataFrame([], schema)
        root = spark_uri(self._uris[sink.name])
        return self._spark.read.schema(schema).parquet(*(f"{root}/{f['name']}" for f in files))

    def _publish(self, sink: Node, epoch: int, files: list[dict[str, Any]]) -> None:
        place = Storage.at(published_uri(sink, self._checkpoint))
        staging = f"{STAGING}/{sink.name}"
        for file in files:
            final = f"part-{self._flow}-{sink.name}-{file['name']}"
            if place.exists(f"{staging}/{file['name']}"):
                place.rename(f"{staging}/{file['name']}", final)
            elif not place.exists(final):
                raise StateFileError(
                    f"sink {sink.name!r} committed {file['name']} in epoch {epoch}, but it is "
                    f"neither staged nor published under {place.uri}: somebody deleted it",
                    operator=sink.name,
                    epoch=epoch,
                    file=file["name"],
                )
        for name in place.list(f"{staging}/"):
            match = re.search(r"/e(\d{9})-", name)
            if match and int(match[1]) < epoch - STAGING_GRACE_EPOCHS:
                place.delete(name)

    def _read(self, sink: Node, files: list[dict[str, Any]]) -> pa.Table:
        storage = Storage.at(self._uris[sink.name])
        parts = [pq.read_table(pa.py_buffer(storage.read(f["name"]))) for f in files]
        return pa.concat_tables(parts) if parts else sink.schema.empty_table()

    def _show(self, sink: Node, epoch: int, files: list[dict[str, Any]]) -> None:
        table = self._read(sink, files)
        lines = [f"--- {sink.name}, epoch {epoch}: {table.num_rows} rows ---"]
        for row in table.slice(0, sink.spec.rows_shown).to_pylist():
            lines.append("  " + ", ".join(f"{name}={value}" for name, value in row.items()))
        sys.stdout.write("\n".join(lines) + "\n")


def _published(storage: Storage) -> list[str]:
    return [name for name in storage.list() if not name.startswith(STAGING)]
