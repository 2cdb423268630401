"""Keys too hot for one slot: place by load alone, cut them, or split their operator.

Placing by load takes heavy keys one by one and all others in their buckets, for two users. **DKG**
(Rivetti et al. 2015, "Efficient key grouping for near-optimal load balancing in stream processing
systems"): largest first, each to the slot with least so far; every key has one owner. **Split
units**: keys that one slot cannot take are cut. Slots are filled to the mean one after the other
and a key that does not fit goes on in the next, so that all cuts together make fewer pieces than
there are keys and slots; whole keys and buckets then fill what is left. Cuts are made of as heavy
keys as will do.

An operator may have instances in some slots only: these are numbered from 0 while its keys are laid
out (`Places`), so that no others are thought of.

Unlike the paper's, both change a placement that is there: a unit stays where it is if that leaves
its slot within the mean. A key that is no longer counted loses its pin, so tables stay bounded.

**Split or by key.** Split, the rows of a mergeable operator stay where they are and one partial per
key and task is merged; by key, rows travel and a hot key's slot has more than the others. Both are
counted in rows per epoch, smoothed, and the choice changes only when the other way is clearly
cheaper. What the other way would cost is estimated from the keys counted, and measured once it has
been taken. Pure: what was seen in, a choice and its reason out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from headgate.arrays import F64, I32, I64, U64
from headgate.planner.key_graph import imbalance_of
from headgate.routing.hashing import bucket_of
from headgate.routing.route import Spread
from headgate.routing.table import RoutingTable

PIN_SHARE = 1 / 32  # of a slot's mean load: lighter keys follow their bucket
CUT_SHARES = (1.0, 0.5, 0.25, 0.1)  # of the mean: only heavier keys are cut; the first that serves
KNOWN_SHARE = 0.1  # of the mean: heavier keys are named, so that a task knows them for known
GOOD = 1.01  # an imbalance that needs nothing better
SLIVER = 0.01  # of the mean: no piece is smaller, a slot is rather filled so much above it


@dataclass(frozen=True)
class Layout:
    """Who owns what, which keys are cut, and the load of every slot that this should make."""

    table: RoutingTable
    spread: Spread
    loads: F64

    @property
    def imbalance(self) -> float:
        return float(imbalance_of(self.loads[None])[0])


@dataclass(frozen=True)
class Places:
    """The slots of an operator, numbered from 0: what is laid out here knows no others."""

    slots: I32
    of_flow: int

    def inside(self, table: RoutingTable) -> RoutingTable:
        return table.renamed(self._numbers, len(self.slots))

    def inside_spread(self, spread: Spread | None) -> Spread | None:
        return None if spread is None else spread.renamed(self._numbers)

    def outside(self, layout: Layout) -> Layout:
        table = layout.table.renamed(self.slots, self.of_flow)
        return replace(layout, table=table, spread=layout.spread.renamed(self.slots))

    @property
    def _numbers(self) -> I32:
        number = np.full(self.of_flow, -1, np.int32)  # which a table refuses
        number[self.slots] = np.arange(len(self.slots), dtype=np.int32)
        return number


def expected_loads(
    h: U64, rows: F64, total: float, table: RoutingTable, spread: Spread | None
) -> F64:
    """Rows per slot under this table and spread; what is not in `h` is spread over the buckets."""
    cut = np.full(len(h), -1) if spread is None else spread.find(h)
    whole = cut < 0
    loads = np.bincount(table.route(h[whole]), rows[whole], table.slots).astype(np.float64)
    rest = max(0.0, total - float(rows.sum())) / table.buckets
    loads += rest * np.bincount(table.bucket_slots, minlength=table.slots)
    if spread is not None:
        for key, load in zip(h[~whole], rows[~whole], strict=True):
            for slot, share in spread.shares_of(int(key)).items():
                loads[slot] += share * load
    return loads


def lay_out_whole(h: U64, rows: F64, total: float, table: RoutingTable) -> Layout:
    """DKG: every unit to the slot with least so far, largest first; no key is cut."""
    table = _without_strangers(table, h)
    units = _Units.of(h, rows, total, table, table.route(h))
    loads = np.zeros(table.slots)
    slot = units.place(loads, total / table.slots)
    return Layout(units.table_with(table, slot), Spread(), loads)


def lay_out_split(
    h: U64, rows: F64, total: float, table: RoutingTable, before: Spread | None = None
) -> Layout:
    """Split units: cut as few and as heavy keys as make every slot equal.

    The spread also names keys that are left whole but could be taken for new hot ones: half as
    heavy as what a task takes for frequent, or more.
    """
    table = _without_strangers(table, h)
    best: Layout | None = None
    for share in CUT_SHARES:
        made = _lay_out_cut(h, rows, total, table, before, share)
        if best is None or made.imbalance < best.imbalance - 1e-3:
            best = made
        if best.imbalance <= GOOD:
            break
    assert best is not None
    return best


def _lay_out_cut(
    h: U64, rows: F64, total: float, table: RoutingTable, before: Spread | None, cut_share: float
) -> Layout:
    mean = total / table.slots
    owner = table.route(h).astype(np.int64)
    heavy = np.flatnonzero(rows > cut_share * mean)
    heavy = heavy[np.lexsort((h[heavy], -rows[heavy]))]
    loads = np.zeros(table.slots)
    shares: dict[int, list[tuple[int, float]]] = {}
    for i in heavy.tolist():
        key = int(h[i])
        known = {} if before is None else before.shares_of(key)
        pieces = _cut(float(rows[i]), loads, mean, [int(owner[i]), *known])
        owner[i] = owner[i] if int(owner[i]) in dict(pieces) else pieces[0][0]
        shares[key] = pieces
    units = _Units.of(h, rows, total, table, owner, heavy)
    made = units.table_with(table, units.place(loads, mean))
    moved = heavy[made.route(h[heavy]) != owner[heavy]]  # they or their buckets
    if len(moved):
        made = made.pin_hashes(h[moved], owner[moved].astype(np.int32))
    for i in np.flatnonzero(rows >= KNOWN_SHARE * mean).tolist():
        shares.setdefault(int(h[i]), [(int(made.route(h[i : i + 1])[0]), 1.0)])
    return Layout(made, Spread.of(shares), loads)


def _without_strangers(table: RoutingTable, h: U64) -> RoutingTable:
    """The table without pins of keys that are not counted any more."""
    strangers = ~np.isin(table.pinned_h, h)
    return table.unpin_hashes(table.pinned_h[strangers]) if strangers.any() else table


def _cut(load: float, loads: F64, mean: float, first: Sequence[int]) -> list[tuple[int, float]]:
    """Fill slots up to the mean with a key, those it has been in before first; largest piece first.

    Only a slot that is empty, or one that the key has been in, is begun while there is one: two cut
    keys rarely share more than one slot.
    """
    pieces: dict[int, float] = {}
    least = SLIVER * mean
    waiting = [slot for slot in dict.fromkeys(first) if mean - loads[slot] > least]
    while load > 0:
        if waiting and (load >= mean - loads[waiting[0]] or len(waiting) == 1 or not pieces):
            slot = waiting.pop(0)
        else:
            slot = int(loads.argmin())
        room = mean - float(loads[slot])
        piece = load if load <= room + least or room <= least else room
        pieces[slot] = pieces.get(slot, 0.0) + piece
        loads[slot] += piece
        load -= piece
        waiting = [w for w in waiting if w != slot]
    return sorted(pieces.items(), key=lambda item: (-item[1], item[0]))


@dataclass(frozen=True)
class _Units:
    """What is placed whole: keys worth a pin (or with one), then the buckets of all others."""

    h: U64
    load: F64
    slot: I64

    @classmethod
    def of(
        cls,
        h: U64,
        rows: F64,
        total: float,
        table: RoutingTable,
        owner: npt.NDArray[Any],
        heavy: I64 | None = None,
    ) -> _Units:
        alone = (rows >= PIN_SHARE * total / table.slots) | table.is_pinned(h)
        light = ~alone
        if heavy is not None:
            alone[heavy] = light[heavy] = False
        buckets = np.full(table.buckets, max(0.0, total - float(rows.sum())) / table.buckets)
        buckets += np.bincount(bucket_of(h[light], table.buckets), rows[light], table.buckets)
        return cls(
            h[alone],
            np.concatenate([rows[alone], buckets]),
            np.concatenate([owner[alone], table.bucket_slots]).astype(np.int64),
        )

    def place(self, loads: F64, mean: float) -> I64:
        """A slot for each, largest first: those that fit stay, others go where there is least.

        Slivers that do not fit wait until all others have their slots; they level out the rest.
        """
        slot = self.slot.copy()
        homeless = []
        for unit in np.argsort(-self.load, kind="stable").tolist():
            load = float(self.load[unit])
            fits = loads[slot[unit]] + load <= mean * (1 + SLIVER / 4)
            if not fits and load <= SLIVER * mean:
                homeless.append(unit)
                continue
            if not fits and loads[slot[unit]] > 0:
                slot[unit] = loads.argmin()
            loads[slot[unit]] += load
        for unit in homeless:
            slot[unit] = loads.argmin()
            loads[slot[unit]] += self.load[unit]
        return slot

    def table_with(self, table: RoutingTable, slot: I64) -> RoutingTable:
        """The table in which every unit has its slot; a key that need not be pinned is not."""
        keys, buckets = slot[: len(self.h)], slot[len(self.h) :].astype(np.int32)
        if not np.array_equal(buckets, table.bucket_slots):
            table = table.with_buckets(buckets)
        wrong = table.route(self.h) != keys
        return (
            table.pin_hashes(self.h[wrong], keys[wrong].astype(np.int32)) if wrong.any() else table
        )


ROWS_PER_MERGE = 2.0  # a partial is made, sent and merged; a row is sent and processed
CLEARLY = 0.7  # the other way must cost less than this share of the present one
SMOOTHING = 0.5
HELD_EPOCHS = 3  # a choice holds that long before it is judged again


@dataclass(frozen=True)
class Seen:
    """One operator in some epochs; all counts are per epoch.

    `rows` came in, `remote_rows` of them over an exchange, `excess_rows` is what all slots would
    have done more if each had as much as the busiest; `merge_rows` partials were merged, and
    `producer_excess_rows` is the excess that rows have which stay where they are. Of a way that
    was not taken, what is known of it is an estimate, or None.
    """

    rows: float
    producer_excess_rows: float
    remote_rows: float | None = None
    excess_rows: float | None = None
    merge_rows: float | None = None


class SplitOrKey:
    """The choice for one operator. Begins by key, where all there is to know can be counted."""

    def __init__(self) -> None:
        self.split = False
        self._epochs = 0
        self._by_key: float | None = None  # cost per row, smoothed
        self._split: float | None = None
        self._latest: Seen | None = None

    def observe(self, seen: Seen, epochs: int = 1) -> None:
        """Take epochs in that ran under the present choice."""
        if seen.rows <= 0:
            return
        self._epochs += epochs
        self._latest = seen
        if seen.remote_rows is not None and seen.excess_rows is not None:
            cost = (seen.remote_rows + seen.excess_rows) / seen.rows
            self._by_key = _smooth(self._by_key, cost)
        if seen.merge_rows is not None:
            cost = (ROWS_PER_MERGE * seen.merge_rows + seen.producer_excess_rows) / seen.rows
            self._split = _smooth(self._split, cost)

    def decide(self) -> str | None:
        """Choose anew if it is time; a reason if the choice changed."""
        if self._by_key is None or self._split is None or self._latest is None:
            return None
        if self._epochs < (HELD_EPOCHS if self.split else 1):
            return None
        here, there = (self._split, self._by_key) if self.split else (self._by_key, self._split)
        if there >= CLEARLY * here:
            return None
        self.split, self._epochs = not self.split, 0
        way = "split" if self.split else "by key again"
        rows = self._latest.rows
        return (
            f"{way}: {self._split * rows:,.0f} rows' worth of partials and skew an epoch, "
            f"against {self._by_key * rows:,.0f} of travel and skew by key"
        )


def partials_expected(loads: F64, rows: float, tasks: int) -> float:
    """Distinct keys per task, summed over tasks, if each of them gets an equal part of the rows.

    `loads` are rows of the keys that are known; every other row counts as a key of its own.
    """
    if rows <= 0 or tasks <= 0:
        return 0.0
    total = max(float(loads.sum()), rows if not len(loads) else 0.0)
    share = loads / total if len(loads) else loads
    each = rows / tasks
    known = -np.expm1(each * np.log1p(-np.minimum(share, 1 - 1e-12))).sum()
    return float(min(rows, tasks * known)) if len(loads) else rows


def excess(loads: Sequence[int] | Sequence[float], among: int | None = None) -> float:
    """What so many slots (default: these) would do more if each had as much as the busiest."""
    return max(loads) * (among or len(loads)) - sum(loads) if loads else 0.0


def _smooth(before: float | None, now: float) -> float:
    return now if before is None else before + SMOOTHING * (now - before)
