"""When an instance tells what it has measured: not before it is stable, and again if it changes.

A state machine per instance, looked at once per window of tuples (after Rivetti et al. 2016):

    START        the first window is being measured
    STABILIZING  windows are added up until W / F changes by less than the tolerance
    WATCHING     sent; new windows are held against what was sent

Where the paper sends whenever it is stable and then forgets everything, this one stays silent
while the times are as sent, sends again whenever it knows twice as many tuples, and begins anew,
with little weight on the past, when a window surprises it. Messages grow with the logarithm of
the stream and with the number of changes, not with the length of the stream.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np

from headgate.sketch.count_min import F64, CostSketch, SketchShape

KEPT_SHARE = 0.25  # of a window's weight: what the past counts after a change


class Phase(Enum):
    START = "start"
    STABILIZING = "stabilizing"
    WATCHING = "watching"


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
    """One instance's sketches and its state; `add` says when to send `sketch`."""

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
