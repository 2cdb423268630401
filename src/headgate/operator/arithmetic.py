"""Arrow columns as 64-bit numbers and back; sums, counts and extremes per group.

Operators compute in NumPy on two types only: float64 for floating columns, int64 for all other
fixed-width ones (dates and times as their raw integers, decimals as unscaled integers). Nothing
is lost on the way: every supported type fits, and the others are refused when the flow is declared.

Integer sums are exact: beside the sum, which may wrap around, a float64 one is made, and where the
two are far apart the sum left the 64-bit range. Running floats are summed per group, so neither a
NaN nor a huge value of one key touches another key.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from headgate.arrays import F64, I64, Bools
from headgate.operator.rows import Groups
from headgate.state.rows import Held
from headgate.state.session import StateSession

Words = npt.NDArray[Any]
DECIMAL_DIGITS = 18  # what fits a signed 64-bit word
_EXACT_FLOAT = 2.0**53
_MAGNITUDE = np.int64(0x7FFFFFFFFFFFFFFF)


def is_number(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind))


def has_words(kind: pa.DataType) -> bool:
    """Can a column of this type be computed with as 64-bit numbers?"""
    types = pa.types
    if types.is_decimal(kind):
        return types.is_decimal128(kind) and int(kind.precision) <= DECIMAL_DIGITS
    if types.is_temporal(kind):
        return not types.is_interval(kind)
    return types.is_boolean(kind) or (is_number(kind) and not types.is_uint64(kind))


def to_words(column: pa.Array) -> tuple[Words, Bools | None]:
    """The numbers of a column and which of them are there (None: all); zero under a null."""
    kind, valid = column.type, valid_mask(column)
    if pa.types.is_decimal(kind):
        raw = np.frombuffer(column.buffers()[1] or b"", np.int64).reshape(-1, 2)
        words = raw[column.offset :][: len(column), 0].copy()
        if valid is not None:
            words[~valid] = 0
        return words, valid
    if pa.types.is_temporal(kind):
        column = column.view(pa.int32() if kind.bit_width == 32 else pa.int64())
    if valid is not None:
        column = pc.fill_null(column, False if pa.types.is_boolean(kind) else 0)
    return widen(column.to_numpy(zero_copy_only=False)), valid


def float_words(column: pa.Array) -> tuple[F64, Bools | None]:
    """The same of a column of any numbers, as float64."""
    if not pa.types.is_floating(column.type):
        column = column.cast(pa.float64(), safe=False)
    return to_words(column)


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
    if valid is not None and valid.all():
        valid = None
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


def quotient(total: Words, count: Words) -> pa.Array:
    """Total by count as float64, null where the count is zero."""
    return from_words(total / np.maximum(count, 1), count > 0, pa.float64())


def sortable(words: Words) -> I64:
    """Numbers of the same order as int64; NaN is the largest, as in Spark."""
    if words.dtype != np.float64:
        return words
    numbers = np.where(np.isnan(words), np.nan, words + 0.0)  # one NaN, and -0.0 is 0.0
    bits = numbers.view(np.int64)
    result: I64 = bits ^ ((bits >> 63) & _MAGNITUDE)
    return result


def from_sortable(kind: pa.DataType, ordered: I64, valid: Bools | None) -> pa.Array:
    """What `sortable` made of a column of type `kind`, as Arrow again, null where not `valid`."""
    words: Words = ordered if valid is None else np.where(valid, ordered, 0)
    if pa.types.is_floating(kind):
        words = (words ^ ((words >> 63) & _MAGNITUDE)).view(np.float64)
    return from_words(words, valid, kind)


@dataclass(frozen=True)
class Fold:
    """Rows or partials of one call on their way into the state: counts, sums, extremes per group.

    `held` is what the state has of the groups. Sums mark in `overflow` the groups that leave the
    64-bit range; what they return for those means nothing.
    """

    groups: Groups
    held: Held
    overflow: Bools

    @classmethod
    def into(cls, groups: Groups, state: StateSession) -> Fold:
        return cls(groups, state.read(groups), np.zeros(len(groups), np.bool_))

    def running(self) -> RunningFold:
        return RunningFold(self.groups, self.held, self.overflow)

    def spread(self, per_group: Words) -> Words:
        """What the groups have, for every result of this fold."""
        return per_group

    def count(self, valid: Bools | None) -> I64:
        """How many valid rows there are (None: all are)."""
        if valid is None:
            return self.groups.sizes
        return np.bincount(self.groups.codes[valid], minlength=len(self.groups)).astype(np.int64)

    def sum(self, values: Words, prior: Words) -> Words:
        """`prior` of the group plus its values."""
        codes = self.groups.codes
        batch = np.bincount(codes, weights=values, minlength=len(self.groups))
        if values.dtype == np.float64:
            return prior + batch
        if _magnitude(values) * len(values) < _EXACT_FLOAT:
            total: I64 = prior + batch.astype(np.int64)
        else:
            total = prior.copy()
            np.add.at(total, codes, values)
        self.overflow[_wrapped(total, prior + batch)] = True
        return total

    def extreme(self, values: I64, largest: bool) -> I64:
        """The smallest or largest value."""
        result: I64 = np.full(len(self.groups), worst(largest), np.int64)
        (np.maximum if largest else np.minimum).at(result, self.groups.codes, values)
        return result


class RunningFold(Fold):
    """The same after every row, in order of arrival."""

    def spread(self, per_group: Words) -> Words:
        return per_group[self.groups.codes]

    def count(self, valid: Bools | None) -> I64:
        if valid is None:
            return self.groups.rank + 1
        return self._cumulative(valid.astype(np.int64), "cumsum")

    def sum(self, values: Words, prior: Words) -> Words:
        before = self.spread(prior)
        if values.dtype == np.float64:
            return before + self._sum_floats(values)
        total: I64 = before + self._cumulative(values, "cumsum")
        if _magnitude(values) * len(values) + _magnitude(prior) >= 2.0**62:
            near = before + self._cumulative(values.astype(np.float64), "cumsum")
            self.overflow[self.groups.codes[_wrapped(total, near)]] = True
        return total

    def extreme(self, values: I64, largest: bool) -> I64:
        return self._cumulative(values, "cummax" if largest else "cummin")

    def _sum_floats(self, values: Words) -> F64:
        finite = np.isfinite(values)
        result: F64 = self._cumulative(np.where(finite, values, 0.0), "cumsum")
        if finite.all():
            return result
        for special in (values == np.inf, values == -np.inf, np.isnan(values)):
            met = self.count(special) > 0
            with np.errstate(invalid="ignore"):
                result[met] += values[special][:1].sum()  # inf + -inf is NaN, as it should be
        return result

    def _cumulative(self, values: Words, how: str) -> npt.NDArray[Any]:
        by_group = pd.Series(values).groupby(self.groups.codes, sort=False)
        return np.array(getattr(by_group, how)())


def worst(largest: bool) -> int:
    """What every value beats."""
    bounds = np.iinfo(np.int64)
    return int(bounds.min if largest else bounds.max)


def _magnitude(values: Words) -> float:
    return max(-float(values.min(initial=0)), float(values.max(initial=0)))


def _wrapped(total: I64, near: F64) -> Bools:
    """Which sums are off by 2**64 or more: `near` itself is off by far less."""
    result: Bools = np.abs(total - near) > 2.0**63
    return result
