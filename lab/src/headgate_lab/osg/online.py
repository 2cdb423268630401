"""The online scheduler of Rivetti et al. 2016 in a stream: sketches come back, debts are settled.

The parts are those that flows run with: `InstanceCosts` says when an instance sends its sketches,
`CostModel` estimates, the compiled loop of `routing.schedule` assigns. Around them is what a
stream engine adds: instances that end tuples one by one, messages that take a while, and the
synchronisation step. Estimates and reality drift apart while tuples flow; an instance tells what
its tuples really took, and the scheduler counts only those still on the way with estimates.

Tuples are assigned in small blocks; what has arrived by the start of a block is known in it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from headgate.arrays import F64, I32
from headgate.routing.chooser import assign
from headgate.routing.costs import CostModel, CostSketch, SketchShape
from headgate.routing.hashing import mix
from headgate.routing.instance_costs import InstanceCosts, Stability
from headgate.slot.cost_shuffle import round_robin
from headgate_lab.osg.stream_kernel import finish_times

BLOCK = 8
Settle = Literal["rows", "sketch", "never"]


@dataclass(frozen=True)
class OnlineSettings:
    """How the scheduler keeps up with its instances.

    `settle`: debts are settled whenever an instance has ended `settle_rows` more tuples; or of all
    instances when one sends its sketches (the paper's way); or never. `clock`: instances are
    compared by when they will be done, so that idle time counts; without it by what they were
    given in all (the paper's way). A message takes `latency_ms`.
    """

    shape: SketchShape = field(default_factory=SketchShape.within)
    stability: Stability = field(default_factory=Stability)
    settle: Settle = "rows"
    settle_rows: int = 8
    clock: bool = True
    latency_ms: float = 5.0


@dataclass
class _Instance:
    """`order[:got]` are its tuples; `told` of them are in its sketches, `settled` in real time."""

    costs: InstanceCosts
    order: I32
    got: int = 0
    told: int = 0
    settled: int = 0
    real_ms: float = 0.0


class Online:
    """One scheduler and k instances; `run` gives every tuple's instance."""

    def __init__(
        self,
        author: I32,
        arrival_ms: F64,
        spent_ms: F64,
        settings: OnlineSettings | None = None,
    ) -> None:
        self._settings = settings or OnlineSettings()
        self._author, self._arrival, self._spent = author, arrival_ms, spent_ms
        tuples, k = spent_ms.shape
        self._end = np.zeros(tuples)
        self._h = mix(np.arange(int(author.max()) + 1, dtype=np.uint64))
        self._instances = [
            _Instance(
                InstanceCosts(self._settings.shape, self._settings.stability),
                np.empty(tuples, np.int32),
            )
            for _ in range(k)
        ]
        self._times: F64 | None = None
        self._busy = np.zeros(k)
        self.sketches_sent = 0
        self.settled = 0

    def run(self) -> I32:
        tuples, k = self._spent.shape
        target = np.empty(tuples, np.int32)
        free = np.zeros(k)
        for start in range(0, tuples, BLOCK):
            at = slice(start, min(tuples, start + BLOCK))
            self._listen(self._arrival[start] - self._settings.latency_ms)
            if self._times is None:
                chosen = round_robin(start, at.stop - start, k)
            else:
                if self._settings.clock:
                    np.maximum(self._busy, self._arrival[start], out=self._busy)
                group = self._author[at].astype(np.int64)
                chosen = assign(self._times, group, self._busy, start % k, 1.0)
            target[at] = chosen
            self._end[at] = finish_times(self._arrival[at], self._spent[at], chosen, free)
            for i, j in enumerate(chosen.tolist()):
                instance = self._instances[j]
                instance.order[instance.got] = start + i
                instance.got += 1
        return target

    # --- inside ----------------------------------------------------------------------------
    def _listen(self, until_ms: float) -> None:
        """Take in what instances have ended until then."""
        told = [self._measure(j, i, until_ms) for j, i in enumerate(self._instances)]
        if any(told):
            self._learn()
        if self._times is None:
            return
        settle, rows = self._settings.settle, self._settings.settle_rows
        if settle == "rows" or (settle == "sketch" and any(told)):
            for j, instance in enumerate(self._instances):
                self._settle(j, instance, until_ms, rows if settle == "rows" else 1)

    def _measure(self, j: int, instance: _Instance, until_ms: float) -> bool:
        """Windows of ended tuples go into the instance's sketches; True if it sent them."""
        sent = False
        while instance.told + (window := self._window(instance)) <= instance.got:
            some = instance.order[instance.told : instance.told + window]
            if self._end[some[-1]] > until_ms:
                break
            sketch = CostSketch(self._settings.shape)
            sketch.update(self._h[self._author[some]], self._spent[some, j])
            instance.told += window
            sent |= instance.costs.add(sketch)
        self.sketches_sent += sent
        return sent

    def _window(self, instance: _Instance) -> int:
        stability = self._settings.stability
        watching = instance.costs.is_stable
        return stability.watch_rows if watching else stability.window_rows

    def _settle(self, j: int, instance: _Instance, until_ms: float, rows: int) -> None:
        """Real time for what has ended, estimates for what is on the way."""
        assert self._times is not None
        last = instance.settled + rows - 1
        if last >= instance.got or self._end[instance.order[last]] > until_ms:
            return
        waiting = instance.order[instance.settled : instance.got]
        ended = int(np.searchsorted(self._end[waiting], until_ms, side="right"))
        done, on_the_way = waiting[:ended], waiting[ended:]
        instance.settled += ended
        instance.real_ms += float(self._spent[done, j].sum())
        expected = self._times[self._author[on_the_way], j]
        if self._settings.clock:
            free = np.array([self._end[done[-1]]])
            nowhere = np.zeros(len(on_the_way), np.int32)
            finish_times(self._arrival[on_the_way], expected[:, None], nowhere, free)
            self._busy[j] = free[0]
        else:
            self._busy[j] = instance.real_ms + float(expected.sum())
        self.settled += 1

    def _learn(self) -> None:
        empty = CostSketch(self._settings.shape)
        model = CostModel.of([instance.costs.sent or empty for instance in self._instances])
        self._times = model.times_ms(self._h)
