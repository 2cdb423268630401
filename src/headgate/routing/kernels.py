"""The compiled hot loops over keys and rows, if they were built; see `native.py`."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from headgate import native
from headgate.arrays import F64, I32, I64, U64
from headgate.native import COUNT, POINTER, Kernels
from headgate.native import at as _at

_BYTES = [POINTER, COUNT, POINTER, COUNT, COUNT, COUNT, POINTER]
_SIGNATURES: native.Signatures = {
    "hg_hash_bytes": (_BYTES, COUNT),
    "hg_fold": ([POINTER, POINTER, COUNT], None),
    "hg_mix_words": ([POINTER, COUNT, POINTER], None),
    "hg_sip_bytes": ([POINTER, *_BYTES], COUNT),
    "hg_sip_words": ([POINTER, POINTER, COUNT, COUNT, POINTER], None),
    "hg_group_rows": ([POINTER, POINTER, COUNT, COUNT, POINTER, POINTER], COUNT),
    "hg_order_of": ([POINTER, COUNT, POINTER, POINTER], None),
    "hg_assign": ([POINTER, POINTER, *[COUNT] * 4, POINTER, POINTER], None),
}


class ByteColumn:
    """Where the values of an Arrow column of bytes lie, for the loops; holds on to the buffers."""

    def __init__(self, data: Any, offsets: Any, width: int, rows: int) -> None:
        """`offsets` is a NumPy array of rows + 1 numbers, or None for values of equal width."""
        self._held = data, offsets
        self.rows = rows
        self.arguments = (
            _at(data),
            len(data),
            None if offsets is None else _at(offsets),
            0 if offsets is None else offsets.itemsize,
            width,
            rows,
        )


def load() -> Kernels | None:
    """The library beside this module, or None."""
    return native.load(Path(__file__).parent, _SIGNATURES, "keys are hashed")


compiled: Kernels | None = load()


def hash_bytes(kernels: Kernels, column: ByteColumn) -> tuple[U64, int]:
    """A number per value (of long ones anything), and how many are long."""
    numbers = np.empty(column.rows, np.uint64)
    return numbers, _whole(kernels.hash_bytes(*column.arguments, _at(numbers)))


def sip_bytes(kernels: Kernels, key: bytes, column: ByteColumn) -> tuple[U64, int]:
    """The SipHash of each value that is not long, and how many are."""
    numbers = np.empty(column.rows, np.uint64)
    secret = np.frombuffer(key, np.uint64)
    return numbers, _whole(kernels.sip_bytes(_at(secret), *column.arguments, _at(numbers)))


def fold(kernels: Kernels, h: U64, numbers: U64) -> None:
    """Stir numbers into hashes, in place."""
    kernels.fold(_at(h), _at(numbers), len(h))


def mix_words(kernels: Kernels, words: U64) -> U64:
    mixed = np.empty(len(words), np.uint64)
    kernels.mix_words(_at(words), len(words), _at(mixed))
    return mixed


def sip_words(kernels: Kernels, key: bytes, words: Sequence[U64]) -> U64:
    hashed = np.empty(len(words[0]), np.uint64)
    secret, held = np.frombuffer(key, np.uint64), [np.ascontiguousarray(w) for w in words]
    kernels.sip_words(_at(secret), _pointers(held), len(held), len(hashed), _at(hashed))
    return hashed


def group_rows(kernels: Kernels, h: U64, marks: Sequence[U64]) -> tuple[I64, I64]:
    """Group per row, row per group."""
    h, held = np.ascontiguousarray(h), [np.ascontiguousarray(mark) for mark in marks]
    codes, first = np.empty(len(h), np.int64), np.empty(len(h), np.int64)
    groups = kernels.group_rows(_at(h), _pointers(held), len(held), len(h), _at(codes), _at(first))
    if groups < 0:
        raise MemoryError(f"no memory to group {len(h)} rows")
    return codes, first[:groups].copy() if 2 * groups < len(h) else first[:groups]


def order_of(kernels: Kernels, codes: I64, starts: I64) -> I64:
    """Row numbers sorted by group, in order within one; `starts` is where each group begins."""
    order = np.empty(len(codes), np.int64)
    places = starts.copy()
    kernels.order_of(_at(codes), len(codes), _at(places), _at(order))
    return order


def assign(kernels: Kernels, times: F64, group: I64, busy: F64, first: int, ahead: bool) -> I32:
    """An instance per row; `busy` grows in place."""
    times, group = np.ascontiguousarray(times, np.float64), np.ascontiguousarray(group, np.int64)
    assert busy.flags.c_contiguous and busy.dtype == np.float64
    targets = np.empty(len(group), np.int32)
    places = _at(busy), _at(targets)
    kernels.assign(_at(times), _at(group), len(group), len(busy), first, ahead, *places)
    return targets


def _whole(long_values: int) -> int:
    if long_values < 0:
        raise ValueError("a column's offsets lead out of its data")
    return long_values


def _pointers(arrays: Sequence[U64]) -> Any:
    return (ctypes.c_void_p * max(1, len(arrays)))(*map(_at, arrays))
