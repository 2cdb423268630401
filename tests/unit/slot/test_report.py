"""Time that needs no core is told from time in which there was none."""

from __future__ import annotations

import os
import threading
import time

import pytest

from headgate.slot.report import (
    MOVING,
    Moment,
    Timing,
    moment,
    queued_ns,
    spent_between,
    this_machine,
)

COUNTED = queued_ns() is not None
only_counted = pytest.mark.skipif(not COUNTED, reason="this system does not count it")


@only_counted
def test_what_waits_for_others_needs_no_core():
    """20 ms that nobody uses a core for, however busy the machine is."""
    before = moment(time.perf_counter_ns())
    threading.Event().wait(0.02)
    spent = spent_between(before, moment(time.perf_counter_ns()))

    assert spent.wait_ns >= 20_000_000
    assert spent.nanoseconds >= spent.wait_ns + spent.cpu_ns


@only_counted
def test_work_waits_for_nobody():
    before = moment(time.perf_counter_ns())
    while time.process_time_ns() - before.cpu_ns < 20_000_000:
        pass
    spent = spent_between(before, moment(time.perf_counter_ns()))

    assert spent.cpu_ns >= 20_000_000
    assert spent.wait_ns < spent.cpu_ns / 2


def test_standing_in_line_is_not_waiting():
    assert spent_between(Moment(0, 0, 5), Moment(90, 30, 65)) == (90, 30, 0)


def test_where_nobody_counts_the_line_nothing_waits():
    assert spent_between(Moment(0, 0, None), Moment(90, 30, None)) == (90, 30, 0)
    assert spent_between(Moment(0, 0, 1), Moment(90, 30, None)) == (90, 30, 0)


def test_threads_that_use_more_than_one_core_do_not_wait():
    assert spent_between(Moment(0, 0, 0), Moment(100, 180, 0)).wait_ns == 0


@only_counted
def test_every_thread_has_a_line_of_its_own():
    """A file that was opened for a thread that is gone is opened again."""
    found: list[int | None] = []
    for _ in range(3):
        thread = threading.Thread(target=lambda: found.append(queued_ns()))
        thread.start()
        thread.join()

    assert len(found) == 3 and None not in found
    assert queued_ns() is not None


def test_a_machine_has_a_name_and_processors():
    machine = this_machine()

    assert machine.name and 1 <= machine.cpus <= (os.cpu_count() or machine.cpus)


def test_moving_state_is_told_apart():
    timing = Timing(1, 0, MOVING + "op", 3, 10)

    assert timing.is_moving and timing.operator == "op"
    assert not Timing(1, 0, "op", 3, 10).is_moving
