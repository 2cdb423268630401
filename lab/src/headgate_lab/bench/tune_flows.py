"""The flows that are tuned: the two of Sax et al. 2013, and one with a costly operator.

Each comes with rows to feed it. Its source can be told the column of arrival times, from which
latency is measured.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headgate.flow import Flow
from headgate.slot.compile import compile_flow
from headgate.slot.program import Program
from headgate.topology.stream import Stream
from headgate_lab.bench.costly_flow import CALLS, costly, service_calls
from headgate_lab.bench.edges import data_folder
from headgate_lab.papers.linear_road import LINES, linear_road, position_reports
from headgate_lab.papers.sentiment import TEXTS, sentiment
from headgate_lab.papers.sentiment_texts import short_texts

PAPER_FLOWS = ("linear-road", "sentiment")
ARRIVED = pa.field("arrived", pa.timestamp("us", tz="UTC"))
SPOUT = "spout"


@dataclass(frozen=True)
class BenchFlow:
    """A flow with rows to feed it: `make(rows, epoch)` is an epoch of input.

    `attach` declares what comes behind the source; `event_time` is a column of `schema`.
    """

    name: str
    schema: pa.Schema
    make: Callable[[int, int], pa.Table]
    attach: Callable[[Stream], None]
    event_time: str | None = None

    def declare(self, frame: Any, *, arrival: bool = False) -> Flow:
        """The flow over a frame; with `arrival` the frame has the column `ARRIVED` as well."""
        flow = Flow(self.name.replace("-", "_"))
        schema = self.schema.append(ARRIVED) if arrival else self.schema
        told = ARRIVED.name if arrival else None
        rows = flow.source(
            frame, schema=schema, name=SPOUT, event_time=self.event_time, arrival=told
        )
        self.attach(rows.select(*self.schema.names) if arrival else rows)
        rows.discard()  # most of these flows have no sink
        return flow

    @property
    def program(self) -> Program:
        return compile_flow(self.declare(_not_read).graph())


def flow_named(name: str, seed: int) -> BenchFlow:
    """`linear-road`, `sentiment` or `costly`."""
    if name == "linear-road":
        return BenchFlow(
            name,
            LINES,
            lambda rows, epoch: position_reports(rows, seed=seed, epoch=epoch),
            linear_road,
            event_time="ts",
        )
    if name == "costly":
        return BenchFlow(
            name, CALLS, lambda rows, epoch: service_calls(rows, seed=seed, epoch=epoch), costly
        )
    folder = data_folder()
    return BenchFlow(
        name,
        TEXTS,
        lambda rows, epoch: short_texts(rows, seed=seed, epoch=epoch, folder=folder),
        lambda texts: sentiment(texts).to_table("sentences"),
    )


def _not_read(spark: Any) -> Any:
    raise AssertionError("a program is compiled without reading its source")
