"""Which units to cut, and where their pieces go: as few as make loads even.

Nothing is cut if whole units can be within the limit. If not, the fullest nodes give parts of
their heaviest units to the emptiest, each part as large as brings one of the two to the mean, so
few pieces do. All that is whole is then evened around them. Pieces that bring little are taken
back.

Invariant: every piece has a price in load distance, `PIECE_PCT` and what its merge rows cost. A cut
must lower the load distance by more than that, a piece is taken back only if the distance rises by
less. So under constant loads the sum of both only falls, and cuts do not come and go.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from headgate.arrays import I32
from headgate.planner.allocation.cutting import fused, part_loads, pieces_of, placed
from headgate.planner.allocation.model import Extras, Situation, distance_of, mean_load
from headgate.planner.allocation.plan import Limits

PIECE_PCT = 1.5
"""What a piece costs, in points of load distance; a cut must bring, a return may cost this..."""
DOUBT = 0.5
"""...times 1 + DOUBT, or 1 - DOUBT: loads of two periods are never the same."""
KEPT = 0.8
"""Pieces go back only if the load distance stays below this share of the limit."""
CUT_SHARES = (1.0, 0.25)
"""Of a node's mean load: first units that no node can take are cut, then any above the last."""
SLIVER = 0.01
"""Of a node's mean load: no piece is smaller."""

Allocation = tuple[Situation, I32]
Search = Callable[[Situation, float], I32]


def price_pct(situation: Situation) -> float:
    """What all pieces of a situation cost, in points of load distance."""
    cut = situation.cut
    if cut is None or not cut.extras:
        return 0.0
    return sum(len(on) * piece_price(situation, u) for u, on in cut.extras.items())


def piece_price(situation: Situation, unit: int) -> float:
    """What a piece of one unit costs: its merge rows, at both ends, and a bit for the trouble."""
    cut = situation.cut
    assert cut is not None
    mean = max(float(cut.whole.units.load.sum()) / situation.nodes.staying_capacity, 1e-300)
    merging = 2.0 * cut.whole.traffic.remote_load * float(cut.merge_rate[unit])
    return PIECE_PCT + 100.0 * merging / mean


@dataclass(frozen=True)
class Splitter:
    """Cuts what a search of whole units and pieces leaves too uneven.

    Args:
        search: The best allocation of a situation, found by a deadline.
        excess: Load distance above the limit, in percent.
        better: Is the second allocation strictly better than the first, pieces priced?
        clock: Looked at before every step; the best so far is taken when time is up.
    """

    search: Search
    excess: Callable[[Situation, I32], float]
    better: Callable[[Allocation, Allocation], bool]
    limits: Limits
    clock: Callable[[], float]

    def run(self, situation: Situation, middle: float, deadline: float) -> Allocation:
        """From where we are: first with the pieces there are, then with more, if need be."""
        kept = self._trim(fused(situation, self.search(situation, middle)))
        if self.clock() < deadline:
            kept = self._joined(situation, kept, middle)
        if self.excess(*kept) <= 0:
            return kept
        best = kept
        for share in CUT_SHARES:
            if self.clock() >= deadline:
                return best
            made = shed(situation, situation.home, self.limits, share)
            made = fused(made[0], self.search(made[0], deadline))
            best = self._best(kept, best, made, deadline)
            if self.excess(*best) <= 0:
                return best
        return self._best(kept, best, kept, deadline)

    def _best(
        self, kept: Allocation, best: Allocation, made: Allocation, deadline: float
    ) -> Allocation:
        """The best of what there is, what was made, and that with what is too full still cut."""
        for cut_more in (False, True):
            if self.clock() >= deadline:
                break
            found = self._trim(shed(*made, self.limits) if cut_more else made)
            if self._pays(kept, found) and self.better(best, found):
                best = found
        return best

    def _joined(self, situation: Situation, kept: Allocation, deadline: float) -> Allocation:
        """With units whole that a node can well take, and all others evened around them."""
        cut = situation.cut
        assert cut is not None
        most = KEPT * mean_load(situation.units.load, situation.nodes)
        stay = {u: on for u, on in cut.extras.items() if cut.whole.units.load[u] > most}
        if len(stay) == len(cut.extras):
            return kept
        made = placed(cut, stay, cut.whole.home)
        found = fused(made[0], self.search(made[0], deadline))
        saved = price_pct(kept[0]) - price_pct(found[0])
        costs = self._over(found) - self._over(kept)
        return found if self.better(kept, found) and costs <= (1 - DOUBT) * saved else kept

    def _over(self, made: Allocation) -> float:
        """Load distance above what pieces may go back for."""
        limit = KEPT * self.limits.distance_max_pct
        return max(0.0, distance_of(made[0].node_loads(made[1]), made[0].nodes) - limit)

    def _pays(self, kept: Allocation, found: Allocation) -> bool:
        """Do the pieces that are new lower the load distance by clearly more than they cost?"""
        added = price_pct(found[0]) - price_pct(kept[0])
        return self.excess(*kept) - self.excess(*found) > (1 + DOUBT) * max(added, 0.0) - 1e-9

    def _trim(self, made: Allocation) -> Allocation:
        trimmed = trim(*made, self.limits)
        if pieces_of(_extras(trimmed)) < pieces_of(_extras(made)) and self.better(made, trimmed):
            return trimmed
        return made


