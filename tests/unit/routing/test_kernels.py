"""The compiled loops and NumPy agree on every number, whatever the column's layout."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.operator.rows import Groups
from headgate.routing import kernels
from headgate.routing.hashing import group_rows, hash_columns
from headgate.routing.identity import Identity
from strategies import KEY_COLUMNS, KEY_VALUES, columns, examples
from unit.routing.test_hashing import GOLDEN

IDENTITY = Identity(bytes(range(16)))
built = pytest.mark.skipif(kernels.compiled is None, reason="no C compiler when it was installed")


def in_numpy(work: Callable[[], Any]) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "compiled", None)
        return work()


def same(work: Callable[[], list[Any]]) -> None:
    for ours, theirs in zip(work(), in_numpy(work), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@st.composite
def keys(draw: st.DrawFn) -> list[pa.Array]:
    """One to three columns of equal length, as slices of longer ones."""
    kinds = draw(st.lists(st.sampled_from(list(KEY_VALUES)), min_size=1, max_size=3))
    drawn = [draw(columns(kind, min_size=8)) for kind in kinds]
    start, rows = draw(st.integers(0, 4)), draw(st.integers(0, 4))
    return [column.slice(start, rows) for column in drawn]


@built
@examples(300)
@given(keys())
def test_hashes_marks_and_checks_are_the_same(key: list[pa.Array]) -> None:
    rows = len(key[0])

    def work() -> list[Any]:
        marks = IDENTITY.marks(key, rows)
        return [hash_columns(key, rows), *marks, IDENTITY.check(marks, rows)]

    same(work)


@built
@examples(200)
@given(KEY_COLUMNS, st.integers(0, 63))
def test_groups_are_the_same_even_if_hashes_collide(key: pa.Array, bits: int) -> None:
    batch = pa.RecordBatch.from_arrays([key], names=["k"])
    h = hash_columns([key], len(key)) >> np.uint64(bits) << np.uint64(bits)  # the fewer, the worse

    def work() -> list[Any]:
        groups = Groups(h, h, batch, IDENTITY)
        return [*group_rows(h, IDENTITY.marks([key], len(key))), groups.order, groups.rank]

    same(work)


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_vectors_hold_without_a_compiler(name: str) -> None:
    kind, pairs = GOLDEN[name]
    column = pa.array([value for value, _ in pairs], kind)

    found = in_numpy(lambda: hash_columns([column], len(column)))

    assert found.tolist() == [h for _, h in pairs]


@built
def test_offsets_that_lead_out_of_the_data_are_refused() -> None:
    places = pa.py_buffer(np.array([0, 1_000, 3], np.int32).tobytes())
    broken = pa.Array.from_buffers(pa.string(), 2, [None, places, pa.py_buffer(b"abcd")])

    with pytest.raises(ValueError, match="lead out of its data"):
        hash_columns([broken], 2)


def test_without_a_library_one_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(kernels, "__file__", str(tmp_path / "kernels.py"))
    caplog.set_level(logging.INFO, "headgate")

    nothing = kernels.load()
    (tmp_path / "_kernels.so").write_text("no library")
    broken = kernels.load()

    assert nothing is None and broken is None
    assert ["without its compiled loops" in caplog.text, "cannot be used" in caplog.text] == [
        True,
        True,
    ]
    assert len(caplog.records) == 2
