"""Execution times by attribute value: measured in sketches, and what a model expects of them.

An instance of an operator measures in two Count-Min matrices of one shape and one set of hashes
(Rivetti et al. 2016, after Cormode and Muthukrishnan 2005): F counts tuples, W adds up their
execution times. A value has one cell per row of the matrix; other values may share it, so F never
says too little. The row with the least F has the least company, and W / F of that cell estimates
the value's mean execution time. Everything is linear: sketches add up, in any order.

A slow host is slow for all values, and a value that costs much in one instance does in all. So a
`CostModel` starts from what all instances know of a value together, times the *speed* of the
instance, and gives way to what the instance itself has measured as that grows. The paper keeps the
instances apart: each then has to see every value by itself (docs/decisions/0012).
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.arrays import F64, I32, I64, U64, Bools

EPSILON, DELTA, SEED = 0.0005, 0.05, 7  # a sketch of 3 x 5,437 cells, 261 kB
_HALF = np.uint64(32)


@dataclass(frozen=True)
class SketchShape:
    """Rows and columns of a sketch, and the seed of its hash functions."""

    depth: int
    width: int
    seed: int = SEED

    def __post_init__(self) -> None:
        if self.depth < 1 or self.width < 1:
            raise ValueError(
                f"a sketch of {self.depth} x {self.width} cells; it needs one at least"
            )

    @classmethod
    def within(
        cls, epsilon: float = EPSILON, delta: float = DELTA, seed: int = SEED
    ) -> SketchShape:
        """Counts are over by more than epsilon of the total with probability delta at most.

        Examples:
            >>> SketchShape.within(epsilon=0.7, delta=0.25)
            SketchShape(depth=2, width=4, seed=7)
        """
        if not (0 < epsilon < 1 and 0 < delta < 1):
            raise ValueError(f"epsilon={epsilon}, delta={delta}; both lie between 0 and 1")
        return cls(math.ceil(math.log(1 / delta)), math.ceil(math.e / epsilon), seed)

    @cached_property
    def _factors(self) -> U64:
        draw = np.random.default_rng(self.seed)
        return draw.integers(0, 1 << 64, (3, self.depth, 1), np.uint64)

    def cells(self, h: U64) -> I64:
        """Where values lie: `cells[row, i]`, numbered through the whole matrix.

        Pair-multiply-shift (Thorup): pairwise independent in the upper 32 bits, which are then
        scaled to the width.
        """
        a, b, c = self._factors
        spread = ((a + h) * (b + (h >> _HALF)) + c) >> _HALF
        columns = (spread * np.uint64(self.width)) >> _HALF
        first = np.arange(self.depth, dtype=np.int64)[:, None] * self.width
        placed: I64 = columns.astype(np.int64) + first
        return placed

    def least(self, h: U64, frequency: F64) -> I64:
        """For each value the one of its cells that has least company."""
        cells = self.cells(h)
        chosen: I64 = np.take_along_axis(cells, frequency[cells].argmin(axis=0)[None], axis=0)[0]
        return chosen


@dataclass
class CostSketch:
    """Frequencies F and cumulated execution times W (milliseconds) of hashed attribute values.

    Guarantee: the least F of a value's cells is never below the truth, and above it by more than
    epsilon times the total with probability at most delta; so is the time in that cell. W / F lies
    between the least and the largest mean cost of the values that share it.

    Only cells in use are held, `frequency[i]` and `time_ms[i]` of cell `cells[i]`, in order: a task
    sees few values, and to touch every cell would cost it more than its rows. Memory: 24 bytes a
    cell in use. Cost of an update: about 0.2 microseconds a value.
    """

    shape: SketchShape
    cells: I64 = field(default_factory=lambda: np.empty(0, np.int64))
    frequency: F64 = field(default_factory=lambda: np.empty(0))
    time_ms: F64 = field(default_factory=lambda: np.empty(0))

    @classmethod
    def of_cells(cls, shape: SketchShape, frequency: F64, time_ms: F64) -> CostSketch:
        """From the whole matrices, cell by cell."""
        at = np.flatnonzero(frequency)
        return cls(shape, at, frequency[at], time_ms[at])

    @property
    def rows(self) -> float:
        return float(self.frequency.sum() / self.shape.depth)

    @property
    def total_ms(self) -> float:
        return float(self.time_ms.sum() / self.shape.depth)

    def update(self, h: U64, time_ms: F64, count: F64 | None = None) -> None:
        """Add tuples; with `count`, entry i stands for so many tuples that took `time_ms[i]`."""
        depth = self.shape.depth
        at, place = self._numbered(self.shape.cells(h).reshape(-1))
        counts = None if count is None else np.tile(count, depth)
        frequency = np.bincount(place, counts, len(at)).astype(np.float64)
        spent_ms = np.bincount(place, np.tile(time_ms, depth), len(at)).astype(np.float64)
        self._add(at, frequency, spent_ms)

    def merge(self, other: CostSketch) -> None:
        """Add another instance's, task's or epoch's sketch of the same shape."""
        if other.shape != self.shape:
            raise ValueError(f"cannot add a sketch of {other.shape} to one of {self.shape}")
        self._add(other.cells, other.frequency, other.time_ms)

    def decay(self, factor: float) -> None:
        """Make what was seen so far weigh less than what will be; estimates stay as they are."""
        self.frequency = self.frequency * factor
        self.time_ms = self.time_ms * factor

    def copy(self) -> CostSketch:
        """A sketch that goes its own way: arrays are replaced when they change, and so shared."""
        return CostSketch(self.shape, self.cells, self.frequency, self.time_ms)

    def __reduce__(self) -> tuple[Any, ...]:
        cells = self.cells.astype(np.int32)
        return _from_cells, (self.shape, cells, self.frequency, self.time_ms)

    def held_against(self, known: CostSketch) -> tuple[F64, F64]:
        """Per cell that both know: the time spent, and what `known` says of as many tuples."""
        place, found = _find(known.cells, self.cells)
        mine, theirs = np.flatnonzero(found), place[found]
        both = (self.frequency[mine] > 0) & (known.frequency[theirs] > 0)
        mine, theirs = mine[both], theirs[both]
        expected = self.frequency[mine] * known.time_ms[theirs] / known.frequency[theirs]
        return self.time_ms[mine], expected

    def _numbered(self, cells: I64) -> tuple[I64, I64]:
        """The distinct ones, in order, and the place of each among them."""
        size = self.shape.depth * self.shape.width
        if len(cells) < size:
            at, place = np.unique(cells, return_inverse=True)
            return at, place.reshape(-1)
        used = np.zeros(size, np.bool_)
        used[cells] = True
        return np.flatnonzero(used), (np.cumsum(used) - 1)[cells]

    def _add(self, cells: I64, frequency: F64, time_ms: F64) -> None:
        place, found = _find(self.cells, cells)
        held = place[found]
        more, longer = self.frequency.copy(), self.time_ms.copy()
        more[held] += frequency[found]
        longer[held] += time_ms[found]
        new = ~found
        self.cells = np.insert(self.cells, place[new], cells[new])
        self.frequency = np.insert(more, place[new], frequency[new])
        self.time_ms = np.insert(longer, place[new], time_ms[new])


