"""A version of a side table in a worker: found by key, whole columns at a time.

Rows of the table are sorted once by a number of their key; a batch finds its rows by bisection.
A number is the key's own hash where that is a bijection (a single whole number or float), and a
keyed hash that nobody can predict elsewhere; both hashes must agree, 126 bits of them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.arrays import I64, U64, Bools
from headgate.errors import DeclarationError
from headgate.routing.hashing import hash_columns, is_one_word
from headgate.routing.identity import Identity
from headgate.state.named_table import read_table
from headgate.state.storage import Storage
from headgate.topology.lookup import Lookup

HELD_BYTES_MAX = 512 << 20  # of versions in a worker process; the newest one stays in any case
WAY_OUT = ". Start the flow again: the table is read anew"


@dataclass(frozen=True, eq=False)
class SideIndex:
    """A version, its rows in the order of their keys' numbers."""

    rows: pa.RecordBatch
    identity: Identity
    numbers: U64
    hashes: U64

    @classmethod
    def of(cls, table: pa.Table, key: Sequence[str]) -> SideIndex:
        """Raises if two rows have the same key: a lookup would not know which to take."""
        chunks = table.combine_chunks().to_batches()
        batch = chunks[0] if chunks else pa.RecordBatch.from_pylist([], table.schema)
        identity, columns = Identity.new(), [batch.column(name) for name in key]
        numbers, hashes = _numbers(identity, columns, batch.num_rows)
        order = np.argsort(numbers, kind="stable").astype(np.int64)
        numbers, hashes = numbers[order], hashes[order]
        twice = np.flatnonzero(numbers[1:] == numbers[:-1])
        if len(twice):
            one = batch.select(list(key)).take(pa.array(order[twice[:1]])).to_pylist()[0]
            shown = ", ".join(f"{name}={value!r}" for name, value in one.items())
            raise DeclarationError(
                f"the key ({shown}) is there {int((numbers == numbers[twice[0]]).sum())} times, "
                "and a lookup finds one row: leave one of them in the table, or add columns that "
                "tell them apart to on="
            )
        return cls(batch.take(pa.array(order)), identity, numbers, hashes)

    def find(self, columns: Sequence[pa.Array], rows: int) -> tuple[I64, Bools]:
        """For every key the row that has it, and whether there is one."""
        at = np.zeros(rows, np.int64)
        if not len(self.numbers):
            return at, np.zeros(rows, np.bool_)
        numbers, hashes = _numbers(self.identity, columns, rows)
        at = np.searchsorted(self.numbers, numbers)
        at[at == len(self.numbers)] = 0
        found = (self.numbers[at] == numbers) & (self.hashes[at] == hashes)
        for column in columns:
            if column.null_count:  # null equals nothing, not even the number with its hash
                found &= pc.is_valid(column).to_numpy(zero_copy_only=False)
        return at, found


def _numbers(identity: Identity, columns: Sequence[pa.Array], rows: int) -> tuple[U64, U64]:
    hashes = hash_columns(columns, rows)
    if len(columns) == 1 and is_one_word(columns[0].type):
        return hashes, hashes
    return identity.check(identity.marks(columns, rows), rows), hashes


@dataclass(frozen=True, eq=False)
class BoundLookup:
    """A lookup with the version of the table that the plan names."""

    lookup: Lookup
    index: SideIndex

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch | tuple[pa.RecordBatch, I64]:
        lookup, rows = self.lookup, batch.num_rows
        at, found = self.index.find([batch.column(mine) for mine, _ in lookup.on], rows)
        schema, origins = lookup.output(batch.schema), np.arange(rows, dtype=np.int64)
        if lookup.how == "inner" and not found.all():
            origins = np.flatnonzero(found)
            batch, at, found = batch.take(pa.array(origins)), at[origins], found[origins]
        place = pa.array(at, mask=None if found.all() else ~found)
        columns = [batch.column(name) for name, _ in lookup.left]
        columns += [self.index.rows.column(name).take(place) for name, _ in lookup.right]
        made = pa.RecordBatch.from_arrays(columns, schema=schema)
        return (made, origins) if lookup.how == "inner" else made


_held: OrderedDict[tuple[str, str, tuple[str, ...]], SideIndex] = OrderedDict()


def bound(lookup: Lookup, uri: str, name: str, who: str) -> BoundLookup:
    """The lookup with a version of its table, read and indexed once per process."""
    known = uri, name, lookup.key
    index = _held.pop(known, None)
    if index is None:
        what = f"{who}: the side table"
        index = SideIndex.of(read_table(Storage.at(uri), name, what, WAY_OUT), lookup.key)
    _held[known] = index
    while len(_held) > 1 and sum(held.rows.nbytes for held in _held.values()) > HELD_BYTES_MAX:
        _held.popitem(last=False)
    return BoundLookup(lookup, index)
