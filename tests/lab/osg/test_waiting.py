"""Rows that wait take, together, what they say."""

from __future__ import annotations

import time

import pytest

from headgate_lab.osg.waiting import wait, wait_ms


def test_rows_make_up_for_sleeping_too_long():
    begun_s = time.perf_counter()
    for _ in range(200):
        wait_ms(0.5)
    took_ms = 1e3 * (time.perf_counter() - begun_s)
    assert took_ms >= 99.0, "never faster than it says"


def test_a_row_says_when_it_was_processed():
    done = wait({"author": 7, "ms": 2.0})
    assert done["author"] == 7 and done["task"] == 0
    assert done["ended_s"] - done["begun_s"] >= 0.001
    assert done["ended_s"] == pytest.approx(time.time(), abs=60)
