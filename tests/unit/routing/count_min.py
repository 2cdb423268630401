"""What a cost sketch says of values, by the plain rule of Rivetti et al. 2016."""

from __future__ import annotations

import numpy as np

from headgate.arrays import F64, U64
from headgate.routing.costs import CostSketch


def frequency_of(sketch: CostSketch, h: U64) -> F64:
    """How often values came, at least."""
    least: F64 = sketch.frequency[sketch.shape.cells(h)].min(axis=0)
    return least


def estimate_ms(sketch: CostSketch, h: U64) -> F64:
    """W / F in the row of least F."""
    cells = sketch.shape.cells(h)
    chosen = np.take_along_axis(cells, sketch.frequency[cells].argmin(axis=0)[None], axis=0)[0]
    estimate: F64 = sketch.time_ms[chosen] / sketch.frequency[chosen]
    return estimate
