"""Which slots get an operator's instances: pure, and always the same answer for the same question.

Four wishes, the first ones stronger. State that needs no other place stays: an operator that keeps
its count keeps its slots, one that shrinks keeps some of them, one that grows keeps them all. An
operator's instances are spread over hosts to within one, as far as hosts have slots. No slot gets
much more work than another. Operators that talk to each other share slots, so that rows between
them need not leave.

How far work may differ: `SLACK` times the heaviest single instance, between any two slots of a
host, and between the sums of hosts of one size, if no operator was placed before. Proof. Let W be
the heaviest instance, and loads within SLACK x W of each other. A slot is *open* to an instance of
work p if with it the slot is within SLACK x W of the lowest. Open slots are taken first, by how
much the operator talks to what they have, and the lowest of the others last. So if one is taken
that is not open, every slot left out has at least its load, and it is ahead by p at most.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

import numpy as np

from headgate.arrays import F64, I64, Bools

SLACK = 2.0  # instances of the heaviest operator: two that talk share their slots, if equally heavy


def place_instances(
    wanted: Mapping[str, int],
    slots: int,
    *,
    work: Mapping[str, float] = {},
    talks: Mapping[tuple[str, str], float] = {},
    hosts: Sequence[str] = (),
    now: Mapping[str, tuple[int, ...]] = {},
) -> dict[str, tuple[int, ...]]:
    """The slots of every operator, in ascending order; operators x slots (a sort of slots each).

    Args:
        wanted: How many instances an operator should have; at least one, at most one in each slot.
        work: Of all of an operator's instances together, in any unit.
        talks: What goes from one operator to another, in any unit.
        hosts: The host of each slot (default: all on one).
        now: The slots that operators have.

    Examples:
        >>> place_instances({"costly": 4, "small": 1}, 4)
        {'costly': (0, 1, 2, 3), 'small': (0,)}
        >>> place_instances({"a": 2, "b": 2}, 4, work={"a": 1.0, "b": 1.0})
        {'a': (0, 1), 'b': (2, 3)}
        >>> place_instances({"a": 2, "b": 2}, 4, work={"a": 1, "b": 1}, talks={("a", "b"): 1})
        {'a': (0, 1), 'b': (0, 1)}
    """
    counts = {op: min(max(1, count), slots) for op, count in wanted.items()}
    had = {op: sorted({s for s in now.get(op, ()) if 0 <= s < slots}) for op in counts}
    each = {op: max(0.0, work.get(op, 0.0)) / count for op, count in counts.items()}
    ground = _Ground(slots, hosts, SLACK * max(each.values(), default=0.0))
    friends = _friends(counts, talks)
    placed: dict[str, I64] = {}
    for op, count in counts.items():
        if len(had[op]) == count:
            placed[op] = np.array(had[op], np.int64)
            ground.put(placed[op], each[op])
    for op in _order(counts, each, friends, set(placed)):
        near = np.zeros(slots)
        for other, weight in friends[op].items():
            if other in placed:
                near[placed[other]] += weight
        if len(had[op]) > counts[op]:
            chosen = ground.choose(counts[op], each[op], near, among=had[op])
        else:
            chosen = ground.choose(counts[op], each[op], near, keeps=had[op])
        placed[op] = chosen
        ground.put(chosen, each[op])
    return {op: tuple(placed[op].tolist()) for op in counts}


def allowed_slots(
    operators: Sequence[str], slots: int, instances: Mapping[str, tuple[int, ...]]
) -> Bools | None:
    """[operator, slot]: who has an instance where; None if every operator has one in every slot.

    Examples:
        >>> allowed_slots(["a", "b"], 3, {"b": (2,)})
        array([[ True,  True,  True],
               [False, False,  True]])
    """
    allowed = np.ones((len(operators), slots), np.bool_)
    for i, operator in enumerate(operators):
        if operator in instances:
            allowed[i] = False
            allowed[i, list(instances[operator])] = True
    return None if allowed.all() else allowed


def instance_counts(allowed: Bools | None, operators: int, slots: int) -> F64:
    """How many instances every operator has."""
    if allowed is None:
        return np.full(operators, float(slots))
    counts: F64 = allowed.sum(axis=1).astype(np.float64)
    return counts


class _Ground:
    """Slots on their hosts, and the work they have so far."""

    def __init__(self, slots: int, hosts: Sequence[str], slack: float) -> None:
        names = list(dict.fromkeys(hosts)) if len(hosts) == slots else []
        number = {name: i for i, name in enumerate(names)}
        host = [number[name] for name in hosts] if names else [0] * slots
        self._host = np.array(host, np.int64)
        self._hosts, self._slack = max(1, len(names)), slack
        self.load = np.zeros(slots)

    def put(self, chosen: I64, each: float) -> None:
        self.load[chosen] += each

    def choose(
        self,
        count: int,
        each: float,
        near: F64,
        *,
        among: Sequence[int] | None = None,
        keeps: Sequence[int] = (),
    ) -> I64:
        """So many slots, `keeps` among them; the others by host, by what is near, and by load."""
        free = np.ones(len(self.load), bool)
        if among is not None:
            free[:] = False
            free[list(among)] = True
        free[list(keeps)] = False
        kept = np.array(sorted(keeps), np.int64)
        quota = self._quotas(count, each, near, free, kept)
        order = self._ranked(self.load, near, each, np.flatnonzero(free), self._host)
        found = [kept]
        for host in range(self._hosts):
            if quota[host]:
                found.append(order[self._host[order] == host][: quota[host]])
        return np.sort(np.concatenate(found))

    def _quotas(self, count: int, each: float, near: F64, free: Bools, kept: I64) -> I64:
        """How many more each host gets: those with fewest are filled first, so all stay even."""
        room = np.bincount(self._host[free], minlength=self._hosts)
        mine = np.bincount(self._host[kept], minlength=self._hosts)
        quota = np.zeros(self._hosts, np.int64)
        load, talk = np.zeros(self._hosts), np.zeros(self._hosts)
        np.add.at(load, self._host, self.load)
        np.add.at(talk, self._host, near)
        left = count - len(kept)
        while left > 0:
            open_to = np.flatnonzero(quota < room)
            total = mine[open_to] + quota[open_to]
            lowest = open_to[total == total.min()]
            if len(lowest) > left:
                lowest = self._ranked(load, talk, each, lowest, np.zeros(self._hosts, np.int64))
                lowest = lowest[:left]
            quota[lowest] += 1
            load[lowest] += each
            left -= len(lowest)
        return quota

    def _ranked(self, load: F64, near: F64, each: float, places: I64, groups: I64) -> I64:
        """Places that are open, most talk first, then the others by their load.

        Open: with one more it is within the slack of the lowest of its group.
        """
        lowest = np.full(int(groups.max(initial=0)) + 1, np.inf)
        np.minimum.at(lowest, groups, load)
        is_open = load[places] + each <= lowest[groups[places]] + self._slack * (1 + 1e-9)
        talk = np.where(is_open, -near[places], 0.0)
        order: I64 = places[np.lexsort((places, load[places], talk, ~is_open))]
        return order


def _friends(
    counts: Mapping[str, int], talks: Mapping[tuple[str, str], float]
) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {op: {} for op in counts}
    for (one, other), weight in talks.items():
        if one in found and other in found and one != other and weight > 0:
            found[one][other] = found[one].get(other, 0.0) + weight
            found[other][one] = found[other].get(one, 0.0) + weight
    return found


def _order(
    counts: Mapping[str, int],
    each: Mapping[str, float],
    friends: Mapping[str, Mapping[str, float]],
    placed: set[str],
) -> list[str]:
    """The operators that are left: those next that talk most to one that has its place already.

    So a flow is placed from its heaviest operator outwards, and no two ends of it meet by chance.
    """
    order: list[str] = []
    rank = {op: i for i, op in enumerate(sorted(counts, key=lambda op: -each[op]))}
    waiting = [
        (-weight, rank[other], other)
        for op in counts
        if op in placed
        for other, weight in friends[op].items()
    ]
    heapq.heapify(waiting)
    seen = set(placed)
    for start in sorted(counts, key=rank.__getitem__):
        heapq.heappush(waiting, (0.0, rank[start], start))
    while waiting:
        _, _, op = heapq.heappop(waiting)
        if op in seen:
            continue
        seen.add(op)
        order.append(op)
        for other, weight in friends[op].items():
            if other not in seen:
                heapq.heappush(waiting, (-weight, rank[other], other))
    return order
