"""What a cost sketch says of values, by the plain rule of Rivetti et al. 2016."""

from __future__ import annotations

import numpy as np

from headgate.arrays import F64, U64
from headgate.routing.costs import CostSketch


def matrices(sketch: CostSketch) -> tuple[F64, F64]:
    """F and W, cell by cell."""
    frequency = np.zeros(sketch.shape.depth * sketch.shape.width)
    time_ms = np.zeros_like(frequency)
    frequency[sketch.cells], time_ms[sketch.cells] = sketch.frequency, sketch.time_ms
    return frequency, time_ms


def frequency_of(sketch: CostSketch, h: U64) -> F64:
    """How often values came, at least."""
    frequency, _ = matrices(sketch)
    least: F64 = frequency[sketch.shape.cells(h)].min(axis=0)
    return least


def estimate_ms(sketch: CostSketch, h: U64) -> F64:
    """W / F in the row of least F."""
    cells = sketch.shape.cells(h)
    frequency, time_ms = matrices(sketch)
    chosen = np.take_along_axis(cells, frequency[cells].argmin(axis=0)[None], axis=0)[0]
    estimate: F64 = time_ms[chosen] / frequency[chosen]
    return estimate
