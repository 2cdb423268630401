"""Run a flow for a few epochs to measure it, without telling its sinks and without its checkpoint.

Rows are computed and then dropped: every sink is replaced by one that does nothing, and state goes
into a folder that is thrown away. What is left is the journal.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from statistics import median
from typing import Any

from pyspark.sql import SparkSession

from headgate.control.measured_flow import Measured, measure_flow
from headgate.planner.tuning.calibration import Calibration
from headgate.runtime.calibration import cores_of
from headgate.runtime.query import FlowQuery
from headgate.runtime.sources import takes_rows
from headgate.runtime.start import start_flow
from headgate.slot.program import compile_flow
from headgate.topology.builder import FlowBuilder
from headgate.topology.graph import FlowGraph, SinkSpec

POLL_SECONDS = 0.2
IDLE_SECONDS = 5.0
LARGER = 4  # times the rows per epoch, in the second half of a probe whose sources can be told


class _Muted(FlowBuilder):
    """A flow whose sinks say nothing."""

    def __init__(self, flow: FlowBuilder) -> None:
        super().__init__(flow.name)
        self._muted = _mute(flow.graph())

    def graph(self) -> FlowGraph:
        return self._muted


def probe_flow(
    flow: FlowBuilder, spark: SparkSession, calibration: Calibration, *, slots: int, epochs: int
) -> tuple[Measured, list[dict[str, Any]]]:
    """Run until so many epochs are done, or the source has no more; returns what they tell."""
    muted = _Muted(flow)
    graph = muted.graph()
    if not takes_rows(graph):
        records = _run(muted, spark, slots, epochs, None)
    else:  # two sizes tell what an epoch costs without rows
        records = _run(muted, spark, slots, epochs - epochs // 2, None)
        sizes = [r["rows"] for r in records if r["kind"] == "epoch" and r["rows"]]
        if sizes:
            larger = LARGER * max(1, round(median(sizes)))
            records += _run(muted, spark, slots, max(1, epochs // 2), larger)
    program = compile_flow(graph)
    return measure_flow(program, records, calibration.costs, cores_of(spark)), records


def _run(
    flow: FlowBuilder, spark: SparkSession, slots: int, epochs: int, rows_per_epoch: int | None
) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="headgate-tune-") as folder:
        query = start_flow(
            flow, spark, slots=slots, checkpoint=folder, rows_per_epoch=rows_per_epoch
        )
        try:
            _wait(query, epochs)
            return query.journal()
        finally:
            query.stop()


def _wait(query: FlowQuery, epochs: int) -> None:
    """Until enough epochs are done, or the flow has ended, or no more rows come."""
    done, last = 0, time.monotonic()
    while done < epochs and not query.awaitTermination(POLL_SECONDS):
        if len(query.recentProgress) > done:
            done, last = len(query.recentProgress), time.monotonic()
        if done and not query.status["isTriggerActive"] and time.monotonic() > last + IDLE_SECONDS:
            return


def _mute(graph: FlowGraph) -> FlowGraph:
    silent = SinkSpec("function", _drop)
    nodes = (replace(n, spec=silent) if n.kind == "sink" else n for n in graph.nodes)
    return replace(graph, nodes=tuple(nodes))


def _drop(rows: Any, epoch: int) -> None:
    """Take rows and do nothing with them."""
