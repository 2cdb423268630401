"""How many instances every group of operators should have: the search.

In a small flow all combinations are tried. In a larger one it begins with what Algorithm 1 of Sax
et al. 2013 says, or with the best of all alike, and goes on as long as epochs become shorter:
another number for one group; for all groups of a level, since a level has as many tasks as the
largest of its groups; and a bound for all groups from a level on, since those behind have tasks in
the levels before. Every move is tried with every number at once, so the questions asked of the
model are some for each group and level.

Step by step the search found the best of all combinations to within 5 % for 99.9 % of 4,000 random
flows of up to four groups, and to within 16 % for all.

Then as few instances as nearly that takes: each costs more than any model sees.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations

import numpy as np

from headgate.arrays import F64, I64
from headgate.planner.tuning.cost_model import EngineCosts, FlowModel, Step, Stream
from headgate.planner.tuning.epoch_times import EpochTimes
from headgate.planner.tuning.groups import Groups
from headgate.planner.tuning.optimizer import optimize

SPARE = 0.02  # of an epoch's time, for fewer instances
ROUNDS_MAX = 6  # of all moves; two or three are the rule
GAIN_MIN = 1e-4  # of an epoch's time, for another round
ALL_NUMBERS = 16  # up to so many slots every number is tried, beyond them some between
BOUNDS_MAX = 8  # levels from which on all groups are bounded together
EVERY_MAX = 25_000  # combinations: up to so many are all tried, as with 12 slots and 4 groups
FEW = 6  # groups: any two of them are tried together
SOURCE = "(source tasks)"


class InstanceSearch:
    """Searches for epochs of so many rows; `asked` counts the questions to the model."""

    def __init__(self, times: EpochTimes, rows: float, batch_rows: Mapping[str, int]) -> None:
        self._times, self._rows, self._batch_rows = times, rows, batch_rows
        groups = times.model.groups.of
        self._free = [number for number, group in enumerate(groups) if group.is_free]
        self._home = [group.home for group in groups]
        self.asked = 0

    def best(self, rate: float | None = None) -> I64:
        """The shortest epoch that is found; `rate` of the sources is where Algorithm 1 begins."""
        if self._times.slots ** len(self._free) <= EVERY_MAX:
            every = self._every()
            return every[:, [int(self._seconds(every).argmin())]]
        return self.descended(rate)

    def descended(self, rate: float | None = None) -> I64:
        """The shortest epoch that is found step by step."""
        starts = np.concatenate([*self._alike(), self._by_the_paper(rate)], axis=1)
        seconds = self._seconds(starts)
        first = int(seconds.argmin())
        return self._descend(starts[:, [first]], float(seconds[first]))[0]

    def fewest(self, chosen: I64, spare: float = SPARE) -> I64:
        """As few of each group as such an epoch can do with, the lightest groups first."""
        allowed = float(self._seconds(chosen)[0]) * (1 + spare)
        busy = self._times.of(chosen, self._rows, self._batch_rows).busiest_s[:, 0] * chosen[:, 0]
        for group in sorted(self._free, key=lambda g: float(busy[g])):
            now = int(chosen[group, 0])
            if now == 1:
                continue
            tried = np.repeat(chosen, now, axis=1)
            tried[group] = np.arange(1, now + 1)
            chosen = tried[:, [int(np.argmax(self._seconds(tried) <= allowed))]]
        return chosen

    # --- inside ----------------------------------------------------------------------------
    def _seconds(self, columns: I64) -> F64:
        self.asked += 1
        return self._times.of(columns, self._rows, self._batch_rows).epoch_s

    def _every(self) -> I64:
        """All combinations of instances."""
        base, slots = self._times.column({}), self._times.slots
        columns = np.repeat(base, slots ** len(self._free), axis=1)
        for place, group in enumerate(self._free):
            columns[group] = np.arange(columns.shape[1]) // slots**place % slots + 1
        return columns

    def _alike(self) -> Iterator[I64]:
        groups = self._times.model.groups.of
        for count in self._numbers(self._times.slots):
            yield self._times.column({group.name: count for group in groups})

    def _by_the_paper(self, rate: float | None) -> I64:
        model = self._times.model
        told = instances_of_paper(model.groups, model.costs, rate or _source_rate(self._times))
        return self._times.column(told)

    def _numbers(self, now: int) -> list[int]:
        """Numbers of instances worth a try: all if there are few, else some, and those around."""
        slots = self._times.slots
        if slots <= ALL_NUMBERS:
            return list(range(1, slots + 1))
        some = {round(slots ** (i / ALL_NUMBERS)) for i in range(ALL_NUMBERS + 1)}
        return sorted({*some, *range(max(1, now - 2), min(slots, now + 2) + 1)})

    def _descend(self, at: I64, seconds: float) -> tuple[I64, float]:
        for _ in range(ROUNDS_MAX):
            before = seconds
            for groups, bounds in self._moves():
                tried = self._tried(at, groups, bounds)
                found = self._seconds(tried)
                best = int(found.argmin())
                if found[best] < seconds * (1 - 1e-9):
                    at, seconds = tried[:, [best]], float(found[best])
            if seconds > before * (1 - GAIN_MIN) and len(self._free) <= FEW:
                at, seconds = self._in_pairs(at, seconds)
            if seconds > before * (1 - GAIN_MIN):
                break
        return at, seconds

    def _in_pairs(self, at: I64, seconds: float) -> tuple[I64, float]:
        """Any two numbers for any two groups: where each alone is best, both may not be."""
        numbers = np.array(self._numbers(int(at.max())), np.int64)
        for one, other in combinations(self._free, 2):
            tried = np.repeat(at, len(numbers) ** 2, axis=1)
            tried[one], tried[other] = (
                np.repeat(numbers, len(numbers)),
                np.tile(numbers, len(numbers)),
            )
            found = self._seconds(tried)
            best = int(found.argmin())
            if found[best] < seconds * (1 - 1e-9):
                at, seconds = tried[:, [best]], float(found[best])
        return at, seconds

    def _moves(self) -> Iterator[tuple[I64, bool]]:
        """Groups to get another number together: the same for all, or no more than that (True)."""
        free = np.array(self._free, np.int64)
        home = np.array(self._home, np.int64)[free]
        levels = np.unique(home)
        for level in levels[:: -(-len(levels) // BOUNDS_MAX) or 1]:
            yield free[home >= level], True
        for level in levels:
            mine = free[home == level]
            if len(mine) > 1:
                yield mine, False
        for group in self._free:
            yield np.array([group], np.int64), False

    def _tried(self, at: I64, groups: I64, bounds: bool) -> I64:
        numbers = np.array(self._numbers(int(at[groups].max())), np.int64)
        tried = np.repeat(at, len(numbers), axis=1)
        tried[groups] = np.minimum(tried[groups], numbers) if bounds else numbers
        return tried


def instances_of_paper(groups: Groups, costs: EngineCosts, rate: float) -> dict[str, int]:
    """What Algorithm 1 gives every group if so many rows per second come."""
    rows = dict.fromkeys((group.name for group in groups.of), 0.0)
    for leg in groups.legs:
        rows[leg.consumer] += leg.rows
    steps = [Step(SOURCE, source_rate=rate)]
    steps += [
        Step(g.name, (g.cpu_s + g.wait_s) / rows[g.name] if rows[g.name] else 0.0)
        for g in groups.of
    ]
    streams = []
    for leg in groups.legs:
        come = 1.0 if leg.producer is None else rows[leg.producer]
        per_row, by = leg.rows / come if come else 0.0, leg.producer or SOURCE
        size, share = leg.stream.row_bytes, leg.stream.remote_share
        streams.append(Stream(by, leg.consumer, per_row, size, share))
    return dict(optimize(FlowModel(tuple(steps), tuple(streams)), costs).configuration.dop)


def _source_rate(times: EpochTimes) -> float:
    """Rows per second that source tasks could bring, or all work could take if they cost none."""
    model = times.model
    cpu_s, wait_s = model.groups.source_s
    if cpu_s + wait_s > 0:
        return min(model.source_tasks, model.cores_for(times.slots)) / (cpu_s + wait_s)
    spent = sum(g.cpu_s + g.wait_s for g in model.groups.of)
    return times.slots / spent if spent else 1.0
