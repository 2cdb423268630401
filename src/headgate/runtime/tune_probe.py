"""Run a flow for a few epochs to measure it, without telling its sinks and without its checkpoint.

Rows are computed and then dropped: every sink is replaced by one that does nothing, and state goes
into a folder that is thrown away. What is left is the journal.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import median
from types import MappingProxyType

from pyspark.sql import SparkSession

from headgate.commit.facts import EpochFacts, epochs_of
from headgate.control.measured_flow import Measured, measure_flow
from headgate.planner.tuning.cost_model import Calibration
from headgate.runtime.auto import cores_of
from headgate.runtime.connectors import takes_rows
from headgate.runtime.query import FlowQuery
from headgate.runtime.start import start_flow
from headgate.slot.compile import compile_flow
from headgate.topology.builder import FlowBuilder
from headgate.topology.graph import FlowGraph, SinkSpec

POLL_SECONDS = 0.2
IDLE_SECONDS = 5.0  # after some rows have come
LARGER = 4  # times the rows per epoch, in the second half of a probe whose sources can be told

Say = Callable[[str], None]


class _Muted(FlowBuilder):
    """A flow whose sinks take rows and do nothing with them."""

    def __init__(self, flow: FlowBuilder) -> None:
        super().__init__(flow.name)
        self._flow = flow

    def graph(self, parallelism: Mapping[str, int] = MappingProxyType({})) -> FlowGraph:
        graph = self._flow.graph(parallelism)
        silent = SinkSpec("function", lambda rows, epoch: None)
        nodes = (replace(n, spec=silent) if n.kind == "sink" else n for n in graph.nodes)
        return replace(graph, nodes=tuple(nodes))


def probe_flow(
    flow: FlowBuilder,
    spark: SparkSession,
    calibration: Calibration,
    *,
    slots: int,
    parallelism: Mapping[str, int] = MappingProxyType({}),
    epochs: int,
    wait_s: float,
    say: Say = lambda text: None,
) -> tuple[Measured, list[EpochFacts]]:
    """Run until so many epochs are done, or the source has no more; returns what they say.

    `parallelism`: instances of operators that do not have one in every slot. `wait_s`: how long to
    wait for the first rows. `say` hears of every epoch with rows.
    """
    muted = _Muted(flow)
    graph = muted.graph()

    def run(epochs: int, rows_per_epoch: int | None = None) -> list[EpochFacts]:
        with tempfile.TemporaryDirectory(prefix="headgate-tune-") as folder:
            query = start_flow(
                muted,
                spark,
                slots=slots,
                parallelism=parallelism,
                checkpoint=folder,
                rows_per_epoch=rows_per_epoch,
            )
            try:
                watch(query, epochs, wait_s=wait_s, say=say)
                return epochs_of(query.journal())
            finally:
                query.stop()

    takes = takes_rows(graph)  # if so, two sizes tell what an epoch costs without rows
    measured = run(epochs - epochs // 2 if takes else epochs)
    sizes = [epoch.rows for epoch in measured if epoch.rows]
    if takes and sizes:
        larger = LARGER * max(1, round(median(sizes)))
        say(f"again, its sources told {larger:,} rows per epoch")
        measured += run(max(1, epochs // 2), larger)
    found = measure_flow(compile_flow(graph), measured, calibration.costs, cores_of(spark))
    return found, measured


def watch(
    query: FlowQuery,
    epochs: int,
    *,
    wait_s: float,
    say: Say,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Until enough epochs with rows are done, or the flow has ended, or no more rows come.

    Waiting is over between two epochs only: the first one may take longer than all patience.
    """
    seen, done, last = -1, 0, clock()
    while done < epochs:
        ended = query.awaitTermination(POLL_SECONDS)
        new = [progress for progress in query.recentProgress if progress["batchId"] > seen]
        for progress in new:
            seen, rows = progress["batchId"], progress["numInputRows"]
            if rows:
                done, last = done + 1, clock()
                seconds = EpochFacts.from_json(progress["headgate"]).engine.seconds
                say(f"epoch {done} of {epochs}: {rows:,} rows in {seconds:.2f} s")
        if ended:
            return
        status = query.status
        at_work = status["isTriggerActive"] and status["isDataAvailable"]
        if (new or not at_work) and clock() > last + (IDLE_SECONDS if done else wait_s):
            say(f"no {'more ' if done else ''}rows have come for {clock() - last:.0f} s")
            return
