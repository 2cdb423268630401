"""Many configurations at once: what `prediction` says of one, for a search that looks at thousands.

A configuration is a column: instances, and batch rows, of every step in the flow's order. The
numbers are those of `share_and_latency`, which a test holds them to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from headgate.arrays import F64, I64
from headgate.planner.tuning.cost_model import EngineCosts, FlowModel
from headgate.planner.tuning.prediction import SLACK_MIN, Configuration, processing_s


@dataclass(frozen=True)
class Told:
    """Of each column: the share that gets through, and the longest path to each step."""

    share: F64
    ready_s: F64

    @property
    def latency_s(self) -> F64:
        longest: F64 = self.ready_s.max(axis=0)
        return longest


@dataclass(frozen=True, eq=False)
class Point:
    """One configuration as a column, and what is predicted of it."""

    dop: I64
    batch: I64
    share: float
    latency_s: float


class Trials:
    """A flow as arrays, for columns of configurations of it."""

    def __init__(self, flow: FlowModel, costs: EngineCosts, cores: float | None = None) -> None:
        self.flow, self._costs, self._cores = flow, costs, cores
        place = {name: number for number, name in enumerate(flow.order)}
        streams = sorted(flow.streams, key=lambda s: place[s.producer])
        self._producer = np.array([place[s.producer] for s in streams], np.intp)
        self._consumer = np.array([place[s.consumer] for s in streams], np.intp)
        self._first = np.flatnonzero(np.diff(self._producer, prepend=-1))
        self._rate = np.array([flow.rate_in[name] for name in flow.order])
        into = np.array([s.rows_per_row for s in streams])
        shipped = np.array([s.shipped_per_row for s in streams])
        self._row_bytes_s = np.array([s.row_bytes for s in streams]) * costs.byte_s
        self._fit = np.array([costs.batch_rows_max(s.row_bytes) for s in streams], np.float64)
        sent = self._rate[self._producer]
        self._stream_rate = sent * into
        self._messages_s = sent * shipped * costs.message_s
        steps = [flow.step[name] for name in flow.order]
        self._ppt_s = np.array([flow.step[s.consumer].ppt_s for s in streams])
        self.message_work = self._by_producer(self._messages_s)
        self.other_work = self._rate * np.array([processing_s(s) for s in steps])
        self.other_work += self._by_producer(sent * shipped * self._row_bytes_s)
        self.is_source = np.array([s.is_source for s in steps])
        self.largest = np.ones(len(steps), np.int64)
        np.maximum.at(self.largest, self._producer, self._fit.astype(np.int64))
        order = np.argsort(self._consumer, kind="stable")
        self._walk = [(int(e), int(self._producer[e]), int(self._consumer[e])) for e in order]
        self.pairs = [(p, c) for _, p, c in self._walk if min(self.largest[p], self.largest[c]) > 1]

    def column(self, counts: Mapping[str, int]) -> I64:
        return np.array([counts[name] for name in self.flow.order], np.int64)

    def point(self, dop: I64, batch: I64) -> Point:
        told = self.tell(dop[:, None], batch[:, None])
        return Point(dop, batch, float(told.share[0]), float(told.latency_s[0]))

    def configuration(self, at: Point) -> Configuration:
        names = self.flow.order
        return Configuration(
            dict(zip(names, at.dop.tolist(), strict=True)),
            dict(zip(names, at.batch.tolist(), strict=True)),
        )

    def heaviest(self, at: Point, most: int) -> I64:
        """Steps at the ends of the slowest streams; all, if there are no more than `most`."""
        count = len(self._rate)
        if count <= most:
            return np.arange(count)
        dop, batch = at.dop[:, None], at.batch[:, None]
        busy = at.share * self.work(batch) / dop
        slow = np.argsort(-self._passes_s(dop, batch, np.array([at.share]), busy)[:, 0])
        ends = np.stack([self._producer[slow], self._consumer[slow]], axis=1).ravel()
        _, first = np.unique(ends, return_index=True)
        heaviest: I64 = ends[np.sort(first)[:most]]
        return heaviest

    def work(self, batch: I64) -> F64:
        """Seconds of work per second of each step, if the sources are not held back."""
        messages = self._messages_s[:, None] / self._rows(batch)
        work: F64 = self.other_work[:, None] + self._by_producer(messages)
        return work

    def tell(self, dop: I64, batch: I64) -> Told:
        work = self.work(batch)
        slowest = (work / dop).max(axis=0)
        if self._cores is not None:
            slowest = np.maximum(slowest, work.sum(axis=0) / self._cores)
        share = 1.0 / np.maximum(slowest, 1.0)
        passes = self._passes_s(dop, batch, share, share * work / dop)
        ready = np.zeros(work.shape)
        for stream, producer, consumer in self._walk:
            np.maximum(ready[consumer], ready[producer] + passes[stream], out=ready[consumer])
        return Told(share, ready)

    def _passes_s(self, dop: I64, batch: I64, share: F64, busy: F64) -> F64:
        """Shipping, queueing and processing on each stream; see `prediction`."""
        rows, ppt = self._rows(batch), self._ppt_s[:, None]
        buffers = dop[self._producer] * dop[self._consumer]
        rate = share * self._stream_rate[:, None]
        filling = np.divide((rows - 1) / 2 * buffers, rate, out=np.zeros_like(rows), where=rate > 0)
        queue = busy[self._consumer]
        queue = queue / (2 * np.maximum(1 - queue, SLACK_MIN))
        passes: F64 = filling + self._costs.message_s + rows * self._row_bytes_s[:, None]
        passes += ppt * (1 + (rows - 1) / 2 + queue * rows)
        return passes

    def _rows(self, batch: I64) -> F64:
        return np.minimum(np.maximum(batch[self._producer], 1.0), self._fit[:, None])

    def _by_producer(self, values: F64) -> F64:
        total = np.zeros((len(self._rate), *values.shape[1:]))
        if len(values):
            total[self._producer[self._first]] = np.add.reduceat(values, self._first, axis=0)
        return total
