"""Distinct values: counted exactly, or estimated from the smallest of their hashes.

Both keep a sorted list per key, so that equal input leaves equal bytes however it was split. Rows
of a batch that repeat a value are told apart by hash; only what is left is sorted into the lists.
Why a list, and why this estimate: decision note 0039.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from headgate.arrays import I64, Bools
from headgate.operator.arithmetic import DECIMAL_DIGITS, Fold, has_words, sortable, to_words
from headgate.operator.lists import Elements, elements_of, is_text, lengths_of
from headgate.operator.measure import Accumulator, Measure, Parts
from headgate.operator.rows import KeyedRows
from headgate.routing.hashing import hash_columns, is_hashable
from headgate.topology.arguments import check_count


class ValueSet(Accumulator):
    """The distinct values of a key, in order."""

    wanted = (
        f"numbers (decimals up to {DECIMAL_DIGITS} digits), booleans, dates, times, strings or "
        "binary"
    )
    nullable = True

    def takes(self, kind: pa.DataType) -> bool:
        return has_words(kind) or is_text(kind)

    def type_of(self, kind: pa.DataType) -> pa.DataType:
        return kind if is_text(kind) else pa.list_(pa.int64())

    def elements(self, fold: Fold, kept: pa.Field, values: pa.Array) -> Elements:
        """What is held, and the values of rows that are not null."""
        codes, values = _there(fold, values)
        if not is_text(kept.type):
            values = pa.array(sortable(to_words(values)[0]))
        return Elements.of(fold.held.arrow(kept.name), codes, values)

    def add(self, fold: Fold, kept: pa.Field, values: Any) -> Any:
        return self.elements(fold, kept, values).distinct().ordered().lists

    def merge(self, fold: Fold, kept: pa.Field, partials: pa.Array) -> Any:
        codes = np.repeat(fold.groups.codes, lengths_of(partials))
        held = fold.held.arrow(kept.name)
        return Elements.of(held, codes, elements_of(partials)).distinct().ordered().lists


@dataclass(frozen=True)
class SmallestHashes(Accumulator):
    """The `size` smallest hashes of a key's values, in order."""

    size: int
    wanted = "anything that can be a key"
    nullable = True

    def takes(self, kind: pa.DataType) -> bool:
        return is_hashable(kind)

    def type_of(self, kind: pa.DataType) -> pa.DataType:
        return pa.list_(pa.int64())

    def add(self, fold: Fold, kept: pa.Field, values: Any) -> Any:
        codes, values = _there(fold, values)
        hashes = (hash_columns([values], len(values)) >> np.uint64(1)).astype(np.int64)
        return self._smallest(fold, kept, codes, hashes)

    def merge(self, fold: Fold, kept: pa.Field, partials: pa.Array) -> Any:
        codes = np.repeat(fold.groups.codes, lengths_of(partials))
        return self._smallest(fold, kept, codes, elements_of(partials).to_numpy())

    def _smallest(self, fold: Fold, kept: pa.Field, codes: I64, hashes: I64) -> pa.Array:
        held = fold.held.arrow(kept.name)
        lengths, last = lengths_of(held), np.iinfo(np.int64).max
        bound = np.full(len(held), last)
        full = lengths >= self.size
        if full.any():
            bound[full] = elements_of(held).to_numpy()[np.cumsum(lengths)[full] - 1]
        small = hashes < bound[codes]  # of most rows of a large set that is all there is to do
        fresh = Elements.of(held, codes[small], pa.array(hashes[small]))
        return fresh.distinct().ordered().at_most(self.size).lists


def _there(fold: Fold, values: pa.Array) -> tuple[I64, pa.Array]:
    """The groups and the values of rows that are not null."""
    codes = fold.groups.codes
    if not values.null_count:
        return codes, values
    return codes[values.is_valid().to_numpy(zero_copy_only=False)], values.drop_null()


@dataclass(frozen=True)
class CountDistinct(Measure):
    """Count the different values of `column` for every key, exactly. Nulls are skipped.

    NaN equals NaN, and -0.0 is 0.0. Keeps every value: 8 bytes each, text its bytes and two more.
    An epoch rewrites the lists of the keys that it touches: for a key of more than some 100,000
    values that has rows in every epoch, `ApproxCountDistinct` is the way. At most 0.4 to 0.6 us per
    row, where each is a new value of its key (text: 0.7 to 1.3). Mergeable.

    Examples:
        >>> CountDistinct("user")
        CountDistinct(column='user', emit='updates', name='distinct', window=None)
    """

    parts: ClassVar[Parts] = {"values": ValueSet()}

    name: str = "distinct"

    def result_type(self, rows: pa.Schema) -> pa.DataType:
        self.kept(rows)
        return pa.int64()

    def result(self, columns: Mapping[str, pa.Array]) -> pa.Array:
        return pa.array(lengths_of(columns["values"]))

    def step(
        self, fold: Fold, rows: KeyedRows, mask: Bools | None, *, running: bool
    ) -> tuple[dict[str, Any], pa.Array | None]:
        new, _ = super().step(fold, rows, mask, running=False)
        if not running:
            return new, None
        values = self.values(rows, mask)
        assert values is not None
        (kept,) = self.kept(rows.batch.schema)
        part = self.parts["values"]
        assert isinstance(part, ValueSet)
        elements = part.elements(fold, kept, values)
        first = elements.first()
        fresh = first[first >= elements.held] - elements.held
        there = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
        is_new = np.zeros(len(rows), np.bool_)
        is_new[there[fresh]] = True
        before = lengths_of(fold.held.arrow(kept.name))[fold.groups.codes]
        return new, pa.array(before + fold.running().count(is_new))


@dataclass(frozen=True)
class ApproxCountDistinct(Measure):
    """Estimate the number of different values of `column` for every key. Nulls are skipped.

    Keeps the `size` smallest hashes of the values. Up to `size` values the count is exact; beyond,
    its standard error is 1 in sqrt(size): 2.2 % at 2,048, which take 16 kB. The same values give
    the same estimate in whatever order and slots they came, so it is mergeable. At most
    0.2 to 0.6 us per row, where each is a new value. Not for `emit="running"`.

    Examples:
        >>> ApproxCountDistinct("user", size=4096).name
        'distinct'
    """

    runs: ClassVar[bool] = False

    name: str = "distinct"
    size: int = field(default=2048, kw_only=True)

    def __post_init__(self) -> None:
        check_count(self.size, "size of ApproxCountDistinct", operator="ApproxCountDistinct")
        super().__post_init__()

    @property
    def parts(self) -> Parts:  # type: ignore[override]
        return {"hashes": SmallestHashes(self.size)}

    def result_type(self, rows: pa.Schema) -> pa.DataType:
        self.kept(rows)
        return pa.int64()

    def result(self, columns: Mapping[str, pa.Array]) -> pa.Array:
        hashes = columns["hashes"]
        counts = lengths_of(hashes)
        full = counts >= self.size
        if full.any():
            last = elements_of(hashes).to_numpy()[np.cumsum(counts)[full] - 1]
            share = (last.astype(np.float64) + 1.0) / 2.0**63
            counts[full] = np.rint(max(self.size - 1, 1) / share).astype(np.int64)
        return pa.array(counts)

    def describe(self) -> dict[str, Any]:
        return super().describe() | {"size": self.size}
