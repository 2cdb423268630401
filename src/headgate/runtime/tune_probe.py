"""Run a flow for a few epochs to measure it, without telling its sinks and without its checkpoint.

Rows are computed and then dropped: every sink is replaced by one that does nothing, and state goes
into a folder that is thrown away. What is left is the journal.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from typing import Any

from pyspark.sql import SparkSession

from headgate.control.measured_flow import Measured, measure_flow
from headgate.planner.tuning.calibration import Calibration
from headgate.runtime.calibration import cores_of
from headgate.runtime.query import FlowQuery
from headgate.runtime.start import start_flow
from headgate.slot.program import compile_flow
from headgate.topology.builder import FlowBuilder
from headgate.topology.graph import FlowGraph, SinkSpec

POLL_SECONDS = 0.2
IDLE_SECONDS = 5.0


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
    with tempfile.TemporaryDirectory(prefix="headgate-tune-") as folder:
        query = start_flow(muted, spark, slots=slots, checkpoint=folder)
        try:
            _wait(query, epochs)
            records = query.journal()
        finally:
            query.stop()
    program = compile_flow(muted.graph())
    return measure_flow(program, records, calibration.costs, cores_of(spark)), records


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
