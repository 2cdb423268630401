"""The search of the integrated planner: random steps, worse ones ever more rarely (annealing).

A step takes a unit to a node, swaps two units, or takes a unit and its strongest partner along; if
the budget cannot pay for it, a unit that has moved goes home in the same step. It is judged by what
it does to one number, in units of load:

    - worth x rows that stay on their node          (nearness of nodes counts for the rest)
    + strictness x unevenness beyond a dead zone    (per node and balance class, see `_uneven`)
    + what moves cost, a little, so that a move which brings nothing is taken back

Taking unit a from node s to node t changes the loads of these two nodes only, because a row costs
`remote` at both of its ends if it crosses:

    load(s) - size(a) + 2 remote toward(a, s)        toward(a, n): rows between a and node n
    load(t) + size(a) - 2 remote toward(a, t)        size(a): its load if all its rows cross

so a step is judged in O(nodes) at most and made in O(partners). The migration budget is never
exceeded, and nothing goes to a node that leaves or has no instance of its operator. Steps come from
a seed: equal input, equal plan. With a balance class per operator, what partners save is booked to
the class of the unit that moves; the planner measures what came of it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from headgate.arrays import F64, I32, I64, Bools

SPENT, MOVED = 0, 1  # places in `account`
EXACT_NODES = 64  # up to so many a step is judged by the loads of all, as their mean falls with it
LEFT_PRICE = 20.0  # of load on a node that leaves; by hand: emptying it comes before evening
SQUARE_PRICE = 60.0  # of unevenness squared, by hand: one node far off costs more than several


class Field(NamedTuple):
    """Units on nodes. What is kept per unit and node changes in place with every step."""

    starts: I64
    other: I64
    weight: F64
    partner: I64  # the unit each exchanges most rows with, or -1
    size: F64
    kind: I32  # balance class
    toward: F64  # [unit, node]
    pull: F64  # toward, seen through distances; the same array if all nodes are equally far
    near: F64  # [node, node], 1 on the diagonal; empty if all are equally far
    at: I32
    home: I32
    cost: F64
    loads: F64  # [class, node]
    capacity: F64
    apart: Bools  # [class, node]: nodes that should have nothing of it, as they leave
    group: I32  # of each unit, its row in `closed`
    closed: Bools  # [group, node]: where no unit of it may go: it leaves, or has no instance
    moved: I64  # the units away from home, the first account[MOVED] of it
    place: I64  # where each of them is in `moved`
    account: F64  # cost of the plan, number of units away from home


class Rules(NamedTuple):
    """Prices of a search, in units of load."""

    budget: float  # of migration costs
    remote: float  # what a row that crosses nodes costs at each end
    worth: float  # of a row that stays on its node
    strictness: float  # of unevenness
    dead: float  # unevenness that costs nothing, as a share of the mean
    move_price: float  # per migration cost
    least_mean: float  # below it loads are none
    room: F64  # capacity of the nodes that stay, by class


class Means(NamedTuple):
    """What holds for all nodes, per balance class; apart from `Field`, as it is read most."""

    mean: F64  # load per capacity that stays
    level: F64  # unevenness; only kept where steps are judged exactly


class Shift(NamedTuple):
    """What a step does to loads: each class loses at the source and gains at the target."""

    source: np.int64
    target: np.int64
    kind: np.int32
    out: float
    into: float
    other_kind: np.int32
    other_out: float
    other_into: float


@njit(cache=True)
def _draw(state, below):  # type: ignore[no-untyped-def]
    """A number in 0..below-1 (xorshift64*)."""
    x = state[0]
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    state[0] = x
    return np.int64((x * np.uint64(0x2545F4914F6CDD1D)) >> np.uint64(33)) % below


@njit(cache=True)
def _uneven(r, load, capacity, mean, leaving):  # type: ignore[no-untyped-def]
    """The price of a node's load, as a share of the mean; a node that leaves should have none.

    If rows are all that costs, nothing is left of the mean once they all stay: that is even.
    """
    if mean <= r.least_mean:
        return 0.0
    x = load / mean
    if leaving:
        return LEFT_PRICE * x
    x = abs(x - capacity) - r.dead * capacity
    return x + SQUARE_PRICE * x * x / capacity if x > 0.0 else 0.0


@njit(cache=True)
def _judge(f, r, now, shift):  # type: ignore[no-untyped-def]
    """Change of unevenness by a shift of loads."""
    s, t = shift.source, shift.target
    total = 0.0
    for c in range(f.loads.shape[0]):
        if c != shift.kind and c != shift.other_kind:
            continue
        lost = (shift.out if c == shift.kind else 0.0) + (
            shift.other_out if c == shift.other_kind else 0.0
        )
        won = (shift.into if c == shift.kind else 0.0) + (
            shift.other_into if c == shift.other_kind else 0.0
        )
        m = now.mean[c]
        mean = m + (won - lost) / r.room[c]
        if r.remote > 0.0 and len(f.capacity) <= EXACT_NODES:
            for n in range(len(f.capacity)):
                after = f.loads[c, n] - (lost if n == s else 0.0) + (won if n == t else 0.0)
                total += m * _uneven(r, after, f.capacity[n], mean, f.apart[c, n])
            total -= now.level[c]
        else:
            a, b = f.loads[c, s], f.loads[c, t]
            total += m * _uneven(r, a - lost, f.capacity[s], m, f.apart[c, s])
            total += m * _uneven(r, b + won, f.capacity[t], m, f.apart[c, t])
            total -= m * _uneven(r, a, f.capacity[s], m, f.apart[c, s])
            total -= m * _uneven(r, b, f.capacity[t], m, f.apart[c, t])
    return total


@njit(cache=True)
def _step_cost(f, a, t):  # type: ignore[no-untyped-def]
    s = f.at[a]
    return (f.cost[a] if t != f.home[a] else 0.0) - (f.cost[a] if s != f.home[a] else 0.0)


@njit(cache=True)
def _settle(f, r, now, a, t):  # type: ignore[no-untyped-def]
    """Take a unit to a node: loads, partners, account."""
    s, k = f.at[a], f.kind[a]
    f.account[SPENT] += _step_cost(f, a, t)
    out = f.size[a] - 2.0 * r.remote * f.toward[a, s]
    into = f.size[a] - 2.0 * r.remote * f.toward[a, t]
    f.loads[k, s] -= out
    f.loads[k, t] += into
    now.mean[k] += (into - out) / r.room[k]
    if s == f.home[a] and t != s:
        f.place[a] = np.int64(f.account[MOVED])
        f.moved[f.place[a]] = a
        f.account[MOVED] += 1.0
    elif t == f.home[a] and s != t:
        f.account[MOVED] -= 1.0
        last = f.moved[np.int64(f.account[MOVED])]
        f.moved[f.place[a]] = last
        f.place[last] = f.place[a]
    f.at[a] = t
    for e in range(f.starts[a], f.starts[a + 1]):
        p, w = f.other[e], f.weight[e]
        f.toward[p, s] -= w
        f.toward[p, t] += w
        if len(f.near):
            for n in range(len(f.capacity)):
                f.pull[p, n] += w * (f.near[t, n] - f.near[s, n])


@njit(cache=True)
def _between(f, a, b):  # type: ignore[no-untyped-def]
    if f.starts[a + 1] - f.starts[a] > f.starts[b + 1] - f.starts[b]:
        a, b = b, a
    for e in range(f.starts[a], f.starts[a + 1]):
        if f.other[e] == b:
            return f.weight[e]
    return 0.0


@njit(cache=True)
def _propose(f, state, talks):  # type: ignore[no-untyped-def]
    """(unit, node, second unit or -1, does that go along); if not, it comes in return."""
    units, nodes = len(f.at), len(f.capacity)
    kind = _draw(state, 10)
    a = _draw(state, units)
    b, along = np.int64(-1), False
    t = _draw(state, nodes)
    away = np.int64(f.account[MOVED])
    if kind <= 2 and away and away < units // 2:
        a = f.moved[_draw(state, away)]
        if kind == 0:
            return a, np.int64(f.home[a]), b, along
    s = np.int64(f.at[a])
    if talks and kind <= 6 and f.starts[a + 1] > f.starts[a]:
        p = f.partner[a]
        if f.at[p] == s or kind <= 3:
            e = f.starts[a] + _draw(state, f.starts[a + 1] - f.starts[a])
            p = f.other[e]
        t = np.int64(f.at[p])
        if t == s and kind >= 5:  # together already: both go elsewhere
            t = _draw(state, nodes)
            b, along = np.int64(f.partner[a]), True
            if f.at[b] != s:
                b, along = np.int64(-1), False
            return a, t, b, along
    if t != s and _draw(state, 2):
        for _ in range(2 * nodes):
            b = _draw(state, units)
            if f.at[b] == t:
                return a, t, b, along
        b = np.int64(-1)
    return a, t, b, along


@njit(cache=True)
def _change(f, r, now, a, t, b, along):  # type: ignore[no-untyped-def]
    """What a step does to the number, and what it adds to the cost of the plan; inf: forbidden."""
    s = np.int64(f.at[a])
    if s == t or (f.closed[f.group[a], t] and t != f.home[a]):
        return np.inf, 0.0
    cost = _step_cost(f, a, t)
    rows = f.pull[a, t] - f.pull[a, s]
    out_s = f.size[a] - 2.0 * r.remote * f.toward[a, s]
    in_t = f.size[a] - 2.0 * r.remote * f.toward[a, t]
    out_b = in_b = 0.0
    kb = f.kind[a]
    if b >= 0:
        kb = f.kind[b]
        bond = _between(f, a, b)
        far = 1.0 - f.near[s, t] if len(f.near) else 1.0
        if along:
            if f.closed[f.group[b], t] and t != f.home[b]:
                return np.inf, 0.0
            cost += _step_cost(f, b, t)
            rows += f.pull[b, t] - f.pull[b, s] + 2.0 * bond * far
            out_b = f.size[b] - 2.0 * r.remote * (f.toward[b, s] - bond)
            in_b = f.size[b] - 2.0 * r.remote * (f.toward[b, t] + bond)
        else:
            if f.closed[f.group[b], s] and s != f.home[b]:
                return np.inf, 0.0
            cost += _step_cost(f, b, s)
            rows += f.pull[b, s] - f.pull[b, t] - 2.0 * bond * far
            # b leaves t after a came there, and comes to s after a left
            in_b = -(f.size[b] - 2.0 * r.remote * (f.toward[b, t] + bond))
            out_b = -(f.size[b] - 2.0 * r.remote * (f.toward[b, s] - bond))
    shift = Shift(s, t, f.kind[a], out_s, in_t, kb, out_b, in_b)
    uneven = r.strictness * _judge(f, r, now, shift)
    return r.move_price * cost - r.worth * rows + uneven, cost


@njit(cache=True)
def _try(f, r, now, state, a, t, b, along, limit):  # type: ignore[no-untyped-def]
    """Make a step if it raises the number by no more than `limit`.

    For one that the budget cannot pay, a unit that has moved is sent home first.
    """
    change, cost = _change(f, r, now, a, t, b, along)
    if change == np.inf:
        return
    if cost > 0.0 and f.account[SPENT] + cost > r.budget:
        away = np.int64(f.account[MOVED])
        c = f.moved[_draw(state, away)] if away else a
        if c in (a, b) or f.account[SPENT] + cost - f.cost[c] > r.budget:
            return
        at = np.int64(f.at[c])
        first, _ = _change(f, r, now, c, np.int64(f.home[c]), np.int64(-1), False)
        _settle(f, r, now, c, np.int64(f.home[c]))
        _levels(f, r, now)
        change, cost = _change(f, r, now, a, t, b, along)
        if first + change > limit or f.account[SPENT] + cost > r.budget:
            _settle(f, r, now, c, at)
            _levels(f, r, now)
            return
    elif change > limit:
        return
    s = np.int64(f.at[a])
    _settle(f, r, now, a, t)
    if b >= 0:
        _settle(f, r, now, b, t if along else s)
    _levels(f, r, now)


@njit(cache=True)
def _levels(f, r, now):  # type: ignore[no-untyped-def]
    """Unevenness of every class as it is."""
    if r.remote <= 0.0 or len(f.capacity) > EXACT_NODES:
        return
    for c in range(len(now.level)):
        now.level[c] = 0.0
        m = now.mean[c]
        for n in range(len(f.capacity)):
            now.level[c] += m * _uneven(r, f.loads[c, n], f.capacity[n], m, f.apart[c, n])


@njit(cache=True)
def anneal(f, r, state, steps, heat):  # type: ignore[no-untyped-def]
    """Some random steps at one heat (in units of load)."""
    now = Means(np.empty(f.loads.shape[0]), np.zeros(f.loads.shape[0]))
    for k in range(len(now.mean)):
        now.mean[k] = f.loads[k].sum() / r.room[k]
    _levels(f, r, now)
    talks = len(f.other) > 0
    for _ in range(steps):
        a, t, b, along = _propose(f, state, talks)
        if heat > 0.0:
            limit = -heat * np.log((_draw(state, 1 << 30) + 1.0) / (1 << 30))
        else:
            limit = -1e-12 * max(now.mean[0], r.least_mean)
        _try(f, r, now, state, a, t, b, along, limit)
