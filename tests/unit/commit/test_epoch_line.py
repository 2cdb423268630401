"""A line put in is found again; epochs of one size have no foot."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.commit.epoch_line import EpochLine, line_of, tells_apart

SIZES = [50_000, 50_000, 400_000, 50_000, 400_000]


@given(fixed=st.just(0.0) | st.floats(1e-4, 5), row=st.just(0.0) | st.floats(1e-9, 1e-4))
def test_what_was_put_in_is_found(fixed, row):
    found = line_of(SIZES, [fixed + row * rows for rows in SIZES])

    assert found.fixed_s == pytest.approx(fixed, rel=1e-4, abs=1e-7)
    assert found.row_s == pytest.approx(row, rel=1e-4, abs=1e-12)


@given(
    seconds=st.lists(st.just(0.0) | st.floats(1e-6, 10), min_size=len(SIZES), max_size=len(SIZES))
)
def test_neither_part_is_ever_negative(seconds):
    found = line_of(SIZES, seconds)

    assert found.fixed_s >= 0 and found.row_s >= 0


def test_epochs_of_one_size_are_all_for_rows():
    assert not tells_apart([100, 110, 100])
    assert line_of([100, 100, 100], [1.0, 2.0, 3.0]) == EpochLine(0.0, 0.02)
