"""Heavy keys of operators that may be cut, as units of the allocation model. Pure.

A key must be a unit before it can be cut: a key with much of an operator's load is pinned where it
lives, which moves nothing, and a pin that has gone cold is dropped. What a plan cuts becomes a
spread, which tasks deal rows out by; heavy keys that are left whole are named in it too, so that no
task takes them for new. Invariant: a key that is cut is pinned, and its pin is its owner.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from headgate.control.unit_index import UnitIndex
from headgate.control.unit_statistics import Measured, Period
from headgate.planner.allocation.cutting import cut_up, dealt
from headgate.planner.allocation.model import Extras, Situation
from headgate.planner.placing import KeyLoads
from headgate.routing.hashing import U64, bucket_of
from headgate.routing.route import Spread
from headgate.routing.table import RoutingTable, bucket_ids

PIN_SHARE = 0.1  # of the operator's mean per slot; half of what a task takes for a hot key
COLD_SHARE = PIN_SHARE / 4
PINS_PER_SLOT = 64  # cold pins away from their bucket stay up to so many


class SplitUnits:
    """What is cut at present, for the operators of one flow that may be."""

    def __init__(self, operators: Iterable[str]) -> None:
        self.operators = frozenset(operators)
        self.spreads: dict[str, Spread] = {}
        self._warm: dict[str, U64] = {}

    def begin_anew(self) -> None:
        """Another number of slots: whoever runs the flow has dropped all spreads."""
        self.spreads = {}

    def named(self, tables: Mapping[str, RoutingTable], period: Period) -> dict[str, RoutingTable]:
        """The tables with heavy keys pinned to the slots they live in, and cold pins dropped."""
        found = dict(tables)
        for operator in sorted(self.operators & set(tables)):
            loads = period.seen.loads.get(operator)
            if loads is not None and tables[operator].slots > 1:
                mean = _rows(period, operator) / tables[operator].slots
                found[operator] = self._named(operator, tables[operator], loads, mean)
        return found

    def cut(
        self,
        measured: Measured,
        index: UnitIndex,
        tables: Mapping[str, RoutingTable],
        period: Period,
    ) -> Measured:
        """The situation with the pieces there are; `tables` are those that rows were counted by."""
        if not self.operators:
            return measured
        whole = _with_fresh_pins(measured.situation, index, tables)
        can = np.zeros(len(whole.units), np.bool_)
        rate = np.zeros(len(whole.units))
        extras: dict[int, tuple[tuple[int, float], ...]] = {}
        for operator in sorted(self.operators & set(index.first)):
            first, ids = index.first[operator], index.ids[operator]
            spread = self.spreads.get(operator, Spread())
            pieces = spread.replicas
            merged = period.merge_rows.get(operator, 0.0) / pieces if pieces else 0.0
            mine = slice(first + tables[operator].buckets, first + len(ids))
            can[mine], rate[mine] = True, max(float(period.seen.epochs), merged)
            number, known = index.find(operator, spread.cut)
            for h, unit in zip(spread.cut[known].tolist(), number[known].tolist(), strict=True):
                owner = int(whole.home[unit])
                on = {s: share for s, share in spread.shares_of(h).items() if s != owner}
                extras[unit] = tuple(sorted(on.items()))
        return replace(measured, situation=cut_up(whole, can, rate, extras))

    def take(self, extras: Extras, index: UnitIndex, tables: Mapping[str, RoutingTable]) -> None:
        """From now on these pieces, under these tables."""
        for operator in sorted(self.operators & set(tables)):
            table, first = tables[operator], index.first[operator] + tables[operator].buckets
            known = np.isin(table.pinned_h, self._warm.get(operator, table.pinned_h[:0]))
            known[[u - first for u in extras if 0 <= u - first < len(known)]] = True
            shares = {}
            for i in np.flatnonzero(known).tolist():
                h, owner = int(table.pinned_h[i]), int(table.pinned_slots[i])
                on = [(n, x) for n, x in extras.get(first + i, ()) if n != owner]
                shares[h] = [(owner, 1.0 - sum(x for _, x in on)), *on]
            self.spreads[operator] = Spread.of(shares)

    # --- inside ----------------------------------------------------------------------------
    def _named(
        self, operator: str, table: RoutingTable, loads: KeyLoads, mean: float
    ) -> RoutingTable:
        heavy = loads.h[loads.rows >= PIN_SHARE * mean]
        new = heavy[~table.is_pinned(heavy)]
        self._warm[operator] = loads.h[loads.rows >= COLD_SHARE * mean]
        warm = np.isin(table.pinned_h, self._warm[operator])
        cut = np.isin(table.pinned_h, self.spreads.get(operator, Spread()).cut)
        cold = ~warm & ~cut
        at_home = table.pinned_slots == table.bucket_slots[bucket_of(table.pinned_h, table.buckets)]
        if int((~(cold & at_home)).sum()) <= PINS_PER_SLOT * table.slots:
            cold &= at_home
        if cold.any():
            table = table.unpin_hashes(table.pinned_h[cold])
        return table.pin_hashes(new, table.route(new)) if len(new) else table


def by_unit(period: Period, tables: Mapping[str, RoutingTable], by_key: Iterable[str]) -> Period:
    """The period with loads that were counted by key as those of units.

    Rows of keys that were too rare to be counted are shared out over the buckets.
    """
    loads = dict(period.seen.loads)
    for operator in set(by_key) & set(tables) & set(loads):
        table, (h, rows, slot) = tables[operator], loads[operator]
        rest = max(0.0, _rows(period, operator) - float(rows.sum())) / table.buckets
        ids = bucket_ids(table.buckets)
        loads[operator] = KeyLoads(
            np.concatenate([table.units(h), ids]),
            np.concatenate([rows, np.full(len(ids), rest)]),
            np.concatenate([slot, table.bucket_slots]),
        )
    return replace(period, seen=replace(period.seen, loads=loads))


def _with_fresh_pins(
    situation: Situation, index: UnitIndex, tables: Mapping[str, RoutingTable]
) -> Situation:
    """Keys pinned just now have the traffic of their bucket, by their share of its load."""
    base, parts = situation.base_load, dict[int, list[tuple[int, float]]]()
    for operator, table in tables.items():
        first, ids = index.first[operator], index.ids[operator]
        pins: U64 = ids[table.buckets :]
        fresh = np.flatnonzero(~table.is_pinned(pins))
        buckets = bucket_of(pins[fresh], table.buckets)
        for pin, bucket in zip(fresh.tolist(), buckets.tolist(), strict=True):
            parts.setdefault(first + bucket, []).append((first + table.buckets + pin, 0.0))
    if not parts:
        return situation
    for bucket, pins_of in parts.items():
        units = [bucket, *(pin for pin, _ in pins_of)]
        total = float(base[units].sum())
        parts[bucket] = [(u, float(base[u]) / total if total else 1 / len(units)) for u in units]
    flow = dealt(situation.traffic, len(base), parts)
    load = base + flow.remote_load * flow.remote(situation.home)
    return replace(situation, units=replace(situation.units, load=load), traffic=flow)


def _rows(period: Period, operator: str) -> float:
    return float(np.sum(period.seen.slot_rows.get(operator, 0.0)))
