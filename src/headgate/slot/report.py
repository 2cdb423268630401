"""What a task tells apart from its rows: where its time went, what it counted, where it ran.

Of its time a task has a core, or is in line for one, or waits for something else. What waits (a
call to a service, a disk) needs no core, so many instances of it can share a few. What stands in
line only says that the machine is busy. Linux counts how long a thread was ready to run and did not
(`schedstat`). Where nobody counts that, nothing is said to wait: the two look alike.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from functools import cache
from typing import NamedTuple

_SCHEDSTAT = "/proc/thread-self/schedstat"
_files: dict[tuple[int, int], int] = {}  # by process and thread: a fork must not read its parent's


MOVING = "moving "  # before an operator's name: the time in which its state moved


class Timing(NamedTuple):
    """Time of a task in an operator; of all of the task if there is no name."""

    level: int
    producer: int  # a slot, or at level 0 a source partition
    name: str
    rows: int
    nanoseconds: int
    cpu_ns: int = 0
    wait_ns: int = 0  # in which it needed no core

    @property
    def is_moving(self) -> bool:
        return self.name.startswith(MOVING)

    @property
    def operator(self) -> str:
        return self.name.removeprefix(MOVING)


class Counted(NamedTuple):
    """What a task counted: `TaskStatistics`, packed."""

    level: int
    producer: int
    data: bytes


class Machine(NamedTuple):
    """Where a task ran: hosts that are containers of one machine share its processors."""

    name: str
    cpus: int


Report = Timing | Counted | Machine


class Moment(NamedTuple):
    """A point in time, and what the process had spent by then (`queued_ns` None: nobody counts)."""

    wall_ns: int
    cpu_ns: int
    queued_ns: int | None


class Spent(NamedTuple):
    """Between two moments; `cpu_ns` is that of all threads, `wait_ns` needed no core."""

    nanoseconds: int
    cpu_ns: int
    wait_ns: int


def moment(wall_ns: int) -> Moment:
    """Now, which is `wall_ns` by the clock that is asked for time; some microseconds."""
    return Moment(wall_ns, time.process_time_ns(), queued_ns())


def spent_between(before: Moment, after: Moment) -> Spent:
    """What passed from one moment to another.

    Examples:
        >>> spent_between(Moment(0, 0, 0), Moment(100, 20, 30))
        Spent(nanoseconds=100, cpu_ns=20, wait_ns=50)
        >>> spent_between(Moment(0, 0, None), Moment(100, 20, None)).wait_ns
        0
    """
    wall, cpu = after.wall_ns - before.wall_ns, after.cpu_ns - before.cpu_ns
    if before.queued_ns is None or after.queued_ns is None:
        return Spent(wall, cpu, 0)
    queued = after.queued_ns - before.queued_ns
    return Spent(wall, cpu, max(0, wall - cpu - queued))


def queued_ns() -> int | None:
    """How long this thread was ready to run, and no core was free; None if nobody counts that."""
    place = os.getpid(), threading.get_ident()
    for _ in range(2):  # the first file may be that of a thread that is gone
        try:
            if place not in _files:
                _files[place] = os.open(_SCHEDSTAT, os.O_RDONLY | os.O_CLOEXEC)
            return int(os.pread(_files[place], 64, 0).split()[1])
        except (OSError, ValueError, IndexError):
            stale = _files.pop(place, None)
            if stale is not None:
                os.close(stale)
    return None


@cache
def this_machine() -> Machine:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            name = file.read().strip()
    except OSError:
        name = socket.gethostname()
    affinity = getattr(os, "sched_getaffinity", None)
    return Machine(name, (os.cpu_count() or 1) if affinity is None else len(affinity(0)))
