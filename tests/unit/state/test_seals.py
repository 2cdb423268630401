"""A seal shows every single flipped bit, for certain, and the same row elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headgate.state import kernels
from headgate.state.layout import Values
from headgate.state.seals import factors, row_seals, value_seals

ROWS = 50


@pytest.fixture(autouse=True, params=["compiled", "numpy"])
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "numpy":
        monkeypatch.setattr(kernels, "compiled", None)
    elif kernels.compiled is None:
        pytest.skip("no C compiler when it was installed")


def test_every_factor_carries_every_bit_into_the_seal() -> None:
    """A flipped bit changes the sum by at least 2**32, up or down, so it shows in the upper half.

    Bit b of a word counts as b, and from 32 on as b - 32 as well; either may be set or cleared.
    """
    bits = [1 << b for b in range(64)]
    changes = bits + [(1 << b) + (1 << b - 32) for b in range(32, 64)]
    changes += [(1 << b) - (1 << b - 32) for b in range(32, 64)]
    for factor in factors(300).tolist():
        assert factor % 2
        for change in changes:
            moved = change * factor % 2**64
            assert 2**32 <= moved <= 2**64 - 2**32


DTYPES = ["u1", "i2", "i4", "i8", "f4", "f8", "?", "V3", "V8", "V16"]


@pytest.mark.parametrize("dtype", [*DTYPES, "f8 x 3", "i2 x 5"])
def test_a_flipped_bit_of_any_column_changes_the_seal(dtype: str) -> None:
    rng = np.random.default_rng(1)
    kind, _, width = dtype.partition(" x ")
    size = np.dtype(kind).itemsize
    raw = rng.integers(0, 256, (ROWS, size * int(width or 1))).astype(np.uint8)
    if kind == "?":
        raw &= 1

    def seals(raw: Any, valid: Any) -> Any:
        data = np.ascontiguousarray(raw).view(kind)
        column = Values(data if width else data.reshape(-1), valid)
        other = Values(np.arange(ROWS, dtype=np.int64))
        return row_seals(h, check, pos, [other, column])[0]

    h, pos = rng.integers(0, 2**63, ROWS).astype(np.uint64), np.arange(ROWS)
    check, valid = np.ones(ROWS, np.uint8), rng.random(ROWS) < 0.5
    right = seals(raw, valid)
    for bit in range(1 if kind == "?" else raw.shape[1] * 8):
        flipped = raw.copy()
        flipped[:, bit // 8] ^= 1 << bit % 8
        assert (seals(flipped, valid) != right).all()
    assert (seals(raw, ~valid) != right).all()
    assert (seals(raw, None)[valid] == right[valid]).all()


def test_a_flipped_bit_of_identity_or_place_changes_the_seal() -> None:
    rng = np.random.default_rng(2)
    h, check = (rng.integers(0, 2**63, ROWS).astype(np.uint64) for _ in range(2))
    pos = np.arange(ROWS)
    right = row_seals(h, check, pos, ())[0]
    for bit in range(64):
        flip = np.uint64(1 << bit)
        assert (row_seals(h ^ flip, check, pos, ())[0] != right).all()
        assert (row_seals(h, check ^ flip, pos, ())[0] != right).all()
    assert (row_seals(h, check, pos + 1, ())[0] != right).all()
    assert (
        row_seals(h, check.astype(np.uint8), pos, ())[0][check < 256] == right[check < 256]
    ).all()


def test_seals_do_not_depend_on_how_many_rows_are_sealed_together() -> None:
    rng = np.random.default_rng(3)
    h = rng.integers(0, 2**63, 70_000).astype(np.uint64)
    pos, column = np.arange(len(h)), Values(rng.random((len(h), 2)))
    together = row_seals(h, h, pos, [column])[0]
    some = np.array([0, 1, 32_767, 32_768, 65_536, 69_999])
    alone = row_seals(h[some], h[some], pos[some], [column.take(some)])[0]
    assert together[some].tolist() == alone.tolist()


def test_a_flipped_bit_of_a_value_changes_its_seal_and_no_other() -> None:
    """Empty, short, of whole words, and too long for words."""
    rng = np.random.default_rng(4)
    lengths = np.array([0, 1, 7, 8, 9, 15, 16, 64, 200, 256, 257, 1000])
    bounds = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    body = rng.integers(0, 256, int(bounds[-1])).astype(np.uint8)
    ordinals = np.arange(10, 10 + len(lengths))
    right = value_seals(bounds, body, ordinals)
    for at in range(len(body)):
        flipped = body.copy()
        flipped[at] ^= 1 << at % 8
        owner = int(np.searchsorted(bounds, at, side="right")) - 1
        changed = np.flatnonzero(value_seals(bounds, flipped, ordinals) != right)
        assert changed.tolist() == [owner]
    assert (value_seals(bounds, body, ordinals + 1) != right).all()


def test_a_zero_at_the_end_of_a_value_counts() -> None:
    short, long = b"ab", b"ab\0"
    seals = [
        value_seals(np.array([0, len(v)]), np.frombuffer(v, np.uint8), np.array([7]))[0]
        for v in (short, long)
    ]
    assert seals[0] != seals[1]


def test_values_are_sealed_alike_in_small_and_large_batches() -> None:
    rng = np.random.default_rng(5)
    lengths = rng.integers(0, 20, 40_000)
    bounds = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    body = rng.integers(0, 256, int(bounds[-1])).astype(np.uint8)
    together = value_seals(bounds, body, np.arange(len(lengths)))
    for row in (0, 32_767, 32_768, 39_999):
        cut = body[bounds[row] : bounds[row + 1]]
        alone = value_seals(np.array([0, len(cut)]), cut, np.array([row]))
        assert alone[0] == together[row]
