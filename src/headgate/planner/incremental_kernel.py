"""The hot loops of the incremental planner: take rows in, judge keys.

A key is worth to a slot what its pairs would save there, less what its load costs there:

    value(s) = toward[s] - load * price(fullness(s)) - burst * price'(burst fullness(s))
               + (move_rows + inertia * weight, if s is its owner)

Fullness is the planned load of the slot, with this key in it, over the mean, plus what the slot was
measured above the mean (the plan may be wrong: an integral term). A key heavier than a whole slot
brings what is measured of it along, so it is not handed round for nothing. The price is 0 up to the
mean, rises to `price` at the tolerance, and steeply above it. One price per operator and slot holds
all balance constraints at once, and keys that gain little leave a full slot first.

**Operators with instances in some slots only.** Means are those of their own slots; no other slot
is worth anything to their keys. If the partners of an operator's keys are in a few of its slots,
all keys want to go there, and the price would only stop them far above the mean. So such a slot has
a *crowding* price too: nearly what a row of load gains for the last key that fits. All keys bring
what is measured of them along then: under such a pull the heavier ones would come and go.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from headgate.arrays import F64, Bools
from headgate.planner.incremental_memory import (
    KEYS,
    LOAD_SCALE,
    NOBODY,
    PAIR_SCALE,
    PAIRS,
    link,
    place_of,
)

ROOM = 1.25  # a slot is crowded if keys of so many times the mean load want to go there
CROWDING = 0.9  # of what the last key that fits would gain
STEPS, STEPS_PER_ROW = 128, 32  # gains are told apart to 1/32 row per row of load, up to 4


class Conditions(NamedTuple):
    """What holds for one plan: means per operator, tolerances, and how near slots are."""

    mean_load: F64
    mean_burst: F64
    above: F64  # measured load of operator and slot over its mean, less 1
    tolerance: F64
    nearness: F64  # 1 on the diagonal; empty if all other slots are equally far
    allowed: Bools  # slots that have an instance of each operator; empty if all have
    crowding: F64  # what a row of load costs there beside its price; empty likewise


@njit(cache=True)
def take_keys(memory, operator, h, rows, slot, newborn, epoch, plan, fade):  # type: ignore[no-untyped-def]
    """Add loads; returns the numbers of keys not yet touched in this plan. Room must be there."""
    touched = np.empty(len(h), np.int64)
    n = 0
    now = memory.scale[LOAD_SCALE]
    for i in range(len(h)):
        at = place_of(memory.key_map, memory.op, memory.h, operator, h[i])
        k = memory.key_map[at]
        if k < 0:
            k = np.int32(memory.used[KEYS])
            memory.used[KEYS] += 1
            memory.key_map[at] = k
            memory.h[k], memory.op[k] = h[i], operator
            memory.owner[k], memory.fresh[k] = slot[i], newborn[i]
            memory.load[k] = memory.burst[k] = 0.0
            memory.burst_epoch[k] = epoch
            memory.toward[k, :] = 0.0
            memory.first[k], memory.stamp[k] = NOBODY, -1
        else:
            memory.fresh[k] = newborn[i]
            if memory.owner[k] != slot[i]:
                settle(memory, k, slot[i], epoch, fade)
        memory.burst[k] *= fade ** (epoch - memory.burst_epoch[k])
        memory.burst_epoch[k] = epoch
        s = memory.owner[k]
        memory.load[k] += rows[i] * now
        memory.burst[k] += rows[i]
        memory.planned[operator, s] += rows[i] * now
        memory.bursts[operator, s] += rows[i]
        if memory.stamp[k] != plan:
            memory.stamp[k] = plan
            touched[n] = k
            n += 1
    return touched[:n]


@njit(cache=True)
def take_pairs(memory, op_a, op_b, a, b, rows):  # type: ignore[no-untyped-def]
    """Add pairs of known keys; others are left out. Room must be there."""
    now = memory.scale[PAIR_SCALE]
    for i in range(len(rows)):
        u = memory.key_map[place_of(memory.key_map, memory.op, memory.h, op_a, a[i])]
        v = memory.key_map[place_of(memory.key_map, memory.op, memory.h, op_b, b[i])]
        if u < 0 or v < 0:
            continue
        at = place_of(memory.pair_map, memory.u, memory.v, u, v)
        e = memory.pair_map[at]
        if e < 0:
            e = np.int32(memory.used[PAIRS])
            memory.used[PAIRS] += 1
            memory.pair_map[at] = e
            memory.u[e], memory.v[e], memory.weight[e] = u, v, 0.0
            link(memory, e, e + 1)
        weight = rows[i] * now
        memory.weight[e] += weight
        memory.toward[u, memory.owner[v]] += weight
        memory.toward[v, memory.owner[u]] += weight


@njit(cache=True)
def settle(memory, k, slot, epoch, fade):  # type: ignore[no-untyped-def]
    """Make a slot the owner of a key, and tell its partners. O(pairs of the key)."""
    s = memory.owner[k]
    e = memory.first[k]
    while e >= 0:
        if memory.u[e] == k:
            other, following = memory.v[e], memory.next_u[e]
        else:
            other, following = memory.u[e], memory.next_v[e]
        memory.toward[other, s] -= memory.weight[e]
        memory.toward[other, slot] += memory.weight[e]
        e = following
    o = memory.op[k]
    memory.burst[k] *= fade ** (epoch - memory.burst_epoch[k])
    memory.burst_epoch[k] = epoch
    memory.planned[o, s] -= memory.load[k]
    memory.planned[o, slot] += memory.load[k]
    memory.bursts[o, s] -= memory.burst[k]
    memory.bursts[o, slot] += memory.burst[k]
    memory.owner[k] = slot


@njit(cache=True)
def price(fullness, base, tolerance, steepness):  # type: ignore[no-untyped-def]
    """What a row of load costs in a slot, in rows of locality. Continuous, 0 up to the mean."""
    if fullness <= 1.0:
        return 0.0
    cost = base * (fullness - 1.0) / tolerance
    if fullness > 1.0 + tolerance:
        cost += steepness * base * (fullness - 1.0 - tolerance) / tolerance
    return cost


@njit(cache=True)
def crowding(memory, mean_load, allowed):  # type: ignore[no-untyped-def]
    """[operator, slot]: what a row of load costs in slots that too many keys want to go to.

    O(keys x slots): loads are added up by what a row of them gains there.
    """
    operators, slots = allowed.shape
    wants = np.zeros((operators, slots, STEPS))
    unit = memory.scale[LOAD_SCALE] / memory.scale[PAIR_SCALE]
    for k in range(memory.used[KEYS]):
        o, load = memory.op[k], memory.load[k]
        for s in range(slots):
            if load > 0.0 and allowed[o, s] and memory.toward[k, s] > 0.0:
                gain = min(memory.toward[k, s] / load * unit * STEPS_PER_ROW, STEPS - 1.0)
                wants[o, s, int(gain)] += load
    found = np.zeros((operators, slots))
    for o in range(operators):
        for s in range(slots):
            left = ROOM * mean_load[o] * memory.scale[LOAD_SCALE]
            step = STEPS
            while step > 0 and left >= 0.0:
                step -= 1
                left -= wants[o, s, step]
            found[o, s] = CROWDING * step / STEPS_PER_ROW
    return found


@njit(cache=True)
def judge(memory, k, conditions, settings, value):  # type: ignore[no-untyped-def]
    """Fill in what every slot is worth to a key; returns the weight of its pairs, in rows."""
    slots = len(value)
    o, home = memory.op[k], memory.owner[k]
    unit = 1.0 / memory.scale[PAIR_SCALE]
    load = memory.load[k] / memory.scale[LOAD_SCALE]
    burst = memory.burst[k]
    weight = 0.0
    for s in range(slots):
        value[s] = max(memory.toward[k, s], 0.0) * unit
        weight += value[s]
    if len(conditions.nearness):
        near = np.zeros(slots)
        for s in range(slots):
            for t in range(slots):
                near[s] += conditions.nearness[s, t] * value[t]
        value[:] = near
    share = load / conditions.mean_load[o]
    giant = share * min(max(share - 1.0, 0.0), 1.0)
    if len(conditions.allowed):
        giant = share
    for s in range(slots):
        if len(conditions.allowed):
            if not conditions.allowed[o, s]:
                value[s] = -np.inf
                continue
            value[s] -= load * conditions.crowding[o, s]
        enters = 0.0 if s == home else 1.0
        full = memory.planned[o, s] / memory.scale[LOAD_SCALE] + enters * load
        full = full / conditions.mean_load[o] + settings.measured * (
            conditions.above[o, s] + enters * giant
        )
        value[s] -= load * price(full, settings.price, conditions.tolerance[o], settings.steepness)
        if settings.burst_price > 0.0:
            full = (memory.bursts[o, s] + enters * burst) / conditions.mean_burst[o]
            value[s] -= burst * price(
                full, settings.burst_price, settings.burst_tolerance, settings.steepness
            )
    if not memory.fresh[k]:
        value[home] += settings.move_rows + settings.inertia * weight
    return weight


@njit(cache=True)
def place_keys(memory, keys, conditions, settings, epoch, budget, first_slot):  # type: ignore[no-untyped-def]
    """Move each of these keys to where it is worth most, in this order, a few passes.

    At most `budget` keys that are not newborn change owner; a key that has moved may move again.
    Ties: the owner, then slots from `first_slot` on. O(keys * slots + pairs of keys that move).
    """
    slots = memory.planned.shape[1]
    value = np.empty(slots)
    fade = 0.5 ** (1.0 / settings.burst_epochs)
    for k in keys:
        memory.was[k] = memory.owner[k]
    moved = 0
    for turn in range(settings.passes):
        for k in keys:
            newborn = memory.fresh[k] == 1
            if not newborn and memory.load[k] < settings.least_rows * memory.scale[LOAD_SCALE]:
                continue
            judge(memory, k, conditions, settings, value)
            home = memory.owner[k]
            best = home
            for s in range(slots):
                t = (s + first_slot) % slots
                if value[t] > value[best] + 1e-9:
                    best = t
            if best == home:
                continue
            free = newborn or memory.was[k] != home
            if not free:
                if moved >= budget:
                    continue
                moved += 1
            settle(memory, k, best, epoch, fade)
        if turn == 0:
            for k in keys:
                memory.fresh[k] = 0
