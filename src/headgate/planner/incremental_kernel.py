"""What the incremental planner remembers, and its two hot loops: take rows in, judge keys.

Memory is flat arrays that kernels change in place, grown by doubling up to a stated bound. A key
(operator, hash) has a number; `toward[key, slot]` is the weight of its pairs whose other key is in
that slot, kept up to date when keys move, so that a key is judged without walking its pairs. A pair
hangs in two linked lists, one per end, which only a move walks. Weights age by a scale that grows
with every row (newer rows weigh more) instead of being multiplied down. Bounds: `keys_max` keys per
operator, 8 * slots + 49 bytes each; `pairs_max` pairs, 24 bytes each; hash maps, at most 16 bytes
an entry.

A key is worth to a slot what its pairs would save there, less what its load costs there:

    value(s) = toward[s] - load * price(fullness(s)) - burst * price'(burst fullness(s))
               + (move_rows + inertia * weight, if s is its owner)

Fullness is the planned load of the slot, with this key in it, over the mean, plus what the slot was
measured above the mean (the plan may be wrong: an integral term). A key heavier than a whole slot
brings what is measured of it along, so it is not handed round for nothing. The price is 0 up to the
mean, rises to `price` at the tolerance, and steeply above it. One price per operator and slot holds
all balance constraints at once, and keys that gain little leave a full slot first.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from headgate.arrays import F64, I32, I64, U8, U64

KEYS, PAIRS = 0, 1  # places in `used`
PAIR_SCALE, LOAD_SCALE = 0, 1  # places in `scale`
NOBODY = -1
_FEWEST = 1_024  # keys and pairs there is room for at first
_SCALE_MAX = 1e90  # then weights are divided by it: a long way below the largest float


class Memory(NamedTuple):
    """The arrays. Per key, then per pair, then per operator and slot, then counters."""

    h: U64
    op: I32
    owner: I32
    was: I32  # owner when the plan under way began
    load: F64
    burst: F64
    burst_epoch: I64
    toward: F64
    first: I32  # first pair of the key's list
    stamp: I64  # plan in which the key was last touched
    fresh: U8  # a newborn that no plan has placed yet
    key_map: I32
    u: I32
    v: I32
    weight: F64
    next_u: I32
    next_v: I32
    pair_map: I32
    planned: F64  # load of each slot by the owners of keys
    bursts: F64  # the same of the last few epochs only
    measured: F64  # rows that slots really had
    wobble: F64  # variance of a slot's share from epoch to epoch, per operator
    used: I64
    scale: F64


_PER_KEY = tuple(Memory._fields[: Memory._fields.index("key_map")])
_PER_PAIR = ("u", "v", "weight", "next_u", "next_v")


def empty_memory(operators: int, slots: int) -> Memory:
    """Room for a first few keys and pairs."""
    keys, cells = _FEWEST, (operators, slots)
    kinds: dict[str, Any] = {"h": np.uint64, "burst_epoch": np.int64, "stamp": np.int64}
    kinds |= {"load": np.float64, "burst": np.float64, "weight": np.float64, "fresh": np.uint8}
    arrays = {name: np.zeros(keys, kinds.get(name, np.int32)) for name in _PER_KEY + _PER_PAIR}
    arrays["toward"] = np.zeros((keys, slots))
    arrays |= {name: np.full(4 * keys, NOBODY, np.int32) for name in ("key_map", "pair_map")}
    arrays |= {name: np.zeros(cells) for name in ("planned", "bursts", "measured")}
    return Memory(
        **arrays,
        wobble=np.zeros(operators),
        used=np.zeros(2, np.int64),
        scale=np.ones(2),
    )


def with_room(memory: Memory, keys: int, pairs: int) -> Memory:
    """The same memory with room for so many more keys and pairs; arrays at least double."""
    of_keys = KEYS, keys, _PER_KEY, "key_map", ("op", "h")
    of_pairs = PAIRS, pairs, _PER_PAIR, "pair_map", ("u", "v")
    for counter, more, names, table, ends in (of_keys, of_pairs):
        used, size = int(memory.used[counter]), len(getattr(memory, names[0]))
        if used + more <= size:
            continue
        size = max(2 * size, used + more)
        larger: dict[str, Any] = {}
        for name in names:
            old = getattr(memory, name)
            larger[name] = np.zeros((size, *old.shape[1:]), old.dtype)
            larger[name][:used] = old[:used]
        larger[table] = np.empty(1 << (2 * size - 1).bit_length(), np.int32)  # half full at most
        memory = memory._replace(**larger)
        _fill(larger[table], larger[ends[0]], larger[ends[1]], used)
    return memory


def forget_pairs(memory: Memory, keep: int) -> None:
    """Keep the heaviest pairs only. What a forgotten pair added to `toward` stays, and ages."""
    used = int(memory.used[PAIRS])
    if used <= keep:
        return
    kept = np.zeros(used, np.bool_)
    if keep > 0:
        kept[np.argpartition(memory.weight[:used], used - keep)[used - keep :]] = True
    _keep_pairs(memory, kept)


def forget_keys(memory: Memory, gone: I64) -> I32:
    """Drop these keys with all their pairs; returns the new number of every key, -1 if it went."""
    used = int(memory.used[KEYS])
    stays = np.ones(used, np.bool_)
    stays[gone] = False
    _detach(memory, stays)
    pairs = int(memory.used[PAIRS])
    kept = stays[memory.u[:pairs]] & stays[memory.v[:pairs]]
    number = np.full(used, NOBODY, np.int32)
    number[stays] = np.arange(int(stays.sum()), dtype=np.int32)
    memory.u[:pairs], memory.v[:pairs] = number[memory.u[:pairs]], number[memory.v[:pairs]]
    for name in _PER_KEY:
        array = getattr(memory, name)
        array[: int(stays.sum())] = array[:used][stays]
    memory.used[KEYS] = int(stays.sum())
    _fill(memory.key_map, memory.op, memory.h, int(stays.sum()))
    _keep_pairs(memory, kept)
    return number


def age(memory: Memory, pair_factor: float, load_factor: float) -> None:
    """Let rows pass: rows recorded from now on count so much more."""
    memory.scale[PAIR_SCALE] *= pair_factor
    memory.scale[LOAD_SCALE] *= load_factor
    if memory.scale.max() > _SCALE_MAX:
        pairs, keys = int(memory.used[PAIRS]), int(memory.used[KEYS])
        memory.weight[:pairs] /= memory.scale[PAIR_SCALE]
        memory.toward[:keys] /= memory.scale[PAIR_SCALE]
        memory.load[:keys] /= memory.scale[LOAD_SCALE]
        memory.planned[:] /= memory.scale[LOAD_SCALE]
        memory.scale[:] = 1.0


@njit(cache=True)
def _place(table, first, second, a, b):  # type: ignore[no-untyped-def]
    """Where an entry (a, b) is in a hash table, or the free place where it belongs.

    `first` and `second` hold the entries that the table numbers; it is never full.
    """
    mask = len(table) - 1
    spread = np.uint64(a) * np.uint64(0x9E3779B97F4A7C15) ^ np.uint64(b)
    spread *= np.uint64(0xD6E8FEB86659FD93)
    at = np.int64(spread >> np.uint64(20)) & mask
    while True:
        k = table[at]
        if k < 0 or (first[k] == a and second[k] == b):
            return at
        at = (at + 1) & mask


@njit(cache=True)
def _fill(table, first, second, n):  # type: ignore[no-untyped-def]
    table[:] = NOBODY
    for k in range(n):
        table[_place(table, first, second, first[k], second[k])] = k


def _keep_pairs(memory: Memory, kept: npt.NDArray[np.bool_]) -> None:
    n = int(kept.sum())
    for array in (memory.u, memory.v, memory.weight):
        array[:n] = array[: len(kept)][kept]
    memory.used[PAIRS] = n
    _fill(memory.pair_map, memory.u, memory.v, n)
    memory.first[: memory.used[KEYS]] = NOBODY
    _link(memory, 0, n)


@njit(cache=True)
def _link(memory, start, end):  # type: ignore[no-untyped-def]
    """Hang pairs into the lists of their two keys."""
    for e in range(start, end):
        u, v = memory.u[e], memory.v[e]
        memory.next_u[e] = memory.first[u]
        memory.first[u] = e
        memory.next_v[e] = memory.first[v]
        memory.first[v] = e


@njit(cache=True)
def _detach(memory, stays):  # type: ignore[no-untyped-def]
    """Take the keys that go out of the slots' loads, and their pairs out of their partners."""
    for e in range(memory.used[PAIRS]):
        u, v = memory.u[e], memory.v[e]
        if stays[u] and not stays[v]:
            memory.toward[u, memory.owner[v]] -= memory.weight[e]
        elif stays[v] and not stays[u]:
            memory.toward[v, memory.owner[u]] -= memory.weight[e]
    for k in range(len(stays)):
        if not stays[k]:
            memory.planned[memory.op[k], memory.owner[k]] -= memory.load[k]