def _find(cells: I64, wanted: I64) -> tuple[I64, Bools]:
    """Where cells lie among others, all in order, and whether they do."""
    place = np.searchsorted(cells, wanted)
    if not len(cells):
        return place, np.zeros(len(wanted), np.bool_)
    return place, cells[np.minimum(place, len(cells) - 1)] == wanted


def _from_cells(shape: SketchShape, cells: I32, frequency: F64, time_ms: F64) -> CostSketch:
    return CostSketch(shape, cells.astype(np.int64), frequency, time_ms)


# --- what a tuple will take in each instance ------------------------------------------------------

OWN_ROWS = 16.0  # so many tuples of a value in an instance weigh as much as what all know of it
PRIOR_ROWS = 0.25  # a value counts as one never seen until it was, or if that is long forgotten
BELIEVED = 2.0  # an instance's mean of a value counts up to so many times that of the others ...
WITNESS_ROWS = 0.5  # ... if they have seen so much of it
SPEED_ROWS = 32.0  # so many tuples say that an instance is as fast as the others
SPEED_ROUNDS = 8  # of fitting costs and speeds in turn: enough to agree in three digits


def believed_ms(count: F64, time_ms: F64) -> F64:
    """The times `[j, i]` that instances j tell of values i, as they count for all: at most twice
    what the others would say.

    A pause of the machine makes a tuple look many times as dear, but in one instance only. What is
    truly dear is so for others too, so it is believed as soon as a second one has seen it.

    Examples:
        >>> believed_ms(np.array([[1.0], [1.0], [2.0]]), np.array([[1.0], [30.0], [2.0]])).T
        array([[1., 2., 2.]])
    """
    others, theirs_ms = count.sum(axis=0) - count, time_ms.sum(axis=0) - time_ms
    limit_ms = BELIEVED * count * theirs_ms / np.maximum(others, 1e-300)
    vetoed = (limit_ms < time_ms) & (others >= np.minimum(WITNESS_ROWS, count))
    believed: F64 = np.where(vetoed, limit_ms, time_ms)
    return believed


