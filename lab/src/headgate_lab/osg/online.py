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
from numpy.typing import NDArray

from headgate.arrays import F64, I32
from headgate.routing.costs import CostModel, CostSketch, SketchShape
from headgate.routing.hashing import mix
from headgate.routing.instance_costs import InstanceCosts, Stability
from headgate.slot.cost_shuffle import greedy, round_robin
from headgate_lab.osg.paper_instance import PaperInstance
from headgate_lab.osg.stream_kernel import finish_times

BLOCK = 8
Settle = Literal["rows", "request", "never"]


@dataclass(frozen=True)
class OnlineSettings:
    """How schedulers keep up with their instances.

    `settle`: an instance answers after every `settle_rows` tuples; or, when one has sent its
    sketches, to a request that waits in its queue until it is its turn (the paper's way); or never.
    `clock`: instances are compared by when they will be done, so that idle time counts; without it
    by what they were given in all (the paper's way). `ahead`: a tuple's own time counts in the
    choice, and `pooled`: what one instance knows of a value is worth something to the others (both
    not in the paper). `forgets`: instances begin anew with each message. A message takes
    `latency_ms`. Blocks of tuples come to so many `schedulers` in turn, which know of their own
    tuples only.
    """

    shape: SketchShape = field(default_factory=SketchShape.within)
    stability: Stability = field(default_factory=Stability)
    settle: Settle = "rows"
    settle_rows: int = 8
    clock: bool = True
    ahead: bool = True
    pooled: bool = True
    forgets: bool = False
    latency_ms: float = 5.0
    schedulers: int = 1


@dataclass
class _Instance:
    """`order[:got]` are its tuples; `told` of them are in its sketches."""

    costs: InstanceCosts | PaperInstance
    order: I32
    got: int = 0
    told: int = 0


@dataclass
class _Account:
    """What a scheduler knows of an instance: how long the first `settled` tuples really took."""

    settled: int = 0
    real_ms: float = 0.0
    asked: tuple[int, float] | None = None  # behind so many tuples, estimated at so much
    late_ms: float | None = None  # the answer: the truth is so much more than estimated


class Online:
    """Schedulers and k instances; `run` gives every tuple's instance."""

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
                (PaperInstance if self._settings.forgets else InstanceCosts)(
                    self._settings.shape, self._settings.stability
                ),
                np.empty(tuples, np.int32),
            )
            for _ in range(k)
        ]
        self._times: F64 | None = None
        schedulers = range(self._settings.schedulers)
        self._busy = np.zeros((len(schedulers), k))
        self._accounts = [[_Account() for _ in range(k)] for _ in schedulers]
        self.sketches_sent = 0
        self.messages = 0
        self.settled = 0

    def run(self) -> I32:
        tuples, k = self._spent.shape
        target = np.empty(tuples, np.int32)
        free = np.zeros(k)
        for start in range(0, tuples, BLOCK):
            at = slice(start, min(tuples, start + BLOCK))
            self._listen(self._arrival[start] - self._settings.latency_ms)
            busy = self._busy[self._scheduler_of(start)]
            if self._times is None:
                chosen = round_robin(start, at.stop - start, k)
            else:
                if self._settings.clock:
                    np.maximum(busy, self._arrival[start], out=busy)
                group = self._author[at].astype(np.int64)
                ahead = self._settings.ahead
                chosen = greedy(self._times, group, busy, start % k, ahead=ahead)
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
        if self._settings.settle == "never":
            return
        for number, accounts in enumerate(self._accounts):
            if self._settings.settle == "rows":
                for j, account in enumerate(accounts):
                    self._settle(number, j, account, until_ms)
            else:
                self._synchronize(number, accounts, any(told), until_ms)

    def _scheduler_of(self, start: int) -> int:
        return start // BLOCK % self._settings.schedulers

    def _mine(self, tuples: I32, number: int) -> NDArray[np.bool_]:
        mine: NDArray[np.bool_] = tuples // BLOCK % self._settings.schedulers == number
        return mine

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
        self.messages += sent * self._settings.schedulers
        return sent

    def _window(self, instance: _Instance) -> int:
        stability = self._settings.stability
        watching = instance.costs.is_stable
        return stability.watch_rows if watching else stability.window_rows

    def _settle(self, number: int, j: int, account: _Account, until_ms: float) -> None:
        """Real time for what the instance has answered for, estimates for what came after."""
        assert self._times is not None
        instance, rows = self._instances[j], self._settings.settle_rows
        waiting = instance.order[account.settled : instance.got]
        ended = int(np.searchsorted(self._end[waiting], until_ms, side="right"))
        ended -= ended % rows
        if not ended:
            return
        done, later = waiting[:ended], waiting[ended:]
        later = later[self._mine(later, number)]
        account.settled += ended
        account.real_ms += float(self._spent[done[self._mine(done, number)], j].sum())
        expected = self._times[self._author[later], j]
        if self._settings.clock:
            free = np.array([self._end[done[-1]]])
            nowhere = np.zeros(len(later), np.int32)
            finish_times(self._arrival[later], expected[:, None], nowhere, free)
            self._busy[number, j] = free[0]
        else:
            self._busy[number, j] = account.real_ms + float(expected.sum())
        self.settled += 1
        self.messages += ended // rows

    def _synchronize(
        self, number: int, accounts: list[_Account], news: bool, until_ms: float
    ) -> None:
        """Requests go to all instances at once, and count when all have answered. An answer is of
        the scheduler's own tuples: if each of several made good for all, they would overdo it.
        """
        busy = self._busy[number]
        for j, account in enumerate(accounts):
            if account.asked is not None and account.late_ms is None:
                self._hear_answer(number, j, account, until_ms)
        if all(account.late_ms is not None for account in accounts):
            for j, account in enumerate(accounts):
                busy[j] += account.late_ms
                account.asked = account.late_ms = None
            self.settled += 1
        if news and all(account.asked is None for account in accounts):
            for j, account in enumerate(accounts):
                account.asked = self._instances[j].got, float(busy[j])
                self.messages += 1

    def _hear_answer(self, number: int, j: int, account: _Account, until_ms: float) -> None:
        """If it was the request's turn: how far estimates were from the truth till then."""
        assert account.asked is not None
        count, estimated_ms = account.asked
        before = self._instances[j].order[account.settled : count]
        if len(before) and self._end[before[-1]] > until_ms - self._settings.latency_ms:
            return
        account.real_ms += float(self._spent[before[self._mine(before, number)], j].sum())
        account.settled, account.late_ms = count, account.real_ms - estimated_ms
        self.messages += 1

    def _learn(self) -> None:
        model = self.model
        if self._settings.pooled:
            self._times = model.times_ms(self._h)
        elif model.is_whole:
            self._times = model.own_times_ms(self._h)

    @property
    def model(self) -> CostModel:
        """What the scheduler has been told."""
        empty = CostSketch(self._settings.shape)
        return CostModel.of([instance.costs.sent or empty for instance in self._instances])

    def error(self, cost_ms: F64, share: F64) -> float:
        """How far estimates are from true costs by author: mean deviation over the mean cost."""
        if self._times is None:
            return 1.0
        missed = np.abs(self._times - cost_ms[: len(self._times), None]).mean(axis=1)
        known = share[: len(missed)]
        return float((missed * known).sum() / (cost_ms[: len(missed)] * known).sum())
