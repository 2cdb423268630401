"""The incremental planner: after every epoch a few keys move to where their rows already are.

A plan from scratch forgets where keys live and moves most of them. This planner keeps a placement
and improves it: only keys that were just seen are judged, each by the weight of its partners per
slot, the price of load there, and the price of a move. `headgate replay` measures it and the
manager runs it on Spark: pure, deterministic for a seed, bounded in memory.

How much imbalance is tolerated is learnt: a slot's share wobbles from epoch to epoch, more so where
keys come in bursts, and chasing what the next epoch undoes only costs moves and locality. So the
tolerance of an operator is in proportion to that wobble, and never below a multiple of alpha - 1
(a plan that keeps alpha on the rows it knows does not keep it on those to come). Likewise measured
loads count only as far as they stray more than sampling alone would make them.

New keys of an operator whose state can be merged are *newborn*: they were processed where their
rows were, and the next plan makes the best slot their owner. That is an adoption, not a move.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from headgate.arrays import F64, I32, I64, U8, U64, Bools
from headgate.errors import HeadgateError
from headgate.planner import incremental_kernel as kernel
from headgate.planner.incremental_memory import (
    KEYS,
    LOAD_SCALE,
    PAIR_SCALE,
    PAIRS,
    age,
    empty_memory,
    find_keys,
    forget_keys,
    forget_pairs,
    with_room,
)
from headgate.planner.instances import instance_counts
from headgate.planner.key_graph import KeyGraph, imbalance_of


class IncrementalSettings(NamedTuple):
    """One setting for all data, as kernels take it; docs/decisions/0011 tells how it was found."""

    move_rows: float = 0.7  # a move must gain so many rows (over the memory of pairs) ...
    inertia: float = 0.06  # ... and this share of the key's own rows
    price: float = 0.055  # of a row of load in a slot at the tolerance, in rows of locality
    steepness: float = 5.0  # how much faster the price grows above the tolerance
    measured: float = 1.35  # weight of measured over planned fullness
    slack: float = 2.5  # tolerated imbalance at least, as a multiple of alpha - 1
    wobble_tolerance: float = 0.22  # tolerated imbalance per unit of epoch-to-epoch wobble
    pair_memory: float = 6.0  # half-life of pairs, in horizons
    load_memory: float = 5.0  # half-life of key loads, in horizons
    slot_memory: float = 0.4  # half-life of measured slot loads, in horizons
    burst_price: float = 0.015  # as `price`, for the load of the last few epochs; 0 turns it off
    burst_tolerance: float = 0.06  # tolerated imbalance of bursts
    burst_epochs: float = 4.0  # half-life of bursts, in epochs
    least_rows: float = 0.8  # keys with fewer rows are left where they are
    passes: int = 2  # how often a plan goes over the keys


class SeenKeys(NamedTuple):
    """Keys of one operator in one epoch, each once.

    `slot` is who owns the key now. For a newborn (1 in `newborn`) it is the slot that had most of
    its rows.
    """

    h: U64
    rows: F64
    slot: I32
    newborn: U8

    def take(self, which: Any) -> SeenKeys:
        return SeenKeys(self.h[which], self.rows[which], self.slot[which], self.newborn[which])


class SeenPairs(NamedTuple):
    """Rows that went on from key a[i] of operator `source` to key b[i] of `target`."""

    source: int
    target: int
    a: U64
    b: U64
    rows: F64

    def take(self, which: Any) -> SeenPairs:
        return self._replace(a=self.a[which], b=self.b[which], rows=self.rows[which])


class Reason(IntEnum):
    """Why a key got a new owner."""

    ADOPTED = 0
    PARTNERS = 1
    LOAD = 2


@dataclass(frozen=True)
class KeyMoves:
    """What a plan changes for one operator: keys with a new owner, the hottest first.

    Newborn keys are always named, also if they stay where they were born: they need an entry.
    `here` and `there` are rows of the key (aged) that meet their partner in the old and new slot.
    """

    operator: int
    h: U64
    source: I32
    target: I32
    reason: I32
    rows: F64
    here: F64
    there: F64

    def __len__(self) -> int:
        return len(self.h)

    @property
    def moved(self) -> Bools:
        """Which of them are moves: a key that had an owner gets another."""
        return np.asarray(self.reason != Reason.ADOPTED)


class IncrementalPlanner:
    """Places the keys of `operators` operators over `slots` slots.

    Operators are known by number, in the order of the flow. `horizon_rows` is the unit of
    memory: rows after which the past counts for less, about a period. `alpha` is the balance
    wished for, max/mean load (see `slack`); `seed` breaks ties between slots. Beyond `keys_max`
    keys per operator the coldest are released, beyond `pairs_max` pairs the lightest are
    forgotten. `nearness` (slots x slots, 1 for the same slot down to 0 for the farthest) is how
    much of a row is saved when its two keys are in these slots. `allowed` (operators x slots) says
    where operators have instances; without it, everywhere.
    """

    def __init__(
        self,
        operators: int,
        slots: int,
        *,
        horizon_rows: float,
        alpha: float = 1.03,
        settings: IncrementalSettings | None = None,
        seed: int = 0,
        keys_max: int = 262_144,
        pairs_max: int = 196_608,
        nearness: F64 | None = None,
        allowed: Bools | None = None,
    ) -> None:
        self.operators, self.slots, self.alpha = operators, slots, alpha
        self.horizon_rows = float(horizon_rows)
        self.settings = settings or IncrementalSettings()
        self.keys_max, self.pairs_max = keys_max, pairs_max
        self._nearness = np.empty((0, 0)) if nearness is None else np.ascontiguousarray(nearness)
        self._allowed, self._instances = allowed, instance_counts(allowed, operators, slots)
        self._refuse()
        self._memory = empty_memory(operators, slots)
        self._first_slot = seed % slots
        self._epoch = 0
        self._plan = 0
        self._touched: list[I64] = []
        self._tracked = np.zeros(operators, np.int64)
        self._squares = np.zeros(operators)
        self._released: list[list[U64]] = [[] for _ in range(operators)]

    # --- taking in -------------------------------------------------------------------------
    def observe(self, keys: Sequence[SeenKeys], pairs: Iterable[SeenPairs], slot_rows: F64) -> None:
        """One epoch: keys per operator, pairs per edge, and rows per operator and slot.

        O(keys + pairs), plus the pairs of keys whose owner is not who the planner thought.
        """
        s = self.settings
        if self._allowed is not None:  # elsewhere rows are only folded for their owners
            slot_rows = np.where(self._allowed, slot_rows, 0.0)
        rows = float(slot_rows.sum(axis=1).max(initial=0.0))
        age(
            self._memory,
            2.0 ** (rows / (s.pair_memory * self.horizon_rows)),
            2.0 ** (rows / (s.load_memory * self.horizon_rows)),
        )
        self._measure(slot_rows, rows)
        fade = 0.5 ** (1.0 / s.burst_epochs)
        self._memory.bursts[:] *= fade
        self._epoch += 1
        for operator, seen in enumerate(keys):
            self._take_keys(operator, seen, fade)
        for of_edge in pairs:
            self._take_pairs(of_edge)

    # --- planning --------------------------------------------------------------------------
    def plan(self, budget: int | None = None) -> list[KeyMoves]:
        """New owners for keys touched since the last plan; at most `budget` of them are moves.

        The hottest keys are judged first, operator by operator.
        """
        memory = self._memory
        touched = np.concatenate([*self._touched, np.empty(0, np.int64)])
        touched = touched[
            np.lexsort((memory.h[touched], -memory.load[touched], memory.op[touched]))
        ]
        newborn = memory.fresh[touched] == 1
        most = self.settings.passes * len(touched) if budget is None else budget
        kernel.place_keys(
            memory, touched, self._conditions(), self.settings, self._epoch, most, self._first_slot
        )
        self._touched, self._plan = [], self._plan + 1
        changed = newborn | (memory.owner[touched] != memory.was[touched])
        touched, newborn = touched[changed], newborn[changed]
        op = memory.op[touched]
        return [self._moves(o, touched[op == o], newborn[op == o]) for o in range(self.operators)]

    def released(self) -> list[U64]:
        """Keys of each operator forgotten since the last call; they may give up their entry."""
        gone, none = self._released, np.empty(0, np.uint64)
        self._released = [[] for _ in range(self.operators)]
        return [np.concatenate([none, *parts]) for parts in gone]

    # --- asking ----------------------------------------------------------------------------
    def rows_lately(self, operator: int, h: U64) -> F64:
        """The aged rows of each key, 0 for keys that the planner does not know."""
        at = find_keys(self._memory, operator, h)
        return np.where(at >= 0, self._memory.load[at] / self._memory.scale[LOAD_SCALE], 0.0)

    def graph(self, operators: Sequence[str]) -> KeyGraph:
        """What it remembers, in rows; `operators` are their names."""
        memory = self._memory
        keys, pairs = memory.used.tolist()
        order = np.lexsort((memory.h[:keys], memory.op[:keys]))
        number = np.argsort(order)
        u, v = number[memory.u[:pairs]], number[memory.v[:pairs]]
        edges = np.lexsort((v, u))
        return KeyGraph(
            tuple(operators),
            memory.op[order],
            memory.h[order],
            memory.load[order] / memory.scale[LOAD_SCALE],
            u[edges],
            v[edges],
            memory.weight[edges] / memory.scale[PAIR_SCALE],
        )

    @property
    def expected_locality(self) -> float:
        """Share of the remembered pair weight whose keys share a slot now."""
        n = int(self._memory.used[KEYS])
        toward = self._memory.toward[:n]
        total = float(toward.sum())
        local = float(toward[np.arange(n), self._memory.owner[:n]].sum())
        return local / total if total > 0 else 1.0

    @property
    def expected_imbalance(self) -> F64:
        """Max/mean planned load of each operator."""
        return imbalance_of(self._memory.planned, self._allowed)

    @property
    def tolerance(self) -> F64:
        """Imbalance above 1 that each operator is granted at present."""
        wobble = np.sqrt(self._memory.wobble)
        least = max(self.settings.slack * (self.alpha - 1.0), 1e-3)
        return np.maximum(least, self.settings.wobble_tolerance * wobble)

    def explain(self, moves: KeyMoves, i: int) -> str:
        """Half a line on why this key lives there now."""
        here, there, reason = moves.here[i], moves.there[i], moves.reason[i]
        if reason == Reason.ADOPTED:
            return f"a new key: {there:,.0f} of its rows came up there"
        rows = f"{there:,.0f} of its rows have their other key there, {here:,.0f} here"
        return rows if reason == Reason.PARTNERS else f"its slot was too full ({rows})"

    # --- inside ----------------------------------------------------------------------------
    def _refuse(self) -> None:
        wrong = None
        if self.slots < 1:
            wrong = f"{self.slots} slots; it takes at least one"
        elif not self.alpha >= 1:
            wrong = f"alpha {self.alpha}; max/mean load is never below 1"
        elif not self.horizon_rows > 0:
            wrong = f"a horizon of {self.horizon_rows} rows; give about a period's"
        elif self.keys_max < 8 or self.pairs_max < 4:
            wrong = f"room for {self.keys_max} keys, {self.pairs_max} pairs; give at least 8 and 4"
        elif self._nearness.size and self._nearness.shape != (self.slots, self.slots):
            wrong = f"a nearness matrix of shape {self._nearness.shape} for {self.slots} slots"
        if wrong:
            raise HeadgateError(f"an incremental planner with {wrong}", slots=self.slots)

    def use_nearness(self, nearness: F64 | None) -> None:
        """From now on this much of a row is saved: slots have come to other hosts."""
        self._nearness = np.empty((0, 0)) if nearness is None else np.ascontiguousarray(nearness)
        self._refuse()

    def _take_keys(self, operator: int, seen: SeenKeys, fade: float) -> None:
        if not len(seen.h):
            return
        at = find_keys(self._memory, operator, seen.h)
        new = int(np.count_nonzero(at < 0))
        if self._tracked[operator] + new > self.keys_max:
            room = max(0, self.keys_max - (len(at) - new))
            if new > room:  # more than fit: the heaviest of them
                unknown = np.flatnonzero(at < 0)
                surplus = unknown[np.argsort(seen.rows[unknown], kind="stable")[: new - room]]
                seen, new = seen.take(np.delete(np.arange(len(at)), surplus)), room
            self._release(operator, new, at[at >= 0])
        self._memory = with_room(self._memory, new, 0)
        self._tracked[operator] += new
        self._touched.append(
            kernel.take_keys(self._memory, operator, *seen, self._epoch, self._plan, fade)
        )

    def _take_pairs(self, seen: SeenPairs) -> None:
        if not len(seen.rows):
            return
        used, room = int(self._memory.used[PAIRS]), self.pairs_max
        if used + len(seen.rows) > room:
            most = room // 4
            if len(seen.rows) > most:
                heaviest = np.sort(np.argsort(-seen.rows, kind="stable")[:most])
                seen = seen.take(heaviest)
            if used + len(seen.rows) > room:
                forget_pairs(self._memory, room - max(room // 4, len(seen.rows)))
        self._memory = with_room(self._memory, 0, len(seen.rows))
        kernel.take_pairs(self._memory, *seen)

    def _release(self, operator: int, new: int, needed: I64) -> None:
        """Make room: the coldest keys of the operator that are not needed go, an eighth or more."""
        idle = self._memory.op[: int(self._memory.used[KEYS])] == operator
        idle[needed] = False
        mine = np.flatnonzero(idle)
        surplus = int(self._tracked[operator]) + new - self.keys_max
        goes = min(len(mine), max(surplus, self.keys_max // 8))
        gone = mine[np.argsort(self._memory.load[mine], kind="stable")[:goes]]
        self._released[operator].append(self._memory.h[gone].copy())
        number = forget_keys(self._memory, gone)
        self._tracked[operator] -= goes
        touched = [number[t] for t in self._touched]
        self._touched = [t[t >= 0].astype(np.int64) for t in touched]

    def _measure(self, slot_rows: F64, rows: float) -> None:
        """Measured loads fade; their wobble is how far an epoch's shares are from them."""
        memory, s = self._memory, self.settings
        for o, n in enumerate(self._instances):
            mean, now = memory.measured[o].sum() / n, slot_rows[o].sum() / n
            if mean > 0 and now > 0:
                off = slot_rows[o] / now - memory.measured[o] / mean
                keep = max(1 - 0.5 ** (rows / self.horizon_rows), 1.0 / (self._epoch + 1))
                memory.wobble[o] += (float((off**2).sum() / n) - memory.wobble[o]) * keep
        fade = 0.5 ** (rows / (s.slot_memory * self.horizon_rows))
        memory.measured[:] = memory.measured * fade + slot_rows
        self._squares = self._squares * fade**2 + slot_rows.sum(axis=1)

    def _beyond_sampling(self, above: F64) -> F64:
        """What is measured above the mean, less what chance alone would show (James and Stein).

        Rows that fall into equal slots at random, weighted w, give every slot's measured load a
        variance of (slots - 1) * sum(w^2) / sum(w)^2, in units of the squared mean.
        """
        rows = np.maximum(self._memory.measured.sum(axis=1), 1e-100)
        chance = (self._instances - 1) * self._squares / rows**2
        seen = np.maximum((above**2).sum(axis=1) / self._instances, 1e-300)
        return np.asarray(above * np.clip(1.0 - chance / seen, 0.0, 1.0)[:, None])

    def _conditions(self) -> kernel.Conditions:
        memory, instances = self._memory, self._instances
        planned = np.maximum(memory.planned.sum(axis=1) / instances, 1e-300)
        mean = planned / memory.scale[LOAD_SCALE]
        measured = memory.measured.sum(axis=1, keepdims=True) / instances[:, None]
        above = np.where(measured > 0, memory.measured / np.maximum(measured, 1e-300) - 1.0, 0.0)
        allowed, crowded = np.ones((0, 0), np.bool_), np.ones((0, 0))
        if self._allowed is not None:
            above = np.where(self._allowed, above, 0.0)
            allowed, crowded = self._allowed, kernel.crowding(memory, mean, self._allowed)
        return kernel.Conditions(
            mean,
            np.maximum(memory.bursts.sum(axis=1) / instances, 1e-300),
            self._beyond_sampling(above),
            self.tolerance,
            self._nearness,
            allowed,
            crowded,
        )

    def _moves(self, operator: int, keys: I64, newborn: Bools) -> KeyMoves:
        memory = self._memory
        unit = 1.0 / memory.scale[PAIR_SCALE]
        source, target = memory.was[keys], memory.owner[keys]
        here, there = memory.toward[keys, source] * unit, memory.toward[keys, target] * unit
        reason = np.where(there > here, Reason.PARTNERS, Reason.LOAD)
        return KeyMoves(
            operator,
            memory.h[keys].copy(),
            source.copy(),
            target.copy(),
            np.where(newborn, Reason.ADOPTED, reason).astype(np.int32),
            memory.load[keys] / memory.scale[LOAD_SCALE],
            here,
            there,
        )