@dataclass(frozen=True)
class CostModel:
    """What k instances have told, `sketches[j]` of instance j, all of one shape; `former` is what
    those had told that are gone, in times of the mean instance.

    It is frozen: every attempt of a task must schedule alike. Memory: that of the sketches, and 16
    bytes a cell. An estimate takes about 0.2 microseconds a value and 30 ns an instance.

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

    sketches: tuple[CostSketch, ...]
    former: CostSketch

    @classmethod
    def of(cls, sketches: Sequence[CostSketch], former: CostSketch | None = None) -> CostModel:
        gone = CostSketch(sketches[0].shape) if former is None else former.copy()
        return cls(tuple(sketch.copy() for sketch in sketches), gone)

    @property
    def shape(self) -> SketchShape:
        return self.sketches[0].shape

    @property
    def instances(self) -> int:
        return len(self.sketches)

    @cached_property
    def speed(self) -> F64:
        """Time of an instance over the mean one: 3 is three times slower.

        Measured on the same values: time(value, j) = cost(value) * speed(j), costs and speeds
        fitted in turn. The mean speed over all tuples is 1.
        """
        counted = np.array([sketch.frequency.sum() for sketch in self.sketches])
        spent = np.array([sketch.time_ms.sum() for sketch in self.sketches])
        speed = np.ones(len(counted))
        if counted.sum() <= 0.0 or spent.sum() <= 0.0:
            return speed
        floor = self.shape.depth * SPEED_ROWS * spent.sum() / counted.sum()
        _, places = self._united
        for _ in range(SPEED_ROUNDS):
            cost = self._time_ms(speed) / np.maximum(self._counts, 1e-300)
            # Not `@`: tasks on different processors must get the same bits.
            fitted = [
                (known.frequency * cost[place]).sum()
                for known, place in zip(self.sketches, places, strict=False)
            ]
            speed = (spent + floor) / (np.array(fitted) + floor)
            speed /= (speed * counted).sum() / counted.sum()
        return speed

    @cached_property
    def together(self) -> CostSketch:
        """What all know, in times of the mean instance."""
        return CostSketch(self.shape, self._united[0], self._counts, self._time_ms(self.speed))

    @property
    def _parts(self) -> tuple[CostSketch, ...]:
        return (*self.sketches, self.former)

    @cached_property
    def _united(self) -> tuple[I64, list[I64]]:
        """The cells that anybody uses, in order, and where those of each part lie among them."""
        used = np.zeros(self.shape.depth * self.shape.width, np.bool_)
        for part in self._parts:
            used[part.cells] = True
        cells = np.flatnonzero(used)
        return cells, [np.searchsorted(cells, part.cells) for part in self._parts]

    @cached_property
    def _counts(self) -> F64:
        cells, places = self._united
        counts = np.zeros(len(cells))
        for part, place in zip(self._parts, places, strict=True):
            counts[place] += part.frequency
        return counts

    def _time_ms(self, speed: F64) -> F64:
        cells, places = self._united
        time_ms = np.zeros(len(cells))
        speeds = [*speed.tolist(), 1.0]
        for part, place, factor in zip(self._parts, places, speeds, strict=True):
            time_ms[place] += part.time_ms / factor
        return time_ms

    @cached_property
    def _frequency(self) -> F64:
        """F of all instances together, of every cell."""
        frequency = np.zeros(self.shape.depth * self.shape.width)
        frequency[self.together.cells] = self.together.frequency
        return frequency

    @cached_property
    def _unseen_ms(self) -> float:
        """A value that was never seen counts as those seen once or less: what is frequent may cost
        otherwise. Cells of more tuples weigh as much as one.
        """
        known = self.together
        weight = np.minimum(1.0, 1.0 / np.maximum(known.frequency, 1e-300))
        return float((known.time_ms * weight).sum() / max(1e-300, (known.frequency * weight).sum()))

    def times_ms(self, h: U64) -> F64:
        """`[i, j]`: what a tuple of value i takes in instance j."""
        # In order, which makes the look-ups several times as fast.
        chosen, value = np.unique(self.shape.least(h, self._frequency), return_inverse=True)
        count = np.zeros((self.instances + 1, len(chosen)))
        time_ms = np.zeros_like(count)
        for j, part in enumerate(self._parts):
            place, found = _find(part.cells, chosen)
            count[j, found] = part.frequency[place[found]]
            time_ms[j, found] = part.time_ms[place[found]]
        speed = np.append(self.speed, 1.0)[:, None]
        known = (believed_ms(count, time_ms / speed).sum(axis=0) + PRIOR_ROWS * self._unseen_ms) / (
            count.sum(axis=0) + PRIOR_ROWS
        )
        estimate = (time_ms + OWN_ROWS * known * speed) / (count + OWN_ROWS)
        times: F64 = estimate[:-1].T[value.reshape(-1)]
        return times

    def own_times_ms(self, h: U64) -> F64:
        """The same from each instance's own sketches and nothing else, as Rivetti et al. do: W / F
        where F is least. A value that an instance has not seen counts as its mean tuple there.
        """
        times: F64 = np.empty((len(h), self.instances))
        for j, sketch in enumerate(self.sketches):
            times[:, j] = sketch.time_ms.sum() / max(1e-300, float(sketch.frequency.sum()))
            frequency = np.zeros(self.shape.depth * self.shape.width)
            frequency[sketch.cells] = sketch.frequency
            place, found = _find(sketch.cells, self.shape.least(h, frequency))
            own = place[found]
            times[found, j] = sketch.time_ms[own] / sketch.frequency[own]
        return times

    @cached_property
    def told_rows(self) -> F64:
        """How many tuples each instance has told of."""
        return np.array([sketch.rows for sketch in self.sketches])

    @cached_property
    def values(self) -> int:
        """How many values instances have told of, about: their cells are distinct, if few."""
        return int(len(self.together.cells) / self.shape.depth)

    @property
    def is_whole(self) -> bool:
        """Has every instance told something?"""
        return bool((self.told_rows > 0).all())

    def seen(self, h: U64) -> F64:
        """How many tuples of each value all instances have told of, at most."""
        counted: F64 = self._frequency[self.shape.cells(h)].min(axis=0)
        return counted

    def resized(self, instances: int) -> CostModel:
        """For another number of instances: new ones know nothing and count as mean ones. What
        those knew that leave is kept.
        """
        new = [CostSketch(self.shape)] * (instances - self.instances)
        model = CostModel.of([*self.sketches[:instances], *new], self.former)
        for gone, speed in zip(self.sketches[instances:], self.speed[instances:], strict=True):
            model.former.merge(replace(gone, time_ms=gone.time_ms / speed))
        return model

    def to_arrow(self, *, fitted: bool = False) -> pa.Table:
        """The cells in use, instance by instance; `former` as one more.

        To fit speeds and add up what all know takes longer than reading all the rest: `fitted` puts
        both beside it.
        """
        parts = (*self._parts, self.together) if fitted else self._parts
        held = [len(part.cells) for part in parts]
        columns = {
            "instance": np.repeat(np.arange(len(parts), dtype=np.int32), held),
            "cell": np.concatenate([part.cells for part in parts]).astype(np.int32),
            "frequency": np.concatenate([part.frequency for part in parts]),
            "time_ms": np.concatenate([part.time_ms for part in parts]),
        }
        facts = {
            "shape": f"{self.shape.depth} {self.shape.width} {self.shape.seed}",
            "instances": str(self.instances),
        }
        if fitted:
            facts |= {"speed": json.dumps(self.speed.tolist()), "together": "last"}
        return pa.table(columns, metadata=facts)

    @classmethod
    def from_arrow(cls, table: pa.Table) -> CostModel:
        facts = table.schema.metadata
        shape = SketchShape(*map(int, facts[b"shape"].split()))
        last = int(facts[b"instances"]) + (b"together" in facts)
        ends = np.searchsorted(table["instance"].to_numpy(), np.arange(1, last + 1))
        columns = zip(
            np.split(table["cell"].to_numpy().astype(np.int64), ends),
            np.split(table["frequency"].to_numpy(), ends),
            np.split(table["time_ms"].to_numpy(), ends),
            strict=True,
        )
        parts = [CostSketch(shape, *part) for part in columns]
        together = parts.pop() if b"together" in facts else None  # not in files of before
        model = cls(tuple(parts[:-1]), parts[-1])
        if b"speed" in facts:  # JSON gives every float back bit by bit
            vars(model)["speed"] = np.array(json.loads(facts[b"speed"]))
        if together is not None:
            vars(model)["together"] = together
        return model