@njit(cache=True)
def find_keys(memory, operator, h):  # type: ignore[no-untyped-def]
    """Numbers of these keys, -1 for those that are not known."""
    found = np.empty(len(h), np.int64)
    for i in range(len(h)):
        found[i] = memory.key_map[_place(memory.key_map, memory.op, memory.h, operator, h[i])]
    return found


class Conditions(NamedTuple):
    """What holds for one plan: means per operator, tolerances, and how near slots are."""

    mean_load: F64
    mean_burst: F64
    above: F64  # measured load of operator and slot over its mean, less 1
    tolerance: F64
    nearness: F64  # 1 on the diagonal; empty if all other slots are equally far


@njit(cache=True)
def take_keys(memory, operator, h, rows, slot, newborn, epoch, plan, fade):  # type: ignore[no-untyped-def]
    """Add loads; returns the numbers of keys not yet touched in this plan. Room must be there."""
    touched = np.empty(len(h), np.int64)
    n = 0
    now = memory.scale[LOAD_SCALE]
    for i in range(len(h)):
        at = _place(memory.key_map, memory.op, memory.h, operator, h[i])
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
        u = memory.key_map[_place(memory.key_map, memory.op, memory.h, op_a, a[i])]
        v = memory.key_map[_place(memory.key_map, memory.op, memory.h, op_b, b[i])]
        if u < 0 or v < 0:
            continue
        at = _place(memory.pair_map, memory.u, memory.v, u, v)
        e = memory.pair_map[at]
        if e < 0:
            e = np.int32(memory.used[PAIRS])
            memory.used[PAIRS] += 1
            memory.pair_map[at] = e
            memory.u[e], memory.v[e], memory.weight[e] = u, v, 0.0
            _link(memory, e, e + 1)
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
    for s in range(slots):
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
