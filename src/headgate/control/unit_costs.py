"""What units cost beside their rows, and how fast hosts are, learnt from what tasks timed.

Now and then a task times parts of its units (`headgate.slot.unit_times`). A part that takes longer
than its rows should makes each of its units count for more, and the same for less. Units are drawn
into other parts every time, so only what a unit costs itself stays with it, as a picture is made
from shadows (multiplicative reconstruction). A factor is that of a row against the mean row of the
operator, so a slot whose units are all expensive is found as well. What differs by less than
`NOISE` teaches nothing: at rest, factors stand still. A clock that pauses makes a part look dear
once; so how far parts were off what their units should take is kept as well (`doubt`). It is large
after a pause as after a change, and shrinks with every measurement that agrees.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from headgate.arrays import F64, I64, U64
from headgate.commit.planning import Observed
from headgate.routing.hashing import find_sorted
from headgate.slot.statistics import TaskStatistics
from headgate.slot.unit_times import part_of_units

NOISE = 0.15  # of a part's time, either way; about what clocks differ by from run to run
LEARNS = 0.7  # of the surprise of a part, in logarithms
FADES = 0.9  # of what a mean row takes, per measurement
DOUBT_FADES = 0.5  # of how far parts were off, in squares, per measurement
FACTOR_MAX = 1_000.0
UNITS_MAX = 1 << 17  # of an operator, with a factor of their own: 2 MB
MEASURED_MIN = 5  # times per host, before speeds are believed
ALIKE = 1.25  # the fastest host over the slowest, up to which all count as alike
SPEEDS_KEPT = 32  # measurements of a host


@dataclass
class _Learnt:
    """Factors of one operator's units, as logarithms; who is not there has factor 1."""

    unit: U64 = field(default_factory=lambda: np.empty(0, np.uint64))
    log: F64 = field(default_factory=lambda: np.empty(0))
    spent: float = 0.0
    work: float = 0.0
    off: dict[int, float] = field(default_factory=dict)  # square of a slot's doubt

    def of(self, unit: U64) -> F64:
        """The logarithm of every unit's factor."""
        at = find_sorted(self.unit, unit) if len(self.unit) else np.full(len(unit), -1)
        known = at >= 0
        found = np.zeros(len(unit))
        found[known] = self.log[at[known]]
        return found

    def take_in(self, slot: int, unit: U64, rows: F64, part: I64, spent: F64) -> None:
        log = self.of(unit)
        work = np.bincount(part, rows * np.exp(log), len(spent))
        self.spent = FADES * self.spent + float(spent.sum())
        self.work = FADES * self.work + float(work.sum())
        told = (work > 0) & (spent > 0)
        if not told.any():
            return
        surprise = np.zeros(len(spent))
        surprise[told] = np.log(spent[told] / work[told] * self.work / self.spent)
        off = float(((work / work.sum() * surprise) ** 2).sum())  # parts go wrong each by itself
        self.off[slot] = max(off, DOUBT_FADES * self.off.get(slot, 0.0))
        surprise[np.abs(surprise) < np.log1p(NOISE)] = 0.0
        if surprise.any():
            log = np.clip(log + LEARNS * surprise[part], -np.log(FACTOR_MAX), np.log(FACTOR_MAX))
            self._put(unit, log)

    def _put(self, unit: U64, log: F64) -> None:
        others = ~np.isin(self.unit, unit, assume_unique=True)
        unit = np.concatenate([self.unit[others], unit])
        log = np.concatenate([self.log[others], log])
        telling = np.argsort(-np.abs(log), kind="stable")[:UNITS_MAX]
        telling = telling[np.argsort(unit[telling])]
        self.unit, self.log = unit[telling], log[telling]


class UnitCosts:
    """Factors by operator, from all that was timed so far."""

    def __init__(self) -> None:
        self._learnt: dict[str, _Learnt] = {}

    def learn(self, observed: Iterable[Observed], speeds: Mapping[int, float]) -> None:
        """Take in what tasks timed; `speeds` of slots, where they are not 1."""
        for epoch in observed:
            for task in epoch.statistics:
                for operator, spent_ns in task.unit_ns.items():
                    self._take_in(operator, epoch.facts.epoch, task, spent_ns, speeds)

    def factors(self, operator: str, unit: U64) -> F64:
        """What a row of each unit costs against a mean row."""
        learnt = self._learnt.get(operator)
        return np.ones(len(unit)) if learnt is None else np.exp(learnt.of(unit))

    def doubt(self, operator: str, slots: int) -> F64:
        """Standard error of every slot's load of an operator, as a share of it."""
        learnt = self._learnt.get(operator)
        off = {} if learnt is None else learnt.off
        return np.sqrt([off.get(slot, 0.0) for slot in range(slots)])

    # --- inside ----------------------------------------------------------------------------
    def _take_in(
        self,
        operator: str,
        epoch: int,
        task: TaskStatistics,
        spent_ns: Sequence[int],
        speeds: Mapping[int, float],
    ) -> None:
        counted = task.loads.get(operator)
        if counted is None or not len(counted):
            return
        spent = np.array(spent_ns, np.float64) * speeds.get(task.slot, 1.0)
        part = part_of_units(counted.a, epoch, len(spent))
        learnt = self._learnt.setdefault(operator, _Learnt())
        learnt.take_in(task.slot, counted.a, counted.count, part, spent)


class HostSpeeds:
    """How fast hosts are, 1 being the middle one: given, or measured by tasks' small fixed work.

    Measured ones are believed when hosts are clearly not alike; otherwise all are 1, so that noise
    moves nothing.
    """

    def __init__(self, given: Mapping[str, float]) -> None:
        self._given = given
        self._took: dict[str, deque[int]] = {}

    def learn(self, observed: Iterable[Observed]) -> None:
        for epoch in observed:
            hosts = epoch.facts.engine.hosts
            for task in epoch.statistics:
                if task.yardstick_ns and task.slot < len(hosts):
                    took = self._took.setdefault(hosts[task.slot], deque(maxlen=SPEEDS_KEPT))
                    took.append(task.yardstick_ns)

    def of(self, hosts: Sequence[str]) -> F64:
        """A speed for each of these hosts."""
        if not any(host in self._given for host in hosts):
            return self._measured(hosts)
        return np.array([self._given.get(host, 1.0) for host in hosts])

    def _measured(self, hosts: Sequence[str]) -> F64:
        took = {host: self._took.get(host, ()) for host in hosts}
        if any(len(times) < MEASURED_MIN for times in took.values()):
            return np.ones(len(hosts))
        middle = {host: float(np.median(times)) for host, times in took.items()}
        if not middle or max(middle.values()) <= ALIKE * min(middle.values()):
            return np.ones(len(hosts))
        speed = float(np.median(list(middle.values()))) / np.array([middle[host] for host in hosts])
        return np.asarray(np.round(speed, 2))
