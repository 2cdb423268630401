"""Count-Min sketches of execution times: how often an attribute came, and what it cost in all.

Two matrices of one shape and one set of hashes (Rivetti et al. 2016, after Cormode and
Muthukrishnan 2005): F counts tuples, W adds up their execution times. A value has one cell per row
of the matrix; other values may share it, so F never says too little. The row with the least F has
the least company, and W / F of that cell is the estimate of the value's mean execution time.

Everything is linear: sketches of batches, tasks and epochs add up, in any order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.routing.hashing import U64

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
I32 = npt.NDArray[np.int32]

EPSILON, DELTA, SEED = 0.0005, 0.05, 7
CELL_BYTES = 16  # frequency and time
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

    @property
    def bytes(self) -> int:
        """What a sketch of this shape takes, both matrices."""
        return self.depth * self.width * CELL_BYTES

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

    Guarantee: `frequency_of` is never below the truth, and above it by more than epsilon times the
    total with probability at most delta; so is the time in the cell. An estimate lies between the
    least and the largest mean cost of the values that share its cell. Memory: `shape.bytes`.
    Cost of an update: about 0.1 microseconds a tuple.

    Examples:
        >>> sketch = CostSketch(SketchShape.within(0.01, 0.1))
        >>> h = np.array([1, 2, 1], np.uint64)
        >>> sketch.update(h, np.array([4.0, 30.0, 6.0]))
        >>> sketch.estimate_ms(np.array([1, 2], np.uint64)).tolist()
        [5.0, 30.0]
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

    def reset(self) -> None:
        self.decay(0.0)

    def copy(self) -> CostSketch:
        return CostSketch(
            self.shape, self.frequency.copy(), self.time_ms.copy(), self.rows, self.total_ms
        )

    @property
    def mean_ms(self) -> float:
        return self.total_ms / self.rows if self.rows else 0.0

    @property
    def bytes(self) -> int:
        return self.shape.bytes

    def frequency_of(self, h: U64) -> F64:
        """How often values came, at least."""
        least: F64 = self.frequency[self.shape.cells(h)].min(axis=0)
        return least

    def estimate_ms(self, h: U64) -> F64:
        """The paper's estimate: W / F in the row of least F; values never seen cost the mean."""
        cells = self.shape.cells(h)
        seen = self.frequency[cells]
        chosen = np.take_along_axis(cells, seen.argmin(axis=0)[None], axis=0)[0]
        count = self.frequency[chosen]
        known = count > 0
        estimate = np.full(len(h), self.mean_ms)
        np.divide(self.time_ms[chosen], count, out=estimate, where=known)
        return estimate

    def to_arrow(self) -> pa.RecordBatch:
        """The cells that are not zero; a task that saw few values sends few bytes."""
        at = np.flatnonzero(self.frequency)
        return pa.RecordBatch.from_arrays(
            [
                pa.array(at.astype(np.int32)),
                pa.array(self.frequency[at]),
                pa.array(self.time_ms[at]),
            ],
            names=["cell", "frequency", "time_ms"],
        ).replace_schema_metadata(
            {
                "shape": f"{self.shape.depth} {self.shape.width} {self.shape.seed}",
                "rows": repr(self.rows),
                "total_ms": repr(self.total_ms),
            }
        )

    @classmethod
    def from_arrow(cls, batch: pa.RecordBatch) -> CostSketch:
        facts = batch.schema.metadata
        depth, width, seed = map(int, facts[b"shape"].split())
        sketch = cls(SketchShape(depth, width, seed))
        at = batch.column(0).to_numpy()
        sketch.frequency[at] = batch.column(1).to_numpy()
        sketch.time_ms[at] = batch.column(2).to_numpy()
        sketch.rows, sketch.total_ms = float(facts[b"rows"]), float(facts[b"total_ms"])
        return sketch
