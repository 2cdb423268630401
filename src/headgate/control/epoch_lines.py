"""Lines through epochs: what they take without rows, and what each row takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from headgate.arrays import F64

APART = 2.0  # large epochs must have so many times the rows of small ones
FEW = 0.1  # of the epochs, which are larger or smaller than those


class EpochLine(NamedTuple):
    """Seconds of an epoch: `fixed_s` and `row_s` for each of its rows, neither negative."""

    fixed_s: float
    row_s: float


def tells_apart(rows: Sequence[float]) -> bool:
    """Do sizes differ enough for a line? A single epoch apart from all others is no second size."""
    if len(rows) < 3:
        return False
    small, large = np.quantile(rows, (FEW, 1 - FEW))
    return bool(large >= APART * small)


def line_of(rows: Sequence[float], seconds: Sequence[float] | F64) -> EpochLine:
    """The line through epochs, errors counted in shares of the epoch's own time."""
    x, y = np.asarray(rows, dtype=float), np.asarray(seconds, dtype=float)
    if not tells_apart(rows) or not (y > 0).any():
        return EpochLine(0.0, float(y.sum() / x.sum()))
    from scipy.optimize import nnls  # late: only who tunes needs it

    weight = 1.0 / np.maximum(y, y.max() * 1e-3)
    unit = x.max()
    found, _ = nnls(np.stack([weight, weight * x / unit], axis=1), weight * y)
    return EpochLine(float(found[0]), float(found[1] / unit))
