"""Rows inside a slot: an Arrow batch, plus what must follow each row without being a column.

Lineage is a set of hidden int64 columns. `order` is the row's place in its source; it exists only
in flows that have an ordered operator. It travels as ordinary Arrow columns on the wire. The
*origin* is the key under which the row's last stateful operator had it; it serves statistics, stays
in the slot and never becomes bytes. Key hashes know the columns they were made of: a request for
those of another key gets new ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from headgate.arrays import I64, U64
from headgate.routing.hashing import hash_columns
from headgate.topology.keys import Key
from headgate.topology.schema import merged

LINEAGE_PREFIX = "__hg_"
FILE, ROW = PARKED = ("parked_file", "parked_row")  # where columns wait (see slot/parking.py)
PLACE = "place"  # of rows that are worked on in parts, among all of them: never on the wire
NOWHERE = -1  # the place of a row that has all of its values with it


class SourceRows(NamedTuple):
    """Rows that a source task reads; `piece`: the number of the piece of a file that has them."""

    source: int
    batch: pa.RecordBatch
    piece: int | None = None


class Hashed(NamedTuple):
    """Key hashes, and the columns of the same rows that they are the hashes of."""

    key: Key
    h: U64


class Origin(NamedTuple):
    """The operator that had these rows last, and the hash of the key it had each one under."""

    operator: str
    h: U64


@dataclass(frozen=True)
class Rows:
    """A batch with its lineage, and the key hashes if somebody computed them already."""

    batch: pa.RecordBatch
    lineage: dict[str, I64] = field(default_factory=dict)
    hashed: Hashed | None = None
    origin: Origin | None = None

    def __len__(self) -> int:
        return int(self.batch.num_rows)

    @property
    def bytes(self) -> int:
        return int(self.batch.nbytes)

    def select(self, names: Sequence[str]) -> Rows:
        if list(names) == self.batch.schema.names:
            return self
        return replace(self, batch=self.batch.select(list(names)))

    def without(self, lineage: Sequence[str]) -> Rows:
        """These rows without what followed them under these names."""
        if not any(name in self.lineage for name in lineage):
            return self
        kept = {name: v for name, v in self.lineage.items() if name not in lineage}
        return replace(self, lineage=kept)

    def at(self, operator: str, key: Sequence[str]) -> Rows:
        """These rows as an operator has them: hashed by its key, from now on their origin."""
        rows = self.hashed_by(key)
        return replace(rows, origin=Origin(operator, rows.hashes_by(key)))

    def hashes_by(self, key: Sequence[str]) -> U64:
        """The hashes of this key; computed, unless these rows have them already."""
        key = Key.of(key)
        if self.hashed is not None and self.hashed.key == key:
            return self.hashed.h
        return hash_columns([self.batch.column(name) for name in key], len(self), key.near)

    def hashed_by(self, key: Sequence[str]) -> Rows:
        """These rows with the hashes of this key."""
        h = self.hashes_by(key)
        if self.hashed is not None and self.hashed.h is h:
            return self
        return replace(self, hashed=Hashed(Key.of(key), h))

    def take(self, rows: I64) -> Rows:
        """The chosen rows, in the order given."""
        return self._at(rows, self.batch.take(pa.array(rows)))

    def slice(self, start: int, length: int) -> Rows:
        """A view of consecutive rows; copies nothing."""
        return self._at(slice(start, start + length), self.batch.slice(start, length))

    def derived(self, batch: pa.RecordBatch, origins: I64 | None) -> Rows:
        """Rows made from these, row i from `origins[i]` (None: from row i)."""
        if origins is None:
            if batch.num_rows == len(self):
                return Rows(batch, self.lineage, origin=self.origin)
            origins = np.arange(batch.num_rows if self.lineage else 0, dtype=np.int64)
            return Rows(batch, {name: v[origins] for name, v in self.lineage.items()})
        return replace(self, hashed=None)._at(origins, batch)

    def _at(self, rows: Any, batch: pa.RecordBatch) -> Rows:
        """A batch made of some of these rows, with all that follows them."""
        lineage = {name: values[rows] for name, values in self.lineage.items()}
        hashed, origin = self.hashed, self.origin
        if hashed is not None:
            hashed = hashed._replace(h=hashed.h[rows])
        if origin is not None:
            origin = origin._replace(h=origin.h[rows])
        return Rows(batch, lineage, hashed, origin)

    def to_wire(self) -> pa.RecordBatch:
        if not self.lineage:
            return self.batch
        arrays = [*self.batch.columns, *(pa.array(v) for v in self.lineage.values())]
        return pa.RecordBatch.from_arrays(
            arrays, schema=wire_schema(self.batch.schema, self.lineage)
        )

    @staticmethod
    def from_wire(batch: pa.RecordBatch, lineage: Sequence[str]) -> Rows:
        if not lineage:
            return Rows(batch)
        width = batch.num_columns - len(lineage)
        hidden = {name: batch.column(width + i).to_numpy().copy() for i, name in enumerate(lineage)}
        return Rows(batch.select(list(range(width))), hidden)


def wire_schema(schema: pa.Schema, lineage: Sequence[str] | dict[str, I64]) -> pa.Schema:
    hidden = [pa.field(LINEAGE_PREFIX + name, pa.int64()) for name in lineage]
    return pa.schema([*schema, *hidden])


def is_parked(wire: pa.Schema) -> bool:
    """Is it said of these rows where some of their columns wait?"""
    return bool(wire.names[-1:] == [LINEAGE_PREFIX + PARKED[-1]])


def concat(parts: Sequence[Rows]) -> Rows:
    """All rows of the parts, in order; key hashes survive if every part has them, of one key."""
    if len(parts) == 1:
        return parts[0]
    hashed = None
    known = [p.hashed for p in parts if p.hashed is not None]
    if len(known) == len(parts) and len({k.key for k in known}) == 1:
        hashed = Hashed(known[0].key, np.concatenate([k.h for k in known]))
    names = [*parts[0].lineage]
    if any(ROW in part.lineage for part in parts):
        names = [*(name for name in names if name not in PARKED), *PARKED]
    lineage = {name: np.concatenate([_lineage(p, name) for p in parts]) for name in names}
    origins = [p.origin for p in parts if p.origin is not None]
    origin = None
    if len(origins) == len(parts) and len({o.operator for o in origins}) == 1:
        origin = Origin(origins[0].operator, np.concatenate([o.h for o in origins]))
    batches = of_one_schema([p.batch for p in parts])
    return Rows(pa.concat_batches(batches), lineage, hashed, origin)


def _lineage(rows: Rows, name: str) -> I64:
    """What follows rows under a name; those that nothing was parked of are nowhere."""
    if name in PARKED and name not in rows.lineage:
        return np.full(len(rows), NOWHERE, np.int64)
    return rows.lineage[name]


def in_order(parts: Sequence[Rows], place: str) -> Rows:
    """All rows of the parts in the order of this lineage, which they lose."""
    rows = concat(parts)
    if len(parts) > 1:
        rows = rows.take(np.argsort(rows.lineage[place], kind="stable").astype(np.int64))
    lineage = {name: values for name, values in rows.lineage.items() if name != place}
    return replace(rows, lineage=lineage)


def joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """The rows of all batches in one; a single batch is not copied."""
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def of_one_schema(batches: Sequence[pa.RecordBatch]) -> Sequence[pa.RecordBatch]:
    """The same batches: the sides of a union have equal types, but may differ in nullability."""
    schemas = [batch.schema for batch in batches]
    schema = merged(schemas)
    if schema is schemas[0]:
        return batches
    return [pa.RecordBatch.from_arrays(batch.columns, schema=schema) for batch in batches]


def by_origin(parts: Sequence[Rows]) -> list[Rows]:
    """Parts joined as far as they come from the same operator, so that no origin is lost."""
    groups: dict[str, list[Rows]] = {}
    for part in parts:
        groups.setdefault("" if part.origin is None else part.origin.operator, []).append(part)
    return [concat(group) for _, group in sorted(groups.items())]
