"""Arrow columns as 64-bit numbers and back; sums, counts and extremes per group.

Operators compute in NumPy on two types only: float64 for floating columns, int64 for all other
fixed-width ones (dates and times as their raw integers, decimals as unscaled integers). Nothing
is lost on the way: every supported type fits, and the others are refused when the flow is declared.

Everything is exact where exactness exists: integer sums go through two 32-bit halves, so an
overflow is seen and never wraps. Running floats are summed per group, so neither a NaN nor a huge
value of one key touches another key.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from headgate.arrays import F64, I64, Bools
from headgate.operator.rows import Groups

Words = npt.NDArray[Any]
_HALF, _LOW = 32, np.int64(0xFFFFFFFF)
_EXACT_FLOAT = 2.0**53
_CHUNK_ROWS = 1 << 20  # 2**20 numbers of 32 bits add up exactly in a float64
DECIMAL_DIGITS = 18  # what fits a signed 64-bit word
_MAGNITUDE = np.int64(0x7FFFFFFFFFFFFFFF)


def has_words(kind: pa.DataType) -> bool:
    """Can a column of this type be computed with as 64-bit numbers?"""
    types = pa.types
    if types.is_decimal128(kind):
        return int(kind.precision) <= DECIMAL_DIGITS
    if types.is_temporal(kind):
        return not types.is_interval(kind)
    return bool(
        types.is_floating(kind)
        or types.is_boolean(kind)
        or (types.is_integer(kind) and not types.is_uint64(kind))
    )


def to_words(column: pa.Array) -> tuple[Words, Bools | None]:
    """The numbers of a column and which of them are there (None: all); zero under a null."""
    kind, valid = column.type, valid_mask(column)
    if pa.types.is_decimal(kind):
        words: Words = np.zeros(len(column), np.int64)
        if len(column):
            raw = np.frombuffer(column.buffers()[1], np.int64).reshape(-1, 2)
            words = raw[column.offset : column.offset + len(column), 0].copy()
    elif pa.types.is_boolean(kind):
        words = pc.fill_null(column, False).to_numpy(zero_copy_only=False).astype(np.int64)
    else:
        raw_type = kind
        if pa.types.is_temporal(kind):
            raw_type = pa.int32() if kind.bit_width == 32 else pa.int64()
            column = column.view(raw_type)
        if valid is not None:
            column = pc.fill_null(column, pa.scalar(0, raw_type))
        words = widen(column.to_numpy(zero_copy_only=False))
    if valid is not None and pa.types.is_decimal(kind):
        words[~valid] = 0
    return words, valid


def valid_mask(column: pa.Array) -> Bools | None:
    """Which values are not null (None: all of them)."""
    if not column.null_count:
        return None
    return np.asarray(pc.is_valid(column).to_numpy(zero_copy_only=False), np.bool_)


def widen(numbers: Words) -> Words:
    """Any NumPy column as int64 or float64 (a copy only where the type differs)."""
    return numbers.astype(np.float64 if numbers.dtype.kind == "f" else np.int64, copy=False)


def kept_words(kept: Any) -> Words:
    """A state column, as the session returns it, as 64-bit numbers."""
    return to_words(kept)[0] if isinstance(kept, pa.Array) else widen(kept)


def from_words(words: Words, valid: Bools | None, kind: pa.DataType) -> pa.Array:
    """An Arrow column of type `kind`, null where not `valid`."""
    if valid is not None:
        valid = None if valid.all() else valid
    if pa.types.is_decimal(kind):
        body = np.empty((len(words), 2), np.int64)
        body[:, 0] = words
        body[:, 1] = words >> 63
        bits = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
        return pa.Array.from_buffers(kind, len(words), [bits, pa.py_buffer(body)])
    mask = None if valid is None else ~valid
    if pa.types.is_boolean(kind):
        return pa.array(words != 0, mask=mask)
    if pa.types.is_temporal(kind):
        raw = words.astype(np.int32 if kind.bit_width == 32 else np.int64, copy=False)
        return pa.array(raw, mask=mask).view(kind)
    return pa.array(words.astype(kind.to_pandas_dtype(), copy=False), mask=mask)


def sortable(words: Words) -> I64:
    """Numbers of the same order as int64; NaN is the largest, as in Spark."""
    if words.dtype != np.float64:
        return words
    numbers = np.where(np.isnan(words), np.nan, words + 0.0)  # one NaN, and -0.0 is 0.0
    bits = numbers.view(np.int64)
    result: I64 = bits ^ ((bits >> 63) & _MAGNITUDE)
    return result


def from_sortable(ordered: I64, floating: bool) -> Words:
    """The inverse of `sortable`."""
    if not floating:
        return ordered
    return (ordered ^ ((ordered >> 63) & _MAGNITUDE)).view(np.float64)


class SumOverflow(Exception):
    """Some groups leave the 64-bit range; `groups` marks them. Never leaves the operator room."""

    def __init__(self, groups: Bools) -> None:
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


def running_count(groups: Groups, valid: Bools | None) -> I64:
    """For every row, how many valid rows its group has up to and including that row."""
    if valid is None:
        return groups.rank + 1
    result: I64 = _cumulative(groups, valid.astype(np.int64), "cumsum")
    return result


def group_count(groups: Groups, valid: Bools | None) -> I64:
    """How many valid rows each group has."""
    if valid is None:
        return groups.sizes
    return np.bincount(groups.codes[valid], minlength=len(groups)).astype(np.int64)


def worst(largest: bool) -> int:
    """What every value beats."""
    bounds = np.iinfo(np.int64)
    return int(bounds.min if largest else bounds.max)


def _running_floats(groups: Groups, values: Words) -> F64:
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


def _join(high: I64, low: I64) -> tuple[I64, Bools]:
    high = high + (low >> _HALF)
    out_of_range = (high < -(1 << 31)) | (high >= 1 << 31)
    return (high << _HALF) | (low & _LOW), out_of_range
