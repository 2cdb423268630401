"""What one instance has measured, and when it tells: after Rivetti et al. 2016.

The instance itself decides, in the task that measures: sketches leave it when they have become
stable, when it knows twice as much, and when times change. In between nothing is sent, so messages
grow with the logarithm of the stream and with the number of changes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.routing.costs import CostSketch, SketchShape

SURPRISING = 3.0  # times what is expected, or a third: a cell that is further off says no more


def change(sketch: CostSketch, before: CostSketch) -> float:
    """Mean relative change of W / F over the cells that both know, weighted by time."""
    spent, expected = sketch.held_against(before)
    total = spent.sum()
    return float(np.abs(spent - expected).sum() / total) if total > 0.0 else 1.0


def surprise(window: CostSketch, known: CostSketch) -> tuple[float, float]:
    """How far a window's times are from those known: in total, and cell by cell.

    One pause of the machine is no change: a cell counts up to three times what was expected.
    """
    spent, expected = window.held_against(known)
    spent, expected = (
        np.minimum(spent, SURPRISING * expected),
        np.minimum(expected, SURPRISING * spent),
    )
    larger = max(spent.sum(), expected.sum())
    if larger <= 0.0:
        return 0.0, 0.0
    drift = abs(spent.sum() - expected.sum()) / larger
    return float(drift), float(np.abs(spent - expected).sum() / larger)


@dataclass(frozen=True)
class Stability:
    """Tuples between two looks, and how much change is none.

    `window_rows` while it becomes stable, `watch_rows` after that: a few tuples often differ from
    what was sent, many do not.
    `tolerance`: mean relative change of W / F, weighted by time, below which a sketch is stable.
    `drift`: relative error of a window's total time above which times have changed;
    `scatter`: growth of the error cell by cell, over its usual size, which also means that.
    `kept_share`: what the past counts after a change, of a window's weight.
    """

    window_rows: int = 16
    watch_rows: int = 128
    tolerance: float = 0.25
    drift: float = 0.25
    scatter: float = 1.5
    kept_share: float = 0.25

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
    the past, when two windows in turn surprise it: one may have been a pause of the machine. So
    messages grow with the logarithm of the stream and with the number of changes.
    """

    def __init__(self, shape: SketchShape, settings: Stability | None = None) -> None:
        self.settings = settings or Stability()
        self.is_stable = False  # sent, and new windows are held against what was sent
        self.doubts = False  # the last window was a surprise; the next one decides
        self.sketch = CostSketch(shape)
        self.sent: CostSketch | None = None
        self._window = CostSketch(shape)
        self._snapshot = CostSketch(shape)
        self._usual: float | None = None

    @property
    def is_settled(self) -> bool:
        return self.is_stable and not self.doubts

    def add(self, measured: CostSketch) -> bool:
        """Take in what the instance measured; True if `sent` is new."""
        self._window.merge(measured)
        send = self._watch() if self.is_stable else self._stabilize()
        if send:
            self.sent = self.sketch.copy()
            self.sent.merge(self._window)
            self.is_stable = True
        return send

    def adopt(self, sent: CostSketch) -> None:
        """Go on from what was sent before, if that was anything."""
        if sent.rows > 0:
            self.sent, self.sketch, self.is_stable = sent, sent.copy(), True

    def to_bytes(self, told: dict[str, Any]) -> bytes:
        """All of it, to go on from in another process, with what else its keeper wants to know."""
        state = {**told, "stable": self.is_stable, "sent": self.sent is not None}
        state |= {"usual": self._usual, "doubts": self.doubts}
        shape = self.sketch.shape
        parts = [self.sketch, self.sent or CostSketch(shape), self._window, self._snapshot]
        state["parts"] = [len(part.cells) for part in parts]
        columns = {
            "cell": np.concatenate([part.cells for part in parts]).astype(np.int32),
            "frequency": np.concatenate([part.frequency for part in parts]),
            "time_ms": np.concatenate([part.time_ms for part in parts]),
        }
        facts = {"shape": f"{shape.depth} {shape.width} {shape.seed}", "state": json.dumps(state)}
        table = pa.table(columns, metadata=facts)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        packed: bytes = sink.getvalue().to_pybytes()
        return packed

    @classmethod
    def from_bytes(
        cls, packed: bytes, settings: Stability | None = None
    ) -> tuple[InstanceCosts, dict[str, Any]]:
        """What `to_bytes` made, and what its keeper wanted to know."""
        table = pa.ipc.open_stream(packed).read_all()
        facts = table.schema.metadata
        told, shape = json.loads(facts[b"state"]), SketchShape(*map(int, facts[b"shape"].split()))
        ends = np.cumsum(told.pop("parts"))[:-1]
        cells = np.split(table["cell"].to_numpy().astype(np.int64), ends)
        frequencies = np.split(table["frequency"].to_numpy(), ends)
        times_ms = np.split(table["time_ms"].to_numpy(), ends)
        sketch, sent, window, snapshot = (
            CostSketch(shape, *part) for part in zip(cells, frequencies, times_ms, strict=True)
        )
        found = cls(shape, settings)
        found.sketch, found._window, found._snapshot = sketch, window, snapshot
        found.sent = sent if told.pop("sent") else None
        found.is_stable, found._usual = told.pop("stable"), told.pop("usual")
        found.doubts = told.pop("doubts", False)  # not in notes of before
        return found, told

    def _stabilize(self) -> bool:
        """Add a window; stable if it changes little. The first changes everything."""
        if self._window.rows < self.settings.window_rows:
            return False
        before = self._snapshot
        self._take_window()
        return before.rows > 0 and change(self.sketch, before) <= self.settings.tolerance

    def _watch(self) -> bool:
        """Hold a window against what was sent; send again if so much more is known."""
        assert self.sent is not None
        window = self._window
        if window.rows >= self.settings.watch_rows:
            doubted, self.doubts = self.doubts, self._surprised(window)
            if doubted and self.doubts:
                self.is_stable = self.doubts = False
                kept = self.settings.kept_share * window.rows / self.sketch.rows
                self.sketch.decay(min(1.0, kept))
                self._usual = None
                self._take_window()
                return False
            self._take_window()
        return self.sketch.rows + self._window.rows >= 2 * self.sent.rows

    def _take_window(self) -> None:
        self.sketch.merge(self._window)
        self._window = CostSketch(self._window.shape)
        self._snapshot = self.sketch.copy()

    def _surprised(self, window: CostSketch) -> bool:
        assert self.sent is not None
        drift, scatter = surprise(window, self.sent)
        usual = self._usual
        grown = usual is not None and scatter > self.settings.scatter * usual + 0.05
        self._usual = scatter if usual is None else 0.75 * usual + 0.25 * scatter
        return drift > self.settings.drift or grown
