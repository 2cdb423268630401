"""The aggregates: Count, Sum, Mean, Min and Max, and the columns they keep.

Costs in the docstrings are CPU time per row of a whole epoch, from hashing to commit, at 500,000
rows of 20,000 integer keys; text keys add about 50 ns for their hash, `emit="running"` 20 to 40.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.arrays import I64, Bools
from headgate.operator.arithmetic import (
    DECIMAL_DIGITS,
    Fold,
    float_words,
    from_sortable,
    from_words,
    has_words,
    is_number,
    kept_words,
    quotient,
    sortable,
    to_words,
    valid_mask,
    worst,
)
from headgate.operator.lists import is_text
from headgate.operator.measure import Accumulator, Measure, Parts
from headgate.operator.panes import Ranges
from headgate.operator.rows import Partials
from headgate.state.rows import StateRows


class Counted(Accumulator):
    """How many values there are, or rows if there is no input column."""

    def type_of(self, kind: pa.DataType) -> pa.DataType:
        return pa.int64()

    def adds_up(self, kind: pa.DataType) -> bool:
        return True

    def add(self, fold: Fold, kept: pa.Field, values: Any) -> Any:
        valid = None if values is None else valid_mask(values)
        return fold.spread(fold.held[kept.name]) + fold.count(valid)

    def merge(self, fold: Fold, kept: pa.Field, partials: pa.Array) -> Any:
        return fold.sum(to_words(partials)[0], fold.held[kept.name])

    def over(self, panes: StateRows, kept: pa.Field, ranges: Ranges) -> Any:
        return ranges.sums(panes[kept.name])


class Total(Accumulator):
    """The exact sum of integers and decimals, or that of floats in order of arrival."""

    wanted = f"a number; cast it to a decimal of at most {DECIMAL_DIGITS} digits, bigint or double"
    nullable = True

    def takes(self, kind: pa.DataType) -> bool:
        return is_number(kind) and has_words(kind)

    def type_of(self, kind: pa.DataType) -> pa.DataType:
        if pa.types.is_decimal(kind):
            return pa.decimal128(max(DECIMAL_DIGITS + 1, kind.precision + 10), kind.scale)
        return pa.float64() if pa.types.is_floating(kind) else pa.int64()

    def exact(self, kind: pa.DataType) -> bool:
        return not pa.types.is_floating(kind)

    def adds_up(self, kind: pa.DataType) -> bool:
        return self.exact(kind)

    def add(self, fold: Fold, kept: pa.Field, values: Any) -> Any:
        words, valid = to_words(values)
        total = fold.sum(words, kept_words(fold.held[kept.name]))
        return from_words(total, _seen(fold, kept, valid), kept.type)

    def over(self, panes: StateRows, kept: pa.Field, ranges: Ranges) -> Any:
        """Integers as differences of prefix sums; a window beyond the 64-bit range is null."""
        if pa.types.is_floating(kept.type):
            return super().over(panes, kept, ranges)
        words, valid = to_words(panes.arrow(kept.name))
        seen = None if valid is None else ranges.sums(valid.astype(np.int64)) > 0
        total = ranges.sums(words)
        longest = int((ranges.hi - ranges.lo).max(initial=0))
        if longest * float(np.abs(words.astype(np.float64)).max(initial=0.0)) >= 2.0**62:
            edges = np.stack([ranges.lo, ranges.hi], axis=1).reshape(-1)
            near = np.add.reduceat(np.append(words.astype(np.float64), 0.0), edges)[::2]
            fits = np.abs(total - near) < 2.0**63
            seen = fits if seen is None else seen & fits
        return from_words(total, seen, kept.type)


class FloatTotal(Accumulator):
    """The sum of any numbers in float64 arithmetic, zero until there is a value."""

    wanted = "a number; cast it to double"

    def takes(self, kind: pa.DataType) -> bool:
        return is_number(kind)

    def type_of(self, kind: pa.DataType) -> pa.DataType:
        return pa.float64()

    def exact(self, kind: pa.DataType) -> bool:
        return bool(pa.types.is_integer(kind) and kind.bit_width <= 32)

    def adds_up(self, kind: pa.DataType) -> bool:
        return self.exact(kind)

    def add(self, fold: Fold, kept: pa.Field, values: Any) -> Any:
        return fold.sum(float_words(values)[0], fold.held[kept.name])


@dataclass(frozen=True)
class Best(Accumulator):
    """The smallest or largest value, compared as 64-bit integers of the same order.

    Text is given ranks first: the distinct values of the batch and of the state are sorted once,
    and a rank stands for each.
    """

    largest: bool
    wanted = (
        f"what it can order: numbers (decimals up to {DECIMAL_DIGITS} digits), dates, times, "
        "strings and binary"
    )
    nullable = True

    def takes(self, kind: pa.DataType) -> bool:
        return has_words(kind) or is_text(kind)

    def add(self, fold: Fold, kept: pa.Field, values: Any) -> Any:
        if is_text(kept.type):
            rows, before, back = _ranked(values, fold.held.arrow(kept.name))
        else:
            rows, before = to_words(values)[0], kept_words(fold.held[kept.name])
            rows, before, back = sortable(rows), sortable(before), partial(from_sortable, kept.type)
        nothing, valid = worst(self.largest), valid_mask(values)
        before = fold.spread(np.where(fold.held.valid(kept.name), before, nothing))
        if valid is not None:
            rows = np.where(valid, rows, nothing)
        batch = fold.extreme(rows, self.largest)
        best = np.maximum(before, batch) if self.largest else np.minimum(before, batch)
        return back(best, _seen(fold, kept, valid))


def _seen(fold: Fold, kept: pa.Field, valid: Bools | None) -> Bools | None:
    """Where there is a value by now (None: everywhere)."""
    if valid is None:
        return None
    return fold.spread(fold.held.valid(kept.name)) | (fold.count(valid) > 0)


def _ranked(column: pa.Array, held: pa.Array) -> tuple[I64, I64, Any]:
    """The values of both as ranks, and the way back from ranks."""
    encoded = pa.concat_arrays([held, column]).dictionary_encode()
    order = pc.sort_indices(encoded.dictionary).to_numpy()
    ranks = np.zeros(len(order) + 1, np.int64)
    ranks[order] = np.arange(len(order))
    codes = encoded.indices.fill_null(len(order)).to_numpy(zero_copy_only=False)
    values = encoded.dictionary.take(pa.array(order))

    def back(ordered: I64, seen: Bools | None) -> pa.Array:
        if seen is None:
            return values.take(pa.array(ordered))
        return values.take(pa.array(np.where(seen, ordered, 0), mask=~seen))

    return ranks[codes[len(held) :]], ranks[codes[: len(held)]], back


@dataclass(frozen=True)
class Count(Measure):
    """Count the rows of every key, or the non-null values of `column`.

    Exact, and mergeable. Costs 8 bytes of state per key and about 40 ns per row.

    Examples:
        >>> Count()
        Count(column=None, emit='updates', name='count', window=None)
    """

    parts: ClassVar[Parts] = {"count": Counted()}

    column: str | None = None
    name: str = "count"


@dataclass(frozen=True)
class Sum(Measure):
    """Add up `column` for every key. Nulls are skipped; a key with nothing but nulls sums to null.

    Integers and decimals (up to 18 digits) are exact: rows that would take a key out of the 64-bit
    range are refused as dead letters, all of that key's rows of the call, and its sum stays.
    Floats are float64, added in arrival order. Costs 8 bytes of state per key and about 50 ns
    per row.

    Mergeable for integers and decimals. Floats round differently when added in another order, so
    they are only with `exact=False`, which lets the last digits depend on where rows were added.
    A partial sum that would overflow is one dead letter at the key's owner; its rows are gone by
    then.

    Examples:
        >>> Sum("amount", name="total")
        Sum(column='amount', emit='updates', name='total', window=None)
    """

    parts: ClassVar[Parts] = {"sum": Total()}

    name: str = "sum"
    exact: bool = field(default=True, kw_only=True, repr=False)

    def merge_step(self, fold: Fold, partials: Partials) -> dict[str, Any]:
        if self.exact and pa.types.is_floating(partials.column(f"{self.prefix}sum").type):
            raise self._not_mergeable()
        return super().merge_step(fold, partials)


@dataclass(frozen=True)
class Mean(Measure):
    """Average `column` for every key, as float64. Nulls are skipped; nothing but nulls gives null.

    Keeps sum and count, both in float64 arithmetic, 16 bytes of state per key. For an exact mean
    of decimals use `Sum` and `Count`. About 50 ns per row.

    Mergeable for integers of up to 32 bits, whose sum a float64 holds exactly up to 2**53 (four
    million rows of the largest values per key; beyond, it rounds in any order). For wider ones and
    floats only with `exact=False`, which lets the last digits depend on where rows were added.

    Examples:
        >>> Mean("delay", emit="running")
        Mean(column='delay', emit='running', name='mean', window=None)
    """

    parts: ClassVar[Parts] = {"sum": FloatTotal(), "count": Counted()}

    name: str = "mean"
    exact: bool = field(default=True, kw_only=True, repr=False)

    def result(self, columns: Mapping[str, pa.Array]) -> pa.Array:
        return quotient(to_words(columns["sum"])[0], to_words(columns["count"])[0])


@dataclass(frozen=True)
class Min(Measure):
    """Keep the smallest value of `column` for every key, in the column's own type.

    Takes numbers, dates, times, strings and binary (compared byte by byte). Nulls are skipped;
    nothing but nulls gives null. NaN counts as larger than any number, as in Spark. Costs one
    value of state per key and about 50 ns per row (text: a sort of the distinct values). Mergeable.

    Examples:
        >>> Min("price")
        Min(column='price', emit='updates', name='min', window=None)
    """

    parts: ClassVar[Parts] = {"value": Best(largest=False)}

    name: str = "min"


@dataclass(frozen=True)
class Max(Min):
    """Keep the largest value of `column` for every key; as `Min` in all else.

    Examples:
        >>> Max("price", name="highest")
        Max(column='price', emit='updates', name='highest', window=None)
    """

    parts: ClassVar[Parts] = {"value": Best(largest=True)}

    name: str = "max"
