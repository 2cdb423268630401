"""Output buffers: rows wait here, one buffer per target, until they make a batch.

A buffer with a batch size puts out batches of exactly that many rows and keeps the rest until more
come or the task ends. None holds more than a payload may be large, and what would be larger leaves
before it is complete; so memory is bounded by the number of targets. Below that size, what comes
out depends on the rows alone, not on how they were cut into calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

import pyarrow as pa

from headgate.slot.batch_tuple import PAYLOAD_BYTES_MAX
from headgate.slot.rows import Rows, concat

Target = TypeVar("Target", bound=tuple[object, ...])


class Buffers(Generic[Target]):
    """Buffers by target; `emit` gets the batches that leave, in wire form."""

    def __init__(self, emit: Callable[[Target, pa.RecordBatch], None]) -> None:
        self._emit = emit
        self._waiting: dict[Target, list[Rows]] = {}
        self._rows: dict[Target, int] = {}
        self._bytes: dict[Target, int] = {}

    def put(self, target: Target, rows: Rows, batch_rows: int | None) -> None:
        """Add rows; whatever is full leaves at once."""
        plain = Rows(rows.batch, rows.lineage)
        self._waiting.setdefault(target, []).append(plain)
        self._rows[target] = self._rows.get(target, 0) + len(rows)
        self._bytes[target] = self._bytes.get(target, 0) + rows.bytes
        is_full = batch_rows is not None and self._rows[target] >= batch_rows
        if is_full or self._bytes[target] >= PAYLOAD_BYTES_MAX:
            self._flush(target, batch_rows, everything=not is_full)

    def close(self, batch_rows: Callable[[Target], int | None]) -> None:
        """Put out all that is left, in a fixed order."""
        for target in sorted(self._waiting):
            self._flush(target, batch_rows(target), everything=True)

    def _flush(self, target: Target, batch_rows: int | None, *, everything: bool) -> None:
        rows = concat(self._waiting.pop(target))
        step = batch_rows or len(rows)
        end = len(rows) if everything else len(rows) - len(rows) % step
        wire = rows.to_wire()
        for start in range(0, end, step):
            for piece in pieces(wire.slice(start, min(step, end - start))):
                self._emit(target, piece)
        rest = rows.slice(end, len(rows) - end)
        self._rows[target], self._bytes[target] = len(rest), rest.bytes
        if len(rest):
            self._waiting[target] = [rest]


def pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Consecutive parts, none above the size of a payload unless a single row is."""
    if batch.nbytes <= PAYLOAD_BYTES_MAX or batch.num_rows == 1:
        yield batch
        return
    half = batch.num_rows // 2
    yield from pieces(batch.slice(0, half))
    yield from pieces(batch.slice(half))
