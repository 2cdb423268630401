"""COLA: everything fused at first, split by minimum-ratio cuts until it can be scheduled evenly.

Khandekar, Hildrum, Parekh, Rajan, Wolf, Wu, Andrade and Gedik, "COLA: optimizing stream processing
applications via graph partitioning" (Middleware 2009). Its full text was not at hand. Where each
rule is from:

- The goal, to save what traffic between processing elements (PEs) costs while hosts are evenly
  loaded, and the way, a hierarchical partitioning by a minimum-ratio cut: its abstract.
- All units begin in one PE; a scheduler places PEs, largest first, each on the emptiest host; while
  that is uneven, the PE to blame is split and the scheduler tries again; in the end what can be
  fused is fused: how the method is commonly told.
- Anew every period, from loads as measured, with neither a migration budget nor a thought of where
  units are: Madsen et al. 2017, section IV-B.
- Decided here: even means that no host is above the mean by more than `distance_max_pct`, the limit
  that the other planners have too. To blame is the largest PE that can be split on the fullest host
  that is too full; if there are only single units, the largest PE anywhere. A host with a single
  unit is as it is. Fusing takes the two PEs with the most traffic after which the schedule is still
  even, and again. How a ratio cut is found (`ratio_cut`; COLA's own way is not in the abstract).

- Operators with instances on some nodes only are unknown to it: a PE goes to a host that all of its
  units may have, one that has no such host is split, and two are fused only if they share one.

A PE's size is what its units cost wherever they are, and what the rows cost that enter or leave it.
COLA is for compile time: it looks at no clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numba import njit

from headgate.arrays import F64, I64, Bools
from headgate.planner.allocation.model import Situation
from headgate.planner.allocation.plan import Limits, Plan, describe
from headgate_lab.planner.ratio_cut import minimum_ratio_cut

Clock = Callable[[], float]
FUSIONS_TRIED = 1_000
FUSED_MAX = 1_000
"""More PEs than that are not fused: there are too many pairs."""


@dataclass(frozen=True)
class Element:
    """A PE: its units, and the traffic between them (numbered within it)."""

    units: I64
    u: I64
    v: I64
    w: F64
    size: float
    hosts: Bools


class ColaPlanner:
    """Balance and collocation from scratch, anew each time."""

    name = "cola"
    collocates = True

    def __init__(self, seed: int = 0, clock: Clock = time.perf_counter) -> None:
        self.seed = seed
        self._clock = clock

    def plan(self, situation: Situation, limits: Limits) -> Plan:
        began = self._clock()
        stays = np.flatnonzero(situation.nodes.staying).astype(np.int32)
        node = situation.home.astype(np.int32)
        elements: list[Element] = []
        if len(node):
            capacity = situation.nodes.capacity[stays]
            excess = 1.0 + limits.distance_max_pct / 100.0
            elements = split(situation, capacity, excess, self.seed + situation.period)
            part, sizes, hosts = fuse(situation, elements, capacity, excess)
            node = stays[schedule(sizes, capacity, hosts)][part]
        free = replace(limits, migration_cost_max=np.inf)
        found = describe(
            situation,
            node,
            self.name,
            free,
            bound_pct=0.0,  # loads depend on the allocation
            notes=(f"{len(elements)} processing elements before fusing",),
            seconds=self._clock() - began,
        )
        found.check(situation, free)
        return found


def split(situation: Situation, capacity: F64, excess: float, seed: int) -> list[Element]:
    """PEs that can be scheduled so that no host has more than `excess` times the mean, if any."""
    t = situation.traffic
    whole = np.arange(len(situation.units), dtype=np.int64)
    elements = [_element(situation, whole, t.sender, t.receiver, t.rate)]
    while True:
        sizes = np.array([e.size for e in elements])
        single = np.array([len(e.units) < 2 for e in elements])
        hosts = np.array([e.hosts for e in elements])
        blamed = to_blame(sizes, single, capacity, excess, hosts)
        if blamed is None:
            return elements
        old = elements[blamed]
        side = minimum_ratio_cut(situation.base_load[old.units], old.u, old.v, old.w, seed)
        elements[blamed] = _part(situation, old, side)
        elements.append(_part(situation, old, ~side))


def to_blame(
    sizes: F64, single: Bools, capacity: F64, excess: float, hosts: Bools | None = None
) -> int | None:
    """The PE to split next; None if the schedule is even, or splitting cannot make it so.

    `hosts` ([PE, host]) says where PEs may go; a PE that may go nowhere comes first.
    """
    if hosts is not None and (lost := ~hosts.any(axis=1)).any():
        return int(np.argmax(lost))
    level = float(sizes.sum()) / float(capacity.sum()) * excess
    can = ~single
    if not can.any():
        return None
    largest = int(np.argmax(np.where(can, sizes, -1.0)))
    if sizes[largest] > level * float(capacity.max()):
        return largest  # no host can take it: no need to ask the scheduler
    host = schedule(sizes, capacity, hosts)
    full = np.bincount(host, sizes, len(capacity)) / capacity
    crowded = False
    for at in np.argsort(-full, kind="stable"):
        if full[at] <= level:
            break
        there = np.flatnonzero(host == at)
        if can[there].any():
            return int(there[np.argmax(np.where(can[there], sizes[there], -1.0))])
        crowded = crowded or len(there) > 1
    return largest if crowded else None


def schedule(sizes: F64, capacity: F64, hosts: Bools | None = None) -> I64:
    """A host for every PE: the largest first, each where it ends up lowest (LPT) and may go.

    Examples:
        >>> schedule(np.array([3.0, 3.0, 2.0, 2.0, 2.0]), np.ones(2)).tolist()
        [0, 1, 0, 1, 0]
    """
    if hosts is None:
        hosts = np.ones((len(sizes), len(capacity)), np.bool_)
    found: I64 = _longest_first(np.argsort(-sizes, kind="stable"), sizes, capacity, hosts)
    return found


def fuse(
    situation: Situation, elements: list[Element], capacity: F64, excess: float
) -> tuple[I64, F64, Bools]:
    """PEs with traffic between them made one while the schedule stays even.

    Returns the PE of every unit, and the sizes and hosts of PEs.
    """
    sizes, hosts = np.array([e.size for e in elements]), np.array([e.hosts for e in elements])
    part = np.empty(len(situation.units), np.int64)
    for i, element in enumerate(elements):
        part[element.units] = i
    t, tried, count = situation.traffic, 0, len(sizes)
    if count > FUSED_MAX or not t.total:
        return part, sizes, hosts
    between = np.bincount(part[t.sender] * count + part[t.receiver], t.rate, count * count)
    between = between.reshape(count, count)
    between = np.triu(between + between.T, 1)
    while tried < FUSIONS_TRIED:
        fused = None
        for pair in np.argsort(-between, axis=None, kind="stable"):
            a, b = divmod(int(pair), count)
            if between[a, b] <= 0 or tried >= FUSIONS_TRIED:
                break
            if not (hosts[a] & hosts[b]).any():
                continue
            tried += 1
            size = sizes[a] + sizes[b] - 2.0 * t.remote_load * between[a, b]
            after = sizes.copy()
            after[a], after[b] = size, 0.0
            both_hosts = hosts.copy()
            both_hosts[a] &= hosts[b]
            if _even(after, capacity, excess, both_hosts):
                fused = a, b, after, both_hosts
                break
        if fused is None:
            break
        a, b, sizes, hosts = fused
        part[part == b] = a
        both = between + between.T
        both[a] += both[b]
        both[:, a] = both[a]
        both[b] = both[:, b] = both[a, a] = 0.0
        between = np.triu(both, 1)
    return part, sizes, hosts


def _even(sizes: F64, capacity: F64, excess: float, hosts: Bools) -> bool:
    full = np.bincount(schedule(sizes, capacity, hosts), sizes, len(capacity)) / capacity
    return bool(full.max() <= float(sizes.sum()) / float(capacity.sum()) * excess)


def _element(situation: Situation, units: I64, u: I64, v: I64, w: F64) -> Element:
    t = situation.traffic
    ends = np.bincount(t.sender, t.rate, len(situation.units))
    ends = ends + np.bincount(t.receiver, t.rate, len(situation.units))
    crossing = max(0.0, float(ends[units].sum()) - 2.0 * float(w.sum()))
    size = float(situation.base_load[units].sum()) + t.remote_load * crossing
    reach, stays = situation.reach, situation.nodes.staying
    hosts: Bools = np.ones(int(stays.sum()), np.bool_)
    if reach is not None:
        hosts = np.asarray(reach.nodes[np.unique(reach.group[units])][:, stays].all(axis=0))
    return Element(units, u, v, w, size, hosts)


def _part(situation: Situation, whole: Element, side: Bools) -> Element:
    inside = side[whole.u] & side[whole.v]
    at = np.cumsum(side) - 1
    u, v = at[whole.u[inside]], at[whole.v[inside]]
    return _element(situation, whole.units[side], u, v, whole.w[inside])


@njit(cache=True)
def _longest_first(order, sizes, capacity, hosts):  # type: ignore[no-untyped-def]
    load = np.zeros(len(capacity))
    host = np.zeros(len(sizes), np.int64)
    for pe in order:
        best = -1
        for h in range(len(capacity)):
            full = (load[h] + sizes[pe]) / capacity[h]
            if hosts[pe, h] and (best < 0 or full < (load[best] + sizes[pe]) / capacity[best]):
                best = h
        host[pe] = best
        load[best] += sizes[pe]
    return host