def shed(situation: Situation, node: I32, limits: Limits, share: float | None = None) -> Allocation:
    """Parts of heavy units go from the fullest node to the emptiest until none is too full.

    Heavy are those above a share of the mean; by default above the least that may be cut.
    """
    share = CUT_SHARES[-1] if share is None else share
    cut, nodes = situation.cut, situation.nodes
    assert cut is not None
    loads = situation.node_loads(node)
    mean = mean_load(loads, nodes)
    parts = part_loads(situation, node)
    total = {u: sum(on.values()) for u, on in parts.items()}
    parts = {u: on for u, on in parts.items() if total[u] > share * mean}
    least, tight = SLIVER * mean, nodes.leaving.copy()
    touched: set[int] = set()
    for _ in range(4 * len(nodes) + 16):
        level = loads / nodes.capacity - mean
        if not parts or np.abs(level)[nodes.staying].max() <= mean * limits.distance_max_pct / 100:
            break
        giver = int(np.argmax(np.where(tight, -np.inf, level)))
        taker = int(np.argmin(np.where(nodes.leaving, np.inf, level)))
        room = min(level[giver] * nodes.capacity[giver], -level[taker] * nodes.capacity[taker])
        if tight[giver] or room <= least:
            break
        unit, most = _giving(parts, giver, taker, node, least)
        if unit < 0:
            tight[giver] = True
            continue
        given = most if most <= room + least else room
        if giver == node[unit] or given < most:
            parts[unit][giver] -= given
        else:
            del parts[unit][giver]
        parts[unit][taker] = parts[unit].get(taker, 0.0) + given
        loads[giver] -= given
        loads[taker] += given
        touched.add(unit)
    return _dealt_anew(situation, node, {u: parts[u] for u in touched})


def trim(situation: Situation, node: I32, limits: Limits) -> Allocation:
    """Take pieces back, the smallest first, as long as loads stay even enough."""
    cut, nodes = situation.cut, situation.nodes
    assert cut is not None
    if not cut.extras:
        return situation, node
    loads = situation.node_loads(node)
    parts = {u: on for u, on in part_loads(situation, node).items() if u in cut.extras}
    limit = KEPT * limits.distance_max_pct
    over = max(0.0, distance_of(loads, nodes) - limit)
    order = sorted((load, u, place) for u, on in parts.items() for place, load in on.items())
    touched: set[int] = set()
    for _, u, place in order:
        if place == node[u]:
            continue
        load = parts[u][place]
        others = [p for p in parts[u] if p != place]
        to = min(others, key=lambda p: loads[p] / nodes.capacity[p])
        moved = loads.copy()
        moved[place] -= load
        moved[to] += load
        now = max(0.0, distance_of(moved, nodes) - limit)
        if now - over > (1 - DOUBT) * piece_price(situation, u):
            continue
        loads, over = moved, now
        parts[u][to] += parts[u].pop(place)
        touched.add(u)
    return _dealt_anew(situation, node, {u: parts[u] for u in touched})


def _giving(
    parts: dict[int, dict[int, float]], giver: int, taker: int, node: I32, least: float
) -> tuple[int, float]:
    """The unit that gives, and how much it has to give: one with a piece there, else the heaviest.

    An owner keeps a sliver: it has the state, and to move it is the search's business.
    """
    best, most, known = -1, 0.0, False
    for unit, on in parts.items():
        free = on.get(giver, 0.0) - (least if giver == node[unit] else 0.0)
        if free > least and (taker in on, free) > (known, most):
            best, most, known = unit, free, taker in on
    return best, most


def _dealt_anew(situation: Situation, node: I32, parts: dict[int, dict[int, float]]) -> Allocation:
    """The allocation with units dealt out as these loads say; all others are as they were."""
    cut = situation.cut
    assert cut is not None
    if not parts:
        return situation, node
    extras = {u: on for u, on in cut.extras.items() if u not in parts}
    for u, on in parts.items():
        whole = sum(on.values()) or 1.0
        away = {place: load / whole for place, load in sorted(on.items()) if place != node[u]}
        if away and min(away.values()) > 0:
            extras[u] = tuple(away.items())
    return placed(cut, extras, node[: len(cut.whole.units)])


def _extras(made: Allocation) -> Extras:
    return {} if made[0].cut is None else made[0].cut.extras
