"""The compiled hot loops over state rows, if they were built; see `native.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from headgate import native
from headgate.arrays import I64, U64, Bools
from headgate.native import COUNT, POINTER, Kernels, at

_TABLE = [POINTER, POINTER, COUNT, COUNT]
_SIGNATURES: native.Signatures = {
    "hg_find": ([*[POINTER] * 3, COUNT, COUNT, *_TABLE, POINTER, POINTER], COUNT),
    "hg_claim": ([POINTER, POINTER, COUNT, *_TABLE, POINTER], COUNT),
    "hg_order": ([*[POINTER] * 4, COUNT, COUNT, POINTER, POINTER], COUNT),
    "hg_gather": ([POINTER, POINTER, COUNT, POINTER], None),
}
compiled: Kernels | None = native.load(Path(__file__).parent, _SIGNATURES, "state is looked up")


def find(
    kernels: Kernels, h: U64, marks: Any, start: Any, capacity: int, table_h: U64, table_marks: Any
) -> tuple[Any, Bools]:
    """Positions of rows and which are there; IndexError if a probe leaves the table."""
    h, marks = np.ascontiguousarray(h), np.ascontiguousarray(marks)
    start = None if start is None else np.ascontiguousarray(start, np.int64)
    pos, found = np.empty(len(h), np.int64), np.empty(len(h), np.bool_)
    table = at(table_h), at(table_marks), table_marks.itemsize, len(table_h)
    begin = None if start is None else at(start)
    if kernels.find(at(h), at(marks), begin, len(h), capacity, *table, at(pos), at(found)):
        raise IndexError("a probe left the table")
    return pos, found


def claim(kernels: Kernels, h: U64, marks: Any, table_h: U64, table_marks: Any, pos: Any) -> int:
    """Put rows at the first free positions from `pos` on, in place; how many have got one."""
    h, marks = np.ascontiguousarray(h), np.ascontiguousarray(marks)
    table = at(table_h), at(table_marks), table_marks.itemsize, len(table_h)
    return int(kernels.claim(at(h), at(marks), len(h), *table, at(pos)))


def order(
    kernels: Kernels, route: U64, h: U64, check: U64, packed: U64, bits: int
) -> tuple[I64, Bools]:
    """Rows by (route, h, check), and which of them are the first of equal ones.

    `packed`, sorted: the top bits of each route, and the row's number in the low `bits`.
    """
    parts = [np.ascontiguousarray(part) for part in (route, h, check, packed)]
    rows, first = np.empty(len(h), np.int64), np.empty(len(h), np.bool_)
    if kernels.order(*map(at, parts), len(h), bits, at(rows), at(first)):
        raise MemoryError(f"no memory to sort {len(h)} rows")
    return rows, first


def gather(kernels: Kernels, start: I64, size: I64, to: int) -> None:
    """Copy pieces of memory one behind the other; who calls knows that they are there."""
    kernels.gather(at(start), at(size), len(start), to)
