"""Run an oracle's case on Spark: its rows as files, one per epoch and source; then compare."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from tests.scenario.oracle import Case, bag

from headgate.commit.checkpoint import Checkpoint
from headgate.commit.coordinator import Coordinator
from headgate.commit.settings import Options
from headgate.flow import Flow
from headgate.runtime.query import FlowQuery
from headgate.slot.compile import compile_flow
from headgate.state.store import StateStore
from headgate.topology.files import Files
from headgate.topology.schema import to_schema

ONCE = {"availableNow": True}


def write_epoch(folder: Path, schema: str, epoch: int, rows: Any) -> None:
    """A file that a file source takes as batch `epoch`: it goes by time, then by name."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{epoch:04d}.parquet"
    hidden = folder / f".{path.name}"
    pq.write_table(pa.Table.from_pylist(list(rows), schema=to_schema(schema)), hidden)
    os.utime(hidden, (1e9 + epoch, 1e9 + epoch))
    hidden.rename(path)


def write_case(case: Case, folder: Path, epochs: range | None = None) -> None:
    for name, schema in case.schemas.items():
        for epoch in epochs or range(case.epoch_count):
            write_epoch(folder / name, schema, epoch, case.epochs[name][epoch])


def read_files(spark: SparkSession, folder: Path, schema: str) -> DataFrame:
    reader = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
    return reader.parquet(str(folder))


def frames(spark: SparkSession, case: Case, folder: Path) -> dict[str, DataFrame]:
    return {name: read_files(spark, folder / name, ddl) for name, ddl in case.schemas.items()}


def as_files(case: Case, folder: Path) -> dict[str, Files]:
    """The same, read by tasks themselves."""
    return {n: Files(folder / n, schema=ddl, max_files=1) for n, ddl in case.schemas.items()}


class Collected:
    """What function sinks were called with, epoch by epoch; each call replaces the last."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[int, Any]] = {}
        self.calls: list[tuple[str, int]] = []

    def sink(self, name: str) -> Any:
        def take(frame: DataFrame, epoch: int) -> None:
            self.calls.append((name, epoch))
            self.rows.setdefault(name, {})[epoch] = bag(frame.toArrow().to_pylist())

        return take


def declare(case: Case, sources: Mapping[str, Any], collected: Collected) -> Flow:
    flow, streams = case.flow(sources)
    for name, stream in streams.items():
        stream.to(collected.sink(name), name=f"to_{name}")
    return flow


def run_case(
    spark: SparkSession,
    case: Case,
    folder: Path,
    *,
    slots: int = 2,
    collected: Collected | None = None,
    files: bool = False,
    **options: Any,
) -> FlowQuery:
    """Start the case on all files that are there and wait for its end.

    `files`: tasks read them, not Spark.
    `options` are those of `Flow.start`, or fields of `hg.Options`.
    """
    place = folder / "in"
    sources = as_files(case, place) if files else frames(spark, case, place)
    flow = declare(case, sources, collected or Collected())
    rare = {field.name for field in fields(Options)} & options.keys()
    packed = Options(**{name: options.pop(name) for name in rare})
    options = {"trigger": ONCE, "options": packed, **options}
    query = flow.start(spark, slots=slots, checkpoint=str(folder / "checkpoint"), **options)
    query.awaitTermination()
    return query


def state_rows(coordinator: Coordinator, operator: str) -> list[dict[str, Any]]:
    return _rows_of(coordinator.checkpoint, coordinator.program, operator, coordinator.buckets)[1]


def stored_state(case: Case, checkpoint: Path) -> tuple[int | None, dict[str, Any]]:
    """The last committed epoch and its state, read without any engine."""
    flow, streams = case.flow()
    for name, stream in streams.items():
        stream.to(print, name=f"to_{name}")
    program = compile_flow(flow.graph())
    place = Checkpoint(str(checkpoint))
    identity = place.identity()
    assert identity is not None
    found = {
        node.name: _rows_of(place, program, node.name, identity["buckets"])
        for node in program.stateful
    }
    epochs = {epoch for epoch, _ in found.values()}
    assert len(epochs) == 1
    return epochs.pop(), {name: bag(rows) for name, (_, rows) in found.items()}


def _rows_of(
    place: Checkpoint, program: Any, operator: str, buckets: int
) -> tuple[int | None, list[dict[str, Any]]]:
    last = place.last_epoch()
    manifest = None if last is None else place.manifest(last)
    if manifest is None:
        return None, []
    schema = program.state_schemas[program.graph.node(operator).id]
    store = StateStore(place.state, warm_dir=None, buckets=buckets)
    rows = [
        row
        for slot, chain in manifest.chains[operator].items()
        for row in store.scan(operator, slot, schema, chain).to_pylist()
    ]
    return last, rows


def check(query: FlowQuery, case: Case, collected: Collected, upto: int | None = None) -> None:
    """State and epoch-deduplicated output are those of the fold over epochs 0..upto."""
    last = case.epoch_count - 1 if upto is None else upto
    assert query.coordinator.last is not None and query.coordinator.last.epoch == last
    for operator, rows in case.expected[last].state.items():
        assert bag(state_rows(query.coordinator, operator)) == rows, operator
    for epoch in range(last + 1):
        for sink, rows in case.expected[epoch].output.items():
            assert collected.rows[sink][epoch] == rows, (sink, epoch)
