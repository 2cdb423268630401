"""Sums and extremes per group, and running ones, in a few passes over the rows.

Everything is exact where exactness exists: integer sums go through two 32-bit halves, so an
overflow is seen and never wraps. Running floats are summed per group, so neither a NaN nor a
huge value of one key touches another key.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from headgate.operator.rows import Groups
from headgate.operator.words import Mask, Words
from headgate.routing.hashing import I64

_HALF = 32
_LOW = np.int64(0xFFFFFFFF)
_EXACT_FLOAT = 2.0**53
_CHUNK_ROWS = 1 << 20  # 2**20 numbers of 32 bits add up exactly in a float64


class SumOverflow(Exception):
    """Some groups leave the 64-bit range; `groups` marks them. Never leaves the operator room."""

    def __init__(self, groups: Mask) -> None:
        super().__init__(groups)
        self.groups = groups


def group_sum(groups: Groups, values: Words, prior: Words) -> Words:
    """`prior` plus the values of each group; raises SumOverflow for integers out of range."""
    size = len(groups)
    if values.dtype == np.float64:
        return prior + np.bincount(groups.codes, weights=values, minlength=size)
    if _magnitude(values) * len(values) < _EXACT_FLOAT:
        batch = np.bincount(groups.codes, weights=values, minlength=size).astype(np.int64)
        total: I64 = prior + batch
        wrapped = ((prior ^ total) & (batch ^ total)) < 0
        if wrapped.any():
            raise SumOverflow(wrapped)
        return total
    high, low = prior >> _HALF, prior & _LOW
    for start in range(0, len(values), _CHUNK_ROWS):
        part, codes = values[start:][:_CHUNK_ROWS], groups.codes[start:][:_CHUNK_ROWS]
        high = high + np.bincount(codes, part >> _HALF, minlength=size).astype(np.int64)
        low = low + np.bincount(codes, part & _LOW, minlength=size).astype(np.int64)
    total, out_of_range = _join(high, low)
    if out_of_range.any():
        raise SumOverflow(out_of_range)
    return total


def running_sum(groups: Groups, values: Words, prior: Words) -> Words:
    """For every row, `prior` of its group plus all values up to and including that row."""
    before = prior[groups.codes]
    if values.dtype == np.float64:
        return before + _running_floats(groups, values)
    if _magnitude(values) * len(values) + _magnitude(prior) < 2.0**62:
        result: I64 = before + _cumulative(groups, values, "cumsum")
        return result
    high = (before >> _HALF) + _cumulative(groups, values >> _HALF, "cumsum")
    low = (before & _LOW) + _cumulative(groups, values & _LOW, "cumsum")
    total, out_of_range = _join(high, low)
    if out_of_range.any():
        wrong = np.zeros(len(groups), np.bool_)
        wrong[groups.codes[out_of_range]] = True
        raise SumOverflow(wrong)
    return total


def group_extreme(groups: Groups, values: I64, largest: bool) -> I64:
    """The smallest or largest value of each group; the far end of int64 where there is none."""
    result: I64 = np.full(len(groups), worst(largest), np.int64)
    (np.maximum if largest else np.minimum).at(result, groups.codes, values)
    return result


def running_extreme(groups: Groups, values: I64, largest: bool) -> I64:
    """For every row, the extreme of its group up to and including that row."""
    result: I64 = _cumulative(groups, values, "cummax" if largest else "cummin")
    return result


def running_count(groups: Groups, valid: Mask | None) -> I64:
    """For every row, how many valid rows its group has up to and including that row."""
    if valid is None:
        return groups.rank + 1
    result: I64 = _cumulative(groups, valid.astype(np.int64), "cumsum")
    return result


def group_count(groups: Groups, valid: Mask | None) -> I64:
    """How many valid rows each group has."""
    if valid is None:
        return groups.sizes
    return np.bincount(groups.codes[valid], minlength=len(groups)).astype(np.int64)


def worst(largest: bool) -> int:
    """What every value beats."""
    bounds = np.iinfo(np.int64)
    return int(bounds.min if largest else bounds.max)


def _running_floats(groups: Groups, values: Words) -> npt.NDArray[np.float64]:
    finite = np.isfinite(values)
    if finite.all():
        return _cumulative(groups, values, "cumsum")
    result = _cumulative(groups, np.where(finite, values, 0.0), "cumsum")
    for special in (values == np.inf, values == -np.inf, np.isnan(values)):
        met = running_extreme(groups, special.astype(np.int64), largest=True) > 0
        with np.errstate(invalid="ignore"):
            result[met] += values[special][:1].sum()  # inf + -inf is NaN, as it should be
    return result


def _cumulative(groups: Groups, values: Words, how: str) -> npt.NDArray[Any]:
    by_group = pd.Series(values).groupby(groups.codes, sort=False)
    return np.array(getattr(by_group, how)())


def _magnitude(values: Words) -> float:
    if not len(values):
        return 0.0
    return max(abs(float(values.min())), abs(float(values.max())))


def _join(high: I64, low: I64) -> tuple[I64, Mask]:
    high = high + (low >> _HALF)
    out_of_range = (high < -(1 << 31)) | (high >= 1 << 31)
    return (high << _HALF) | (low & _LOW), out_of_range
