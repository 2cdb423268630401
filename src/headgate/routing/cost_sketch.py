"""Count-Min sketches of execution times: how often a value occurred, and its total cost.

Two matrices of one shape and one set of hashes (Rivetti et al. 2016, after Cormode and
Muthukrishnan 2005): F counts tuples, W adds up their execution times. A value has one cell per row
of the matrix; other values may share it, so F never says too little. The row with the least F has
the least company, and W / F of that cell is the estimate of the value's mean execution time.

Everything is linear: sketches of batches, tasks and epochs add up, in any order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any

import numpy as np

from headgate.arrays import F64, I32, I64, U64

EPSILON, DELTA, SEED = 0.0005, 0.05, 7  # a sketch of 3 x 5,437 cells, 261 kB
_HALF = np.uint64(32)


@dataclass(frozen=True)
class SketchShape:
    """Rows and columns of a sketch, and the seed of its hash functions.

    Two sketches can be added up if their shapes are equal.
    """

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


@dataclass
class CostSketch:
    """Frequencies F and cumulated execution times W (milliseconds) of hashed attribute values.

    Guarantee: the least F of a value's cells is never below the truth, and above it by more than
    epsilon times the total with probability at most delta; so is the time in that cell. W / F lies
    between the least and the largest mean cost of the values that share it. Memory: 16 bytes a
    cell. Cost of an update: about 0.1 microseconds a tuple. `CostModel` makes estimates of it.
    """

    shape: SketchShape
    frequency: F64 = field(default_factory=lambda: np.empty(0))
    time_ms: F64 = field(default_factory=lambda: np.empty(0))
    rows: float = 0.0
    total_ms: float = 0.0

    def __post_init__(self) -> None:
        if not len(self.frequency):
            self.frequency = np.zeros(self.shape.depth * self.shape.width)
            self.time_ms = np.zeros(self.shape.depth * self.shape.width)

    def update(self, h: U64, time_ms: F64, count: F64 | None = None) -> None:
        """Add tuples; with `count`, entry i stands for so many tuples that took `time_ms[i]`."""
        size = len(self.frequency)
        for cells in self.shape.cells(h):
            self.frequency += np.bincount(cells, count, size)
            self.time_ms += np.bincount(cells, time_ms, size)
        self.rows += float(len(h) if count is None else count.sum())
        self.total_ms += float(time_ms.sum())

    def merge(self, other: CostSketch) -> None:
        """Add another instance's, task's or epoch's sketch of the same shape."""
        if other.shape != self.shape:
            raise ValueError(f"cannot add a sketch of {other.shape} to one of {self.shape}")
        self.frequency += other.frequency
        self.time_ms += other.time_ms
        self.rows += other.rows
        self.total_ms += other.total_ms

    def decay(self, factor: float) -> None:
        """Make what was seen so far weigh less than what will be; estimates stay as they are."""
        self.frequency *= factor
        self.time_ms *= factor
        self.rows *= factor
        self.total_ms *= factor

    def copy(self) -> CostSketch:
        return CostSketch(
            self.shape, self.frequency.copy(), self.time_ms.copy(), self.rows, self.total_ms
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled by the cells that are not zero: a task that saw few values sends few bytes."""
        at = np.flatnonzero(self.frequency)
        cells = (at.astype(np.int32), self.frequency[at], self.time_ms[at])
        return _from_cells, (self.shape, *cells, self.rows, self.total_ms)


def _from_cells(
    shape: SketchShape, at: I32, frequency: F64, time_ms: F64, rows: float, total_ms: float
) -> CostSketch:
    sketch = CostSketch(shape, rows=rows, total_ms=total_ms)
    sketch.frequency[at], sketch.time_ms[at] = frequency, time_ms
    return sketch


KEPT_SHARE = 0.25  # of a window's weight: what the past counts after a change


class Phase(Enum):
    """Where an instance is on its way to being sent."""

    START = "start"  # the first window is being measured
    STABILIZING = "stabilizing"  # windows are added up until W / F hardly changes
    WATCHING = "watching"  # sent; new windows are held against what was sent


@dataclass(frozen=True)
class Stability:
    """Tuples between two looks, and how much change is none.

    `window_rows` while it becomes stable, `watch_rows` after that: a few tuples often differ from
    what was sent, many do not.
    `tolerance`: mean relative change of W / F, weighted by time, below which a sketch is stable.
    `drift`: relative error of a window's total time above which times have changed;
    `scatter`: growth of the error cell by cell, over its usual size, which also means that.
    """

    window_rows: int = 16
    watch_rows: int = 128
    tolerance: float = 0.25
    drift: float = 0.25
    scatter: float = 1.5

    def __post_init__(self) -> None:
        if (
            min(self.window_rows, self.watch_rows) < 1
            or min(self.tolerance, self.drift) <= 0
            or self.scatter < 1
        ):
            raise ValueError(f"{self}: window and tolerances are positive, scatter at least 1")


class InstanceCosts:
    """What one instance has measured, and when it is sent: `add` says when `sent` is new.

    Looked at once per window of tuples (after Rivetti et al. 2016). Where the paper sends whenever
    the sketch is stable and then forgets everything, this one stays silent while the times are as
    sent, sends again whenever it knows twice as many tuples, and starts over, with little weight on
    the past, when a window surprises it. So messages grow with the logarithm of the stream and with
    the number of changes.
    """

    def __init__(self, shape: SketchShape, settings: Stability | None = None) -> None:
        self.settings = settings or Stability()
        self.phase = Phase.START
        self.sketch = CostSketch(shape)
        self.sent: CostSketch | None = None
        self._window = CostSketch(shape)
        self._snapshot = CostSketch(shape)
        self._usual: float | None = None

    def add(self, measured: CostSketch) -> bool:
        """Take in what the instance measured; True if `sent` is new."""
        self._window.merge(measured)
        send = self._watch() if self.phase is Phase.WATCHING else self._stabilize()
        if send:
            self.sent = self.sketch.copy()
            self.sent.merge(self._window)
            self.phase = Phase.WATCHING
        return send

    def adopt(self, sent: CostSketch) -> None:
        """Go on from what was sent before a restart."""
        self.sent, self.sketch = sent, sent.copy()
        self.phase = Phase.WATCHING if sent.rows else Phase.START

    def _stabilize(self) -> bool:
        """Add a window; stable if it changes little."""
        if self._window.rows < self.settings.window_rows:
            return False
        self._take_window()
        changed = change(
            self.sketch.frequency,
            self.sketch.time_ms,
            self._snapshot.frequency,
            self._snapshot.time_ms,
        )
        first, self._snapshot = self.phase is Phase.START, self.sketch.copy()
        self.phase = Phase.STABILIZING
        return not first and changed <= self.settings.tolerance

    def _watch(self) -> bool:
        """Hold a window against what was sent; send again if so much more is known."""
        assert self.sent is not None
        if self._window.rows >= self.settings.watch_rows:
            window = self._window
            if self._surprised(window):
                self.phase = Phase.STABILIZING
                self.sketch.decay(min(1.0, KEPT_SHARE * window.rows / self.sketch.rows))
                self._usual = None
                self._take_window()
                self._snapshot = self.sketch.copy()
                return False
            self._take_window()
        return self.sketch.rows + self._window.rows >= 2 * self.sent.rows

    def _take_window(self) -> None:
        self.sketch.merge(self._window)
        self._window = CostSketch(self._window.shape)

    def _surprised(self, window: CostSketch) -> bool:
        assert self.sent is not None
        drift, scatter = surprise(
            window.frequency, window.time_ms, self.sent.frequency, self.sent.time_ms
        )
        usual = self._usual
        self._usual = scatter if usual is None else 0.75 * usual + 0.25 * scatter
        grown = usual is not None and scatter > self.settings.scatter * usual + 0.05
        return drift > self.settings.drift or grown


# --- plain array code, so that numba can compile it for the simulation -------------------------
def change(frequency: F64, time_ms: F64, old_frequency: F64, old_time_ms: F64) -> float:
    """Mean relative change of W / F over the cells that both know, weighted by time."""
    both = np.flatnonzero((frequency > 0) & (old_frequency > 0))
    spent = time_ms[both]
    before = frequency[both] * old_time_ms[both] / old_frequency[both]
    total = spent.sum()
    return float(np.abs(spent - before).sum() / total) if total > 0.0 else 1.0


def surprise(
    frequency: F64, time_ms: F64, known_frequency: F64, known_time_ms: F64
) -> tuple[float, float]:
    """How far a window's times are from those known: in total, and cell by cell."""
    both = np.flatnonzero((frequency > 0) & (known_frequency > 0))
    spent = time_ms[both]
    expected = frequency[both] * known_time_ms[both] / known_frequency[both]
    larger = max(spent.sum(), expected.sum())
    if larger <= 0.0:
        return 0.0, 0.0
    drift = abs(spent.sum() - expected.sum()) / larger
    return float(drift), float(np.abs(spent - expected).sum() / larger)
