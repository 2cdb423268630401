"""Why a unit moves, in one line, heaviest units first.

In this order: its node leaves; more of its rows stay on its node, its host or in its rack; loads
are more even with it than without it, all other moves made; it makes room for others. Loads are
judged as planned: what a node has before says little about a move that is one of many.
"""

from __future__ import annotations

import numpy as np

from headgate.arrays import F64, I32, I64
from headgate.planner.allocation.measures import Balance, balance_classes, class_loads
from headgate.planner.allocation.model import Situation

TOLD_MAX = 1_000
CLEARLY = 1.05
"""Rows count as a reason if they are so many times as many as before."""
KEPT = ("stay on its node", "stay on its host", "stay in its rack")


def reasons_for(
    situation: Situation,
    node: I32,
    *,
    balance: Balance = "total",
    as_measured: bool = False,
    for_rows: bool = True,
) -> tuple[str, ...]:
    """A line for each of the TOLD_MAX heaviest units that move, and one that counts the rest.

    `for_rows` is false of planners that look at loads alone: where rows go is chance then.
    """
    moved = situation.moved(node)
    moved = moved[np.argsort(-situation.units.load[moved], kind="stable")]
    told = moved[:TOLD_MAX]
    if not len(told):
        return ()
    near = _nearest_rows(situation, node, told) if for_rows else []
    levels = _Levels(situation, node, balance, as_measured=as_measured)
    lines = []
    for i, u in enumerate(told.tolist()):
        source, target = int(situation.home[u]), int(node[u])
        why = f"node {source} is to be removed" if situation.nodes.leaving[source] else None
        why = why or _by_rows(near, i) or levels.why(u, source, target)
        lines.append(f"{situation.units.name(u)}: node {source} -> {target}, {why}")
    if len(moved) > len(told):
        lines.append(f"and {len(moved) - len(told):,} more")
    return tuple(lines)


def _by_rows(near: list[tuple[F64, F64]], i: int) -> str | None:
    """The nearest class of distances in which a unit has clearly more rows than before."""
    for words, (before, after) in zip(KEPT, near, strict=False):
        if after[i] > before[i] * CLEARLY:
            return f"{_rows(after[i])} rows of it {words}, {_rows(before[i])} before"
    return None


def _rows(count: float) -> str:
    return f"{count:,.0f}" if count >= 10 else f"{count:.2g}"


def _nearest_rows(situation: Situation, node: I32, told: I64) -> list[tuple[F64, F64]]:
    """Rows of these units that go no further than a node, a host, a rack: at home and planned."""
    t, distances = situation.traffic, situation.nodes.distances
    place = np.full(len(node), -1, np.int64)
    place[told] = np.arange(len(told))
    ends = [np.flatnonzero(place[end] >= 0) for end in (t.sender, t.receiver)]
    classes = len(KEPT) + 1 if distances is not None else 2
    rows = []
    for at in (situation.home, node):
        a, b = at[t.sender], at[t.receiver]
        far = a != b if distances is None else np.minimum(distances.near[a, b], classes - 1)
        total = np.zeros(len(told) * classes)
        for end, mine in zip((t.sender, t.receiver), ends, strict=True):
            cell = place[end[mine]] * classes + far[mine]
            total += np.bincount(cell, t.rate[mine], len(total))
        rows.append(np.cumsum(total.reshape(-1, classes), axis=1))
    return [(rows[0][:, reach], rows[1][:, reach]) for reach in range(classes - 1)]


class _Levels:
    """Loads of nodes in percent of the mean, with and without a single move of a plan."""

    def __init__(
        self, situation: Situation, node: I32, balance: Balance, *, as_measured: bool
    ) -> None:
        self._kinds = balance_classes(situation, balance)
        self._by_operator = balance == "operator"
        self._situation = situation
        self._load = situation.units.load if as_measured else situation.unit_loads(node)
        self._loads = class_loads(situation, node, balance, as_measured=as_measured)
        means = self._loads.sum(axis=1) / situation.nodes.staying_capacity
        self._percent = 100.0 / np.maximum(means, 1e-300)
        came = node != situation.home
        self._comes_to = np.bincount(node[came], minlength=len(situation.nodes))

    def why(self, unit: int, source: int, target: int) -> str:
        kind, capacity = self._kinds[unit], self._situation.nodes.capacity
        loads, load = self._loads[kind], self._load[unit]
        percent = self._percent[kind]
        stayed = percent * (loads[source] + load) / capacity[source]
        without = percent * (loads[target] - load) / capacity[target]
        if stayed > without:
            units = self._situation.units
            of = f" of {units.operators[units.operator[unit]]}" if self._by_operator else ""
            return (
                f"evens loads{of}: without it node {source} would have {stayed:.1f} % of the mean, "
                f"node {target} {without:.1f} %"
            )
        if self._comes_to[source]:
            return f"in exchange for what comes to node {source}"
        return "part of the plan as a whole"
