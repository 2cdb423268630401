"""Rows that wait take, together, what they say."""

from __future__ import annotations

import pytest

from headgate_lab.osg.waiting import SLACK_S, wait, wait_ms


class Clock:
    """Time that passes in pauses only, each longer than asked for."""

    def __init__(self, oversleeps_s: float) -> None:
        self.now_s, self._oversleeps_s = 1e6, oversleeps_s

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds + self._oversleeps_s


@pytest.mark.parametrize("oversleeps_s", [0.0, 0.0001, 0.003])
def test_rows_make_up_for_sleeping_too_long(oversleeps_s):
    clock = Clock(oversleeps_s)
    begun_s = clock.now_s
    for _ in range(200):
        wait_ms(0.5, clock=clock, sleep=clock.sleep)
    took_s = clock.now_s - begun_s
    assert 0.1 - 1e-6 <= took_s <= 0.1 + oversleeps_s + 1e-6


def test_after_a_pause_rows_begin_anew():
    clock = Clock(0.0)
    wait_ms(0.5, clock=clock, sleep=clock.sleep)
    clock.now_s += 2 * SLACK_S
    begun_s = clock.now_s
    wait_ms(0.5, clock=clock, sleep=clock.sleep)
    assert clock.now_s - begun_s == pytest.approx(0.0005)


def test_a_row_says_when_it_was_processed():
    done = wait({"author": 7, "ms": 0.0})
    assert done["author"] == 7 and done["task"] == 0
    assert done["ended_s"] >= done["begun_s"]
