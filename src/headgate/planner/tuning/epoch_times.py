"""How long epochs take, for many choices of instances at once.

A choice is a column: instances of every group, in the flow's order. A level takes as long as its
busiest slot, and no less than its work takes on the processors there are: work that waits needs
none, so only the first bounds it. Groups with as many instances as the level has slots are in every
slot. Those with fewer have slots of their own if there are enough; else some slot has several, and
no more than the mean of all and the largest. Rows that stayed are on top: they are where their
producers are. Which slots these are, `place_instances` decides later, by the same wishes.

Rows of an epoch share what it costs without any: the driver's part, a round of tasks per level, and
a task for every slot that a level has work in. The more instances of the group that has most, the
more tasks; so a level with one small group has one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from headgate.arrays import F64, I64, Bools
from headgate.planner.tuning.groups import Leg

if TYPE_CHECKING:
    from headgate.planner.tuning.epochs import EpochModel

MOSTLY_CHANCE = 0.9  # of the rows that would leave by chance do: tables keep next to none


@dataclass(frozen=True)
class Times:
    """Of every column: seconds of an epoch and its parts; levels and groups have a row each.

    `busiest_s` is what an instance of a group takes, `cpu_s` what all of them need of processors,
    `sending_s` what of that messages take, those of source tasks included.
    """

    epoch_s: F64
    fixed_s: F64
    source_s: F64
    levels_s: F64
    busiest_s: F64
    cpu_s: F64
    sending_s: F64
    messages: F64


class Traffic(NamedTuple):
    """Rows of a stream that leave their slot in an epoch, from so many tasks to so many."""

    stream: str
    row_bytes: float
    senders: int
    targets: int
    rows: float


class EpochTimes:
    """A flow on an engine with so many slots, as arrays."""

    def __init__(self, model: EpochModel, slots: int) -> None:
        self.model, self.slots = model, slots
        groups, legs = model.groups.of, model.groups.legs
        place = {group.name: number for number, group in enumerate(groups)}
        self.names = tuple(group.name for group in groups)
        self._cpu_s = np.array([g.cpu_s for g in groups])[:, None]
        self._wait_s = np.array([g.wait_s for g in groups])[:, None]
        self._instance_s = np.array([g.instance_s for g in groups])[:, None]
        self._bytes = np.array([g.bytes for g in groups])[:, None]
        self.stream_of_leg = [leg.stream.name for leg in legs]
        self._consumer = np.array([place[leg.consumer] for leg in legs], np.intp)
        source = len(groups)  # a row of its own behind the groups
        self._producer = np.array(
            [source if leg.producer is None else place[leg.producer] for leg in legs], np.intp
        )
        self._rows = np.array([leg.rows for leg in legs])[:, None]
        self._row_bytes = np.array([leg.stream.row_bytes for leg in legs])[:, None]
        self._fits = np.array([model.costs.batch_rows_max(leg.stream.row_bytes) for leg in legs])
        self._set_shares(model)
        self._into = np.zeros((len(groups), len(legs)))
        self._into[self._consumer, np.arange(len(legs))] = 1.0
        self._out = np.zeros((source + 1, len(legs)))
        self._out[self._producer, np.arange(len(legs))] = 1.0
        come = (self._into @ self._rows)[self._consumer]
        even = 1.0 / np.bincount(self._consumer, minlength=len(groups))[self._consumer, None]
        self._part = np.divide(self._rows, come, out=even, where=come > 0)  # of a group's rows
        self._set_levels(legs)
        self._set_spans([(g.first, g.last) for g in groups])

    def column(self, wanted: Mapping[str, int]) -> I64:
        """One choice: groups that are not mentioned have an instance in every slot."""
        counts = [
            group.count(wanted.get(group.name, self.slots), self.slots)
            for group in self.model.groups.of
        ]
        return np.array(counts, np.int64)[:, None]

    def exactly(self, counts: Mapping[str, int]) -> I64:
        """One choice as it is, fixed groups included."""
        found = [min(counts.get(name, self.slots), self.slots) for name in self.names]
        return np.array(found, np.int64)[:, None]

    def of(self, instances: I64, rows: float | F64, batch_rows: Mapping[str, int]) -> Times:
        """Times of all columns; `rows` of an epoch, for all or for each."""
        model, costs = self.model, self.model.costs
        count = instances.astype(np.float64)
        cpus, at_once = model.cpus_for(self.slots), model.cores_for(self.slots)
        away = self._away(count)
        sent = rows * self._rows * away
        messages = self._messages(count, sent, batch_rows)
        # Sender and receiver pay half each, and these halves keep cores busy.
        half_s = (sent * self._row_bytes * costs.byte_s + messages * costs.message_s) / 2
        paid_s = self._out @ half_s
        cpu_s = rows * self._cpu_s + self._instance_s * count + self._into @ half_s + paid_s[:-1]
        wait_s = rows * self._wait_s
        busiest_s = (cpu_s + wait_s) / count
        levels_s = model.stretch * self._levels_s(count, cpu_s, wait_s, away, cpus)
        own_cpu_s, own_wait_s = model.groups.source_s
        in_source_s = rows * own_cpu_s + paid_s[-1]
        whole_s = in_source_s + rows * own_wait_s
        tasks = model.source_tasks
        source_s = np.maximum(whole_s / min(tasks, at_once), in_source_s / min(tasks, cpus))
        fixed_s = (tasks + self._tasks(count)) * costs.task_s / cpus
        fixed_s += costs.epoch_s + (model.levels + 1) * costs.level_s
        epoch_s = fixed_s + source_s + levels_s.sum(axis=0)
        return Times(
            model.correction * epoch_s,
            model.correction * fixed_s,
            source_s,
            levels_s,
            busiest_s,
            cpu_s,
            2.0 * half_s.sum(axis=0),
            messages.sum(axis=0),
        )

    def bytes_sent(self, instances: I64) -> dict[str, float]:
        """Bytes that leave their slot on every stream, per source row; of one column."""
        sent = self._rows * self._away(instances.astype(np.float64)) * self._row_bytes
        found: dict[str, float] = {}
        for stream, size in zip(self.stream_of_leg, sent[:, 0].tolist(), strict=True):
            found[stream] = found.get(stream, 0.0) + size
        return found

    def traffic(self, instances: I64, rows: float) -> list[Traffic]:
        """What is sent on every stream; of one column."""
        sent = (rows * self._rows * self._away(instances.astype(np.float64)))[:, 0]
        found: dict[str, Traffic] = {}
        for number, leg in enumerate(self.model.groups.legs):
            tasks = self.model.source_tasks
            if leg.producer is not None:
                tasks = int(instances[self._producer[number], 0])
            to = int(instances[self._consumer[number], 0])
            _, _, before, _, some = found.get(leg.stream.name, ("", 0.0, 0, 0, 0.0))
            found[leg.stream.name] = Traffic(
                leg.stream.name,
                leg.stream.row_bytes,
                before + tasks,
                to,
                some + float(sent[number]),
            )
        return list(found.values())

    def talks(self, instances: I64) -> dict[tuple[str, str], float]:
        """What groups should share slots for: bytes per source row from one to the other."""
        found: dict[tuple[str, str], float] = {}
        for number, leg in enumerate(self.model.groups.legs):
            if leg.producer is None:
                continue
            few, many = instances[self._producer[number]], instances[self._consumer[number]]
            if not (self._may_part[number] & _are_apart(few, many, self.slots)).any():
                pair = leg.producer, leg.consumer
                found[pair] = found.get(pair, 0.0) + leg.rows * max(1.0, leg.stream.row_bytes)
        return found

    def bytes_per_slot(self, instances: I64) -> F64:
        """Bytes per source row that the fullest slot takes in, in the level with most."""
        if not len(self._order):
            return np.zeros(instances.shape[1])
        part = np.add.reduceat(self._part[self._order], self._entries, axis=0)
        each = part * (self._bytes / instances)[self._entry_group]
        fullest: F64 = np.add.reduceat(each, self._starts, axis=0).max(axis=0)
        return fullest

    # --- inside ----------------------------------------------------------------------------
    def _set_shares(self, model: EpochModel) -> None:
        """What share of a leg's rows leaves its slot: as measured, or by chance and by tables.

        Rows that stay are processed before those that leave. If a group has fewer instances than
        the one behind it, a few slots do that while others have nothing to do yet. So the two are
        kept apart, where there are slots for both and no tables that keep their rows together.

        Of rows that find their slot by chance one in as many stays as the larger group has
        instances; tables that keep more at home keep as much of the rest with other numbers.
        """
        seen, streams = model.seen_of, [leg.stream for leg in model.groups.legs]
        chance = [model.slots_seen > 0 and s.between_slots for s in streams]
        self._by_chance = np.array(chance, bool)
        self._away_seen = np.array([s.remote_share for s in streams])[:, None]
        kept = np.ones(len(streams))
        for number, leg in enumerate(model.groups.legs):
            among = max(seen(leg.consumer), seen(leg.producer or leg.consumer))
            if self._by_chance[number] and among > 1:
                kept[number] = min(1.0, leg.stream.remote_share / (1.0 - 1.0 / among))
        self._kept = kept[:, None]
        self._may_part = (self._by_chance & (kept >= MOSTLY_CHANCE))[:, None]

    def _set_levels(self, legs: Sequence[Leg]) -> None:
        """What is processed where: rows that arrive by a leg, and, behind them, those that stay."""
        arrives = np.array([leg.arrives for leg in legs], np.intp)
        self._order = np.lexsort((self._consumer, arrives))
        where = arrives[self._order] * (len(self.names) + 1) + self._consumer[self._order]
        _, self._entries = np.unique(where, return_index=True)  # a group in a level
        self._entry_group = self._consumer[self._order][self._entries]
        entry_level = arrives[self._order][self._entries]
        levels, self._starts = np.unique(entry_level, return_index=True)
        self._level_of = np.searchsorted(levels, entry_level)
        self.levels: tuple[int, ...] = tuple(levels.tolist())  # that have work
        place = {level: number for number, level in enumerate(self.levels)}
        stays = [n for n, leg in enumerate(legs) if self._by_chance[n] and leg.stays in place]
        at = [place[legs[n].stays] for n in stays]
        order = np.argsort(np.array(at, np.intp), kind="stable")
        self._staying = np.array(stays, np.intp)[order]
        self._stay_at = np.array(at, np.intp)[order]
        self._stay_levels, self._stay_starts = np.unique(self._stay_at, return_index=True)

    def _set_spans(self, spans: Sequence[tuple[int, int]]) -> None:
        levels = self.model.levels
        full = [n + 1 in self.model.full_levels for n in range(levels)]
        self._full = np.array(full, bool)[:, None]
        # By the first level in which groups have tasks: their numbers and last levels, in order.
        self._spans: list[tuple[int, I64, I64, I64]] = []
        for first in sorted({span[0] for span in spans}):
            mine = [g for g, span in enumerate(spans) if span[0] == first]
            mine.sort(key=lambda g: spans[g][1])
            last, starts = np.unique([spans[g][1] for g in mine], return_index=True)
            self._spans.append((first, np.array(mine, np.int64), last, starts))

    def _away(self, count: F64) -> F64:
        behind = np.vstack([count, np.ones((1, count.shape[1]))])  # source tasks
        few, many = behind[self._producer], count[self._consumer]
        chance = self._kept * (1.0 - 1.0 / np.maximum(few, many))
        chance = np.where(self._may_part & _are_apart(few, many, self.slots), 1.0, chance)
        return np.where(self._by_chance[:, None], chance, self._away_seen)

    def _pairs(self, count: F64) -> F64:
        """Pairs of tasks between which rows of a leg go."""
        tasks = np.full((1, count.shape[1]), float(self.model.source_tasks))
        pairs: F64 = np.vstack([count, tasks])[self._producer] * count[self._consumer]
        return pairs

    def _messages(self, count: F64, sent: F64, batch_rows: Mapping[str, int]) -> F64:
        """Per leg and pair of tasks as many as its rows fill."""
        pairs = self._pairs(count)
        asked = [batch_rows.get(name, np.inf) for name in self.stream_of_leg]
        batch = np.minimum(np.maximum(1.0, np.array(asked)), self._fits)[:, None]
        found: F64 = np.maximum(np.minimum(pairs, sent), sent / batch)
        return found

    def _levels_s(self, count: F64, cpu_s: F64, wait_s: F64, away: F64, cpus: int) -> F64:
        """Seconds of every level that has work."""
        if not len(self._order):
            return np.zeros((0, count.shape[1]))
        leaving = np.ones_like(away)
        leaving[self._staying] = away[self._staying]
        part = np.add.reduceat((self._part * leaving)[self._order], self._entries, axis=0)
        group, starts = self._entry_group, self._starts
        slots = np.maximum.reduceat(count[group], starts, axis=0)
        whole_s = part * (cpu_s + wait_s)[group]
        all_over = count[group] >= slots[self._level_of]
        each_s = whole_s / count[group]
        on_all = np.add.reduceat(np.where(all_over, each_s, 0.0), starts, axis=0)
        some_s = np.where(all_over, 0.0, each_s)
        largest = np.maximum.reduceat(some_s, starts, axis=0)
        stacked = np.add.reduceat(some_s, starts, axis=0)
        spread = np.add.reduceat(np.where(all_over, 0.0, whole_s), starts, axis=0) / slots
        places = np.add.reduceat(np.where(all_over, 0.0, count[group]), starts, axis=0)
        shared = np.minimum(stacked, spread + largest * (1.0 - 1.0 / slots))
        slot_s = on_all + np.where(places <= slots, largest, shared)
        core_s = np.add.reduceat(part * cpu_s[group], starts, axis=0)
        if len(self._staying):
            mine, behind = self._consumer[self._staying], self._producer[self._staying]
            part = self._part[self._staying] * (1.0 - away[self._staying])
            each_s = part * (cpu_s + wait_s)[mine] / np.minimum(count[mine], count[behind])
            slot_s[self._stay_levels] += np.add.reduceat(each_s, self._stay_starts, axis=0)
            on_cpu = np.add.reduceat(part * cpu_s[mine], self._stay_starts, axis=0)
            core_s[self._stay_levels] += on_cpu
        longer: F64 = np.maximum(slot_s, core_s / cpus)
        return longer

    def _tasks(self, count: F64) -> F64:
        """Tasks of all levels: in each the slots of the group that has most."""
        most = np.ones((self.model.levels, count.shape[1]))
        for first, groups, last, starts in self._spans:
            behind = np.ones_like(most)
            behind[last - 1] = np.maximum.reduceat(count[groups], starts, axis=0)
            behind = np.maximum.accumulate(behind[::-1], axis=0)[::-1]
            np.maximum(most[first - 1 :], behind[first - 1 :], out=most[first - 1 :])
        found: F64 = np.where(self._full, float(self.slots), most).sum(axis=0)
        return found


def _are_apart(few: F64 | I64, many: F64 | I64, slots: int) -> Bools:
    """Do groups with so many instances, one behind the other, have slots of their own?"""
    apart: Bools = (few < many) & (few + many <= slots)
    return apart
