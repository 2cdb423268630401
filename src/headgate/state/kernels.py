"""The compiled hot loops over state rows, if they were built; see `native.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from headgate import native
from headgate.arrays import I64, U32, U64, Bools
from headgate.native import COUNT, POINTER, Kernels, at

_TABLE = [POINTER, POINTER, COUNT, COUNT]
_SIGNATURES: native.Signatures = {
    "hg_find": ([*[POINTER] * 3, COUNT, COUNT, *_TABLE, COUNT, POINTER, POINTER], COUNT),
    "hg_claim": ([POINTER, POINTER, COUNT, *_TABLE, POINTER], COUNT),
    "hg_order": ([*[POINTER] * 4, COUNT, COUNT, POINTER, POINTER], COUNT),
    "hg_seal": ([POINTER, POINTER, COUNT, POINTER, COUNT, POINTER, COUNT, POINTER, POINTER], None),
    "hg_passed": ([POINTER, POINTER, COUNT, *[POINTER] * 2, COUNT, *[POINTER] * 2], COUNT),
    "hg_sum_values": ([*[POINTER] * 3, COUNT, COUNT, POINTER, POINTER], None),
    "hg_copy": ([POINTER, COUNT, POINTER, COUNT, POINTER, COUNT, COUNT], None),
    "hg_gather": ([POINTER, POINTER, COUNT, POINTER], None),
}
compiled: Kernels | None = native.load(Path(__file__).parent, _SIGNATURES, "state is looked up")


def find(
    kernels: Kernels,
    h: U64,
    marks: Any,
    start: Any,
    capacity: int,
    table_h: U64,
    table_marks: Any,
    plain: bool,
) -> tuple[Any, Bools]:
    """Positions of rows and which are there; IndexError if a probe leaves the table."""
    h, marks = np.ascontiguousarray(h), np.ascontiguousarray(marks)
    start = None if start is None else np.ascontiguousarray(start, np.int64)
    pos, found = np.empty(len(h), np.int64), np.empty(len(h), np.bool_)
    table = at(table_h), at(table_marks), table_marks.itemsize, len(table_h)
    begin = None if start is None else at(start)
    asked = at(h), at(marks), begin, len(h), capacity
    if kernels.find(*asked, *table, plain, at(pos), at(found)):
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


def seal(
    kernels: Kernels, h: U64, check: Any, pos: Any, columns: list[tuple[Any, Any]], factors: U64
) -> U32:
    """Seals of rows: of their identity, their positions, and columns of words, each with validity.

    `factors`: three, then one for each word of a column and one for its validity.
    """
    h, check, pos = (np.ascontiguousarray(part) for part in (h, check, pos))
    columns = [
        (np.ascontiguousarray(words), None if valid is None else np.ascontiguousarray(valid))
        for words, valid in columns
    ]
    told = [
        (at(w), w.itemsize, 1 if w.ndim == 1 else w.shape[1], 0 if valid is None else at(valid))
        for w, valid in columns
    ]
    given, seals = np.array(told, np.uint64), np.empty(len(h), np.uint32)
    rows = at(h), at(check), check.itemsize, at(pos), len(h)
    kernels.seal(*rows, at(given), len(columns), at(factors), at(seals))
    return seals


def passed(
    kernels: Kernels, h: U64, check: Any, first: Any, last: Any, factors: U64, seals: U32
) -> bool:
    """Have the positions from each of `first` to before each of `last` right index seals?"""
    first, last = np.ascontiguousarray(first), np.ascontiguousarray(last)
    spans = at(first), at(last), len(first)
    return bool(kernels.passed(at(h), at(check), check.itemsize, *spans, at(factors), at(seals)))


def sum_values(
    kernels: Kernels, bounds: I64, body: Any, ordinals: I64, longest: int, factors: U64
) -> U64:
    """What seals of values are made of, without the bytes of those longer than `longest`."""
    bounds, ordinals = np.ascontiguousarray(bounds), np.ascontiguousarray(ordinals)
    sums = np.empty(len(ordinals), np.uint64)
    rows = at(bounds), at(body), at(ordinals), len(ordinals)
    kernels.sum_values(*rows, longest, at(factors), at(sums))
    return sums


def take(kernels: Kernels, records: Any, pos: Any, numbers: list[Any]) -> list[Any]:
    """The numbers, which are views of a table's records, at some positions."""
    taken = [np.empty(len(pos), view.dtype) for view in numbers]
    _copy(kernels, records, pos, numbers, taken, put=False)
    return taken


def put(kernels: Kernels, records: Any, pos: Any, numbers: list[Any], columns: list[Any]) -> None:
    """Write columns to the numbers, which are views of a table's records, at some positions."""
    columns = [np.ascontiguousarray(c, n.dtype) for c, n in zip(columns, numbers, strict=True)]
    _copy(kernels, records, pos, numbers, columns, put=True)


def _copy(
    kernels: Kernels, records: Any, pos: Any, numbers: list[Any], columns: list[Any], *, put: bool
) -> None:
    pos, begin = np.ascontiguousarray(pos, np.int64), at(records)
    told = [(at(n) - begin, n.itemsize, at(c)) for n, c in zip(numbers, columns, strict=True)]
    given = np.array(told, np.uint64)
    kernels.copy(begin, records.shape[1], at(pos), len(pos), at(given), len(told), put)


def gather(kernels: Kernels, start: I64, size: I64, to: int) -> None:
    """Copy pieces of memory one behind the other; who calls knows that they are there."""
    kernels.gather(at(start), at(size), len(start), to)
