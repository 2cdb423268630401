"""Rows inside a slot: an Arrow batch, plus what must follow each row without being a column.

Lineage is a set of hidden int64 columns. `order` is the row's place in its source; it exists only
in flows that have an ordered operator. It travels as ordinary Arrow columns on the wire.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.routing.hashing import KeyHashes

I64 = npt.NDArray[np.int64]
LINEAGE_PREFIX = "__hg_"


@dataclass(frozen=True)
class Rows:
    """A batch with its lineage, and the key hashes if somebody computed them already."""

    batch: pa.RecordBatch
    lineage: dict[str, I64] = field(default_factory=dict)
    hashes: KeyHashes | None = None

    def __len__(self) -> int:
        return int(self.batch.num_rows)

    @property
    def bytes(self) -> int:
        return int(self.batch.nbytes)

    def select(self, names: Sequence[str]) -> Rows:
        if list(names) == self.batch.schema.names:
            return self
        return Rows(self.batch.select(list(names)), self.lineage, self.hashes)

    def take(self, rows: I64) -> Rows:
        """The chosen rows, in the order given."""
        hashes = self.hashes
        if hashes is not None:
            hashes = KeyHashes(hashes.h[rows], hashes.check[rows])
        lineage = {name: values[rows] for name, values in self.lineage.items()}
        return Rows(self.batch.take(pa.array(rows)), lineage, hashes)

    def slice(self, start: int, length: int) -> Rows:
        """A view of consecutive rows; copies nothing."""
        hashes = self.hashes
        if hashes is not None:
            stop = start + length
            hashes = KeyHashes(hashes.h[start:stop], hashes.check[start:stop])
        lineage = {name: values[start : start + length] for name, values in self.lineage.items()}
        return Rows(self.batch.slice(start, length), lineage, hashes)

    def derived(self, batch: pa.RecordBatch, origins: I64 | None) -> Rows:
        """Rows made from these, row i from `origins[i]` (None: from row i)."""
        if not self.lineage:
            return Rows(batch)
        if origins is None:
            origins = np.arange(batch.num_rows, dtype=np.int64)
        return Rows(batch, {name: values[origins] for name, values in self.lineage.items()})

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


def concat(parts: Sequence[Rows]) -> Rows:
    """All rows of the parts, in order; key hashes survive only if every part has them."""
    if len(parts) == 1:
        return parts[0]
    hashes = None
    if all(p.hashes is not None for p in parts):
        known = [p.hashes for p in parts if p.hashes is not None]
        hashes = KeyHashes(
            np.concatenate([k.h for k in known]), np.concatenate([k.check for k in known])
        )
    lineage = {name: np.concatenate([p.lineage[name] for p in parts]) for name in parts[0].lineage}
    return Rows(pa.concat_batches([p.batch for p in parts]), lineage, hashes)
