"""The same stream in micro-batches: an epoch takes all that has arrived, and ends as a whole.

An epoch begins when the one before has ended. Its tuples are known before any is processed, so a
schedule may look at all of them. The stage ends with its slowest instance, and every tuple of the
epoch is complete then: imbalance is paid by all. Costs of engine and tasks are parameters.

Ways to spread an epoch's tuples: round robin, the online greedy, longest first, and Spark's own
remedy, which needs no estimates: many small tasks that free cores take one after the other, each
with a fixed cost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from headgate.arrays import F64, I32
from headgate.routing.costs import CostModel, CostSketch, SketchShape
from headgate.routing.hashing import mix
from headgate.routing.instance_costs import InstanceCosts
from headgate.slot.cost_shuffle import greedy, longest_first, round_robin
from headgate_lab.osg.stream import Stream


@dataclass(frozen=True)
class EngineCosts:
    """What an epoch and a task cost beside their tuples, in milliseconds."""

    epoch_ms: float = 300.0
    task_ms: float = 10.0
    tasks_per_core: int = 8


@dataclass(frozen=True)
class EpochsDone:
    """Per tuple its completion time; per epoch tuples, stage, and busiest instance over mean."""

    completion_ms: F64
    tuples: list[int]
    stage_ms: list[float]
    imbalance: list[float]


class Spreading:
    """Decides where an epoch's tuples go; `learn` is told what they took."""

    def targets(self, author: I32, spent_ms: F64, start: int) -> I32:
        raise NotImplementedError

    def learn(self, author: I32, spent_ms: F64, target: I32) -> None:
        """Nothing to learn, unless a subclass says so."""


class RoundRobin(Spreading):
    def targets(self, author: I32, spent_ms: F64, start: int) -> I32:
        return round_robin(start, len(author), spent_ms.shape[1])


Schedule = Callable[[F64, "np.ndarray[tuple[int], np.dtype[np.int64]]", F64, int], I32]


class ByCost(Spreading):
    """As flows do it: sketches per instance, a model when one is sent, idle instances at first."""

    def __init__(self, schedule: Schedule, authors: int, instances: int) -> None:
        self._schedule = schedule
        self._h = mix(np.arange(authors, dtype=np.uint64))
        self._shape = SketchShape.within()
        self._instances = [InstanceCosts(self._shape) for _ in range(instances)]
        self._times: F64 | None = None

    def targets(self, author: I32, spent_ms: F64, start: int) -> I32:
        k = spent_ms.shape[1]
        if self._times is None:
            return round_robin(start, len(author), k)
        return self._schedule(self._times, author.astype(np.int64), np.zeros(k), 0)

    def learn(self, author: I32, spent_ms: F64, target: I32) -> None:
        news = False
        for j, instance in enumerate(self._instances):
            mine = np.flatnonzero(target == j)
            if len(mine):
                sketch = CostSketch(self._shape)
                sketch.update(self._h[author[mine]], spent_ms[mine, j])
                news |= instance.add(sketch)
        if news:
            empty = CostSketch(self._shape)
            model = CostModel.of([instance.sent or empty for instance in self._instances])
            self._times = model.times_ms(self._h)


class AllKnown(Spreading):
    """The bound: longest first with the true times."""

    def targets(self, author: I32, spent_ms: F64, start: int) -> I32:
        return longest_first(spent_ms, np.arange(len(author)), np.zeros(spent_ms.shape[1]))


def run_epochs(what: Stream, spreading: Spreading | None, costs: EngineCosts) -> EpochsDone:
    """Process the stream epoch by epoch; without a spreading, as many small tasks."""
    total = len(what.author)
    completion = np.empty(total)
    done = EpochsDone(completion, [], [], [])
    first, now = 0, 0.0
    while first < total:
        now = max(now, float(what.arrival_ms[first]))
        last = int(np.searchsorted(what.arrival_ms, now, side="right"))
        author, spent = what.author[first:last], what.spent_ms[first:last]
        if spreading is None:
            busy = small_tasks(spent, costs)
        else:
            target = spreading.targets(author, spent, first)
            own = spent[np.arange(len(target)), target]
            busy = np.full(spent.shape[1], costs.task_ms)
            busy += np.bincount(target, own, spent.shape[1])
            spreading.learn(author, spent, target)
        stage_ms = float(busy.max())
        now += costs.epoch_ms + stage_ms
        completion[first:last] = now - what.arrival_ms[first:last]
        done.tuples.append(last - first)
        done.stage_ms.append(stage_ms)
        done.imbalance.append(stage_ms / float(busy.mean()))
        first = last
    return done


def small_tasks(spent_ms: F64, costs: EngineCosts) -> F64:
    """How long each core is busy: tuples are dealt out to small tasks, which free cores take."""
    k = spent_ms.shape[1]
    tasks = costs.tasks_per_core * k
    of_task = np.arange(len(spent_ms)) % tasks
    work = np.full((tasks, k), costs.task_ms)
    np.add.at(work, of_task, spent_ms)
    busy = np.zeros(k)
    greedy(work, np.arange(tasks), busy)
    return busy


def spreadings(authors: int, instances: int) -> dict[str, Spreading | None]:
    """All ways, by name."""
    return {
        "round_robin": RoundRobin(),
        "many_small_partitions": None,
        "osg": ByCost(greedy, authors, instances),
        "longest_first": ByCost(longest_first, authors, instances),
        "all_known": AllKnown(),
    }
