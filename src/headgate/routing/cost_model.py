"""What a tuple will take in each instance, from the sketches that the instances have sent.

A slow host is slow for all values, and a value that costs much in one instance does in all. So an
estimate starts from what all instances know of the value together, times the *speed* of the
instance, and gives way to what the instance itself has measured as that grows. The paper keeps the
instances apart: each then has to see every value by itself (docs/decisions/0012).

A model is frozen: every attempt of a task must schedule alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.arrays import F64, I32, I64, U64
from headgate.routing.cost_sketch import CostSketch, SketchShape

OWN_ROWS = 16.0  # so many tuples of a value in an instance weigh as much as what all know of it
PRIOR_ROWS = 0.25  # a value counts as the mean one until it was seen, or if that is long forgotten
SPEED_ROWS = 32.0  # so many tuples say that an instance is as fast as the others
_ROUNDS = 8  # of fitting costs and speeds in turn
SMALL_ROWS = 2_000  # scheduled by a loop in Python: loading numba takes longer


@dataclass(frozen=True)
class CostModel:
    """Sketches of k instances side by side: `frequency[j]` and `time_ms[j]` of instance j.

    Memory: k times that of a sketch. An estimate takes about 0.2 microseconds a value and 10 ns an
    instance.

    Examples:
        >>> shape = SketchShape.within(0.01, 0.1)
        >>> fast, slow = CostSketch(shape), CostSketch(shape)
        >>> h = np.array([1, 2], np.uint64)
        >>> for _ in range(1000):
        ...     fast.update(h, np.array([1.0, 10.0]))
        ...     slow.update(h, np.array([3.0, 30.0]))
        >>> CostModel.of([fast, slow]).times_ms(h).round(1).tolist()
        [[1.0, 3.0], [10.0, 30.0]]
    """

    shape: SketchShape
    frequency: F64
    time_ms: F64

    @classmethod
    def of(cls, sketches: Sequence[CostSketch]) -> CostModel:
        shape = sketches[0].shape
        return cls(
            shape,
            np.stack([sketch.frequency for sketch in sketches]),
            np.stack([sketch.time_ms for sketch in sketches]),
        )

    @property
    def instances(self) -> int:
        return len(self.frequency)

    @cached_property
    def rows(self) -> F64:
        """Tuples that each instance has measured."""
        counted: F64 = self.frequency.sum(axis=1) / self.shape.depth
        return counted

    @cached_property
    def speed(self) -> F64:
        """Time of an instance over the mean one: 3 is three times slower."""
        return fit_speeds(self.frequency, self.time_ms, self.shape.depth)

    @cached_property
    def _pooled(self) -> tuple[F64, F64, float]:
        frequency = self.frequency.sum(axis=0)
        time_ms = (self.time_ms / self.speed[:, None]).sum(axis=0)
        return frequency, time_ms, float(time_ms.sum() / max(1e-300, frequency.sum()))

    def times_ms(self, h: U64) -> F64:
        """`[i, j]`: what a tuple of value i takes in instance j. Never seen: the mean tuple."""
        frequency, time_ms, mean_ms = self._pooled
        cells = self.shape.cells(h)
        chosen = np.take_along_axis(cells, frequency[cells].argmin(axis=0)[None], axis=0)[0]
        count = frequency[chosen]
        known = (time_ms[chosen] + PRIOR_ROWS * mean_ms) / (count + PRIOR_ROWS)
        expected = known[:, None] * self.speed
        own = self.frequency[:, chosen].T
        spent = self.time_ms[:, chosen].T
        estimate: F64 = (spent + OWN_ROWS * expected) / (own + OWN_ROWS)
        return estimate

    def resized(self, instances: int) -> CostModel:
        """For another number of instances: new ones know nothing and count as mean ones."""
        if instances == self.instances:
            return self
        kept = min(instances, self.instances)
        frequency = np.zeros((instances, self.frequency.shape[1]))
        time_ms = np.zeros((instances, self.frequency.shape[1]))
        frequency[:kept], time_ms[:kept] = self.frequency[:kept], self.time_ms[:kept]
        return CostModel(self.shape, frequency, time_ms)

    def to_arrow(self) -> pa.Table:
        """The cells that are not zero, instance by instance."""
        instance, cell = np.nonzero(self.frequency)
        return pa.table(
            {
                "instance": pa.array(instance.astype(np.int32)),
                "cell": pa.array(cell.astype(np.int32)),
                "frequency": pa.array(self.frequency[instance, cell]),
                "time_ms": pa.array(self.time_ms[instance, cell]),
            }
        ).replace_schema_metadata(
            {
                "shape": f"{self.shape.depth} {self.shape.width} {self.shape.seed}",
                "instances": str(self.instances),
            }
        )

    @classmethod
    def from_arrow(cls, table: pa.Table) -> CostModel:
        facts = table.schema.metadata
        depth, width, seed = map(int, facts[b"shape"].split())
        frequency = np.zeros((int(facts[b"instances"]), depth * width))
        time_ms = np.zeros_like(frequency)
        at = table["instance"].to_numpy(), table["cell"].to_numpy()
        frequency[at], time_ms[at] = table["frequency"].to_numpy(), table["time_ms"].to_numpy()
        return cls(SketchShape(depth, width, seed), frequency, time_ms)


def fit_speeds(frequency: F64, time_ms: F64, depth: int) -> F64:
    """How slow each instance is, measured on the same values: w(t, j) = cost(t) * speed(j).

    Costs and speeds are fitted in turn. The mean speed over all tuples is 1. Plain array code, so
    that numba can compile it for the simulation.
    """
    counted = frequency.sum(axis=1)
    spent = time_ms.sum(axis=1)
    speed = np.ones(len(counted))
    if counted.sum() <= 0.0 or spent.sum() <= 0.0:
        return speed
    floor = depth * SPEED_ROWS * spent.sum() / counted.sum()
    together = frequency.sum(axis=0)
    for _ in range(_ROUNDS):
        pooled = np.zeros(len(together))
        for j in range(len(speed)):
            pooled += time_ms[j] / speed[j]
        cost = pooled / np.maximum(together, 1e-300)
        for j in range(len(speed)):
            expected = (frequency[j] * cost).sum()
            speed[j] = (spent[j] + floor) / (expected + floor)
        speed /= (speed * counted).sum() / counted.sum()
    return speed


# --- which instance takes which tuple, if what every tuple takes is known or estimated -----------


def greedy(times: F64, group: I64, busy: F64, first: int = 0) -> I32:
    """Each tuple, in the order they come, to the instance that would be done with it first (the
    online scheduler of Rivetti et al. 2016). `busy` is each instance's time so far, and grows.

    `times[group[i], j]` is what tuple i takes in instance j. Of equals the first one wins, counted
    from `first`, so that several schedulers do not all begin with the same instance.
    """
    return _assign(times, group, busy, first)


def longest_first(times: F64, group: I64, busy: F64, first: int = 0) -> I32:
    """As `greedy`, but tuples that take long are placed first; equals in the order they come."""
    heaviest = times.min(axis=1)
    order = np.argsort(-heaviest[group], kind="stable")
    targets = np.empty(len(group), np.int32)
    targets[order] = _assign(times, group[order], busy, first)
    return targets


def round_robin(start: int, rows: int, slots: int) -> I32:
    """One after the other, from instance `start % slots` on."""
    return ((start + np.arange(rows)) % slots).astype(np.int32)


def _assign(times: F64, group: I64, busy: F64, first: int) -> I32:
    if times.shape[1] != len(busy):
        raise ValueError(f"times of {times.shape[1]} instances, but {len(busy)} are there")
    work: Any = _loop
    if len(group) > SMALL_ROWS:
        from headgate.routing.chooser import assign as work  # late: it loads numba
    targets: I32 = work(np.ascontiguousarray(times), group, busy, first % len(busy))
    return targets


def _loop(times: F64, group: I64, busy: F64, first: int) -> I32:
    k = len(busy)
    turn = [(first + j) % k for j in range(k)]
    done, costs = busy.tolist(), times.tolist()
    targets = np.empty(len(group), np.int32)
    for i, g in enumerate(group.tolist()):
        cost = costs[g]
        best = min(turn, key=lambda j: done[j] + cost[j])
        done[best] += cost[best]
        targets[i] = best
    busy[:] = done
    return targets
