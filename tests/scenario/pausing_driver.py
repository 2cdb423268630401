"""A driver without a JVM, for a process of its own.

It runs a chain of operators to its end, with a function sink that appends what it is called with to
a file, a Parquet sink and a table sink. Tests pause it (HEADGATE_PAUSE_AT) and wake it again. It
exits with 3 if it was overtaken, and says what it was told.
"""

from __future__ import annotations

import json
import os
import random
import traceback
from collections.abc import Mapping
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.parquet as pq
from tests.scenario.oracle import Case, chain

from headgate.commit.checkpoint import Checkpoint
from headgate.commit.coordinator import Coordinator
from headgate.commit.publishing import publish, staging_uri
from headgate.commit.settings import Settings
from headgate.errors import Overtaken
from headgate.slot.compile import compile_flow
from headgate.state.storage import Storage
from headgate.testing import LocalEngine, ManualClock, _epochs, _partitions
from headgate.topology.graph import Node

EPOCHS, BUCKETS, OVERTAKEN = 6, 16, 3
CHECKPOINT, LOG, OUT = "checkpoint", "log.jsonl", "out"


def case() -> Case:
    return chain(random.Random(4), epochs=EPOCHS, rows=30, empty=False)


def main(folder: Path, slots: int) -> None:
    flow, streams = case().flow()
    streams["sums"].to(print, name="log")
    streams["sums"].to_parquet(str(folder / OUT), name="parquet")
    streams["sums"].to_table("table")
    graph = flow.graph()
    program = compile_flow(graph)
    place = Checkpoint(str(folder / CHECKPOINT))
    published = {"parquet": str(folder / OUT), "table": str(folder / CHECKPOINT / "tables/table")}
    uris = {name: staging_uri(at, graph.name, name) for name, at in published.items()}
    uris["log"] = place.sinks.child("log").uri

    def deliver(sink: Node, epoch: int, files: list[dict[str, Any]]) -> None:
        if sink.name != "log":
            publish(graph.name, sink.name, epoch, files, uris[sink.name])
            return
        storage = Storage.at(uris["log"])
        tables = [pq.read_table(pa.py_buffer(storage.read(f["name"]))) for f in files]
        line = json.dumps({"epoch": epoch, "rows": [r for t in tables for r in t.to_pylist()]})
        with (folder / LOG).open("a") as file:
            file.write(line + "\n")

    coordinator = Coordinator(
        program,
        place,
        Settings(slots=slots, buckets=BUCKETS, keep_manifests=2),
        deliver,
        clock_ms=ManualClock(),
        sink_uris=uris,
    )
    first = 0 if coordinator.last is None else coordinator.last.epoch
    rows = [_epochs(number, node) for number, node in enumerate(graph.of_kind("source"))]
    for epoch in range(first, EPOCHS):
        engine = LocalEngine(program, check_purity=False, seed=epoch)
        inputs = _partitions(program, rows, epoch, 2)
        coordinator.run_epoch(epoch, "local", partial(engine.run, inputs=inputs))


def in_child(folder: Path, slots: int, said: Path, environment: Mapping[str, str]) -> NoReturn:
    """What a forked process does; it never returns to the test."""
    code = 1
    try:
        with said.open("w") as out, redirect_stdout(out):
            os.environ.update(environment)
            try:
                main(folder, slots)
                code = 0
            except Overtaken as problem:
                print(problem)
                code = OVERTAKEN
            except BaseException:
                traceback.print_exc(file=out)
    finally:
        os._exit(code)
