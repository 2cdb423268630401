"""Units cut into pieces: each piece is a unit with its share of load and rows.

The owner's piece is the unit itself: it holds the merged state, so only it costs anything to move.
The others send it what they gathered, `merge_rate` rows a period, which cost what rows between
nodes cost. Rows are dealt out by share whoever sends them, so the traffic of a unit is shared too.
Pieces of one unit on one node are one piece. Load and rows are conserved, whatever is cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from headgate.arrays import F64, I32, I64, Bools
from headgate.planner.allocation.model import Cut, Extras, Situation, Traffic, Units

Parts = Mapping[int, Sequence[tuple[int, float]]]
"""Unit -> units that it is dealt out to, and the share of each."""


def cut_up(whole: Situation, can: Bools, merge_rate: F64, extras: Extras) -> Situation:
    """The situation with these units cut; an extra piece has the node it is on as its home."""
    pieces = [(u, node, share) for u, on in sorted(extras.items()) for node, share in on]
    count, more = len(whole.units), len(pieces)
    owner = np.concatenate([np.arange(count), [u for u, _, _ in pieces]]).astype(np.int64)
    share = np.concatenate([np.ones(count), [part for _, _, part in pieces]])
    np.subtract.at(share, owner[count:], share[count:])
    cut = Cut(whole, can, merge_rate, extras, owner, share)
    if not more:
        return replace(whole, cut=cut)
    parts: dict[int, list[tuple[int, float]]] = {u: [(u, float(share[u]))] for u in sorted(extras)}
    for i, (u, _, part) in enumerate(pieces):
        parts[u].append((count + i, part))
    flow = dealt(whole.traffic, count, parts)
    sends = np.flatnonzero(merge_rate[owner[count:]] > 0)
    flow = Traffic(
        np.concatenate([flow.sender, count + sends]),
        np.concatenate([flow.receiver, owner[count:][sends]]),
        np.concatenate([flow.rate, merge_rate[owner[count:]][sends]]),
        flow.remote_load,
    )
    home = np.concatenate([whole.home, [node for _, node, _ in pieces]]).astype(np.int32)
    load = whole.base_load[owner] * share + flow.remote_load * flow.remote(home)
    own = whole.units
    units = Units(
        own.operators,
        own.operator[owner],
        load,
        np.concatenate([own.state_bytes, np.zeros(more)]),
        own.names,
        tuple(f"{own.name(u)} on node {node}" for u, node, _ in pieces),
    )
    return replace(whole, units=units, home=home, traffic=flow, cut=cut)


def dealt(traffic: Traffic, units: int, parts: Parts) -> Traffic:
    """The traffic if some units are dealt out; both ends of a pair may be."""
    if not parts:
        return traffic
    count = np.ones(units, np.int64)
    count[list(parts)] = [len(on) for on in parts.values()]
    first = np.cumsum(count) - count
    part, share = np.repeat(np.arange(units), count), np.ones(int(count.sum()))
    for unit, on in parts.items():
        mine = slice(first[unit], first[unit] + count[unit])
        part[mine], share[mine] = [p for p, _ in on], [x for _, x in on]
    a, b = traffic.sender, traffic.receiver
    pairs = count[a] * count[b]
    edge = np.repeat(np.arange(len(pairs)), pairs)
    turn = np.arange(len(edge)) - np.repeat(np.cumsum(pairs) - pairs, pairs)
    at = first[a[edge]] + turn // count[b[edge]]
    to = first[b[edge]] + turn % count[b[edge]]
    return Traffic(
        part[at], part[to], traffic.rate[edge] * share[at] * share[to], traffic.remote_load
    )


def fused(situation: Situation, node: I32) -> tuple[Situation, I32]:
    """The same allocation with the pieces that have come together joined, and cut up anew."""
    cut = situation.cut
    assert cut is not None
    count = len(cut.whole.units)
    on: dict[int, dict[int, float]] = {}
    for piece in range(count, len(node)):
        u, place = int(cut.owner[piece]), int(node[piece])
        parts = on.setdefault(u, {})
        if place != node[u]:
            parts[place] = parts.get(place, 0.0) + float(cut.share[piece])
    extras = {u: tuple(sorted(parts.items())) for u, parts in on.items() if parts}
    return placed(cut, extras, node[:count])


def placed(cut: Cut, extras: Extras, owners: I32) -> tuple[Situation, I32]:
    """A situation with these pieces, and the allocation that has them and owners in place."""
    made = cut_up(cut.whole, cut.can, cut.merge_rate, extras)
    return made, np.concatenate([owners, made.home[len(owners) :]]).astype(np.int32)


def after(situation: Situation, owners: I32, extras: Extras) -> Situation:
    """The same period as it would be measured under a plan that may cut."""
    cut = situation.cut
    if cut is None:
        return situation.after(owners)
    return cut_up(cut.whole.after(owners), cut.can, cut.merge_rate, extras)


def pieces_of(extras: Extras) -> int:
    """Pieces besides those of the owners."""
    return sum(len(on) for on in extras.values())


def cut_lines(before: Extras, situation: Situation, node: I32) -> tuple[str, ...]:
    """Why units are cut, dealt out otherwise, or joined again: a line for each of them."""
    cut = situation.cut
    assert cut is not None
    whole, mean = cut.whole, _mean(situation)
    lines = []
    for u in sorted({*before, *cut.extras}):
        name, now = whole.units.name(u), cut.extras.get(u, ())
        if not now:
            lines.append(f"{name}: joined on node {node[u]}, loads are even enough without the cut")
            continue
        places = ", ".join(f"{n} ({100 * share:.0f} %)" for n, share in now)
        if {n for n, _ in now} != {n for n, _ in before.get(u, ())}:
            has = f"it has {100 * whole.units.load[u] / mean:.0f} % of a node's share"
            lines.append(f"{name}: cut, node {node[u]} shares it with {places}; {has}")
        elif now != before[u]:
            lines.append(f"{name}: node {node[u]} now shares it with {places}; evens loads")
    return tuple(lines)


def _mean(situation: Situation) -> float:
    return max(float(situation.units.load.sum()) / situation.nodes.staying_capacity, 1e-300)


def part_loads(situation: Situation, node: I32) -> dict[int, dict[int, float]]:
    """Unit that may be cut -> node -> its load there."""
    cut = situation.cut
    assert cut is not None
    load, found = situation.unit_loads(node), dict[int, dict[int, float]]()
    mine: I64 = np.flatnonzero(cut.can[cut.owner])
    for i in mine.tolist():
        parts = found.setdefault(int(cut.owner[i]), {})
        parts[int(node[i])] = parts.get(int(node[i]), 0.0) + float(load[i])
    return found
