"""What the incremental planner remembers: keys and pairs, in flat arrays that age.

Memory is arrays that kernels change in place, grown by doubling up to a stated bound. A key
(operator, hash) has a number; `toward[key, slot]` is the weight of its pairs whose other key is in
that slot, kept up to date when keys move, so that a key is judged without walking its pairs. A pair
hangs in two linked lists, one per end, which only a move walks. Weights age by a scale that grows
with every row (newer rows weigh more) instead of being multiplied down. Bounds: `keys_max` keys per
operator, 8 * slots + 49 bytes each; `pairs_max` pairs, 24 bytes each; hash maps, at most 16 bytes
an entry.
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
def place_of(table, first, second, a, b):  # type: ignore[no-untyped-def]
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
        table[place_of(table, first, second, first[k], second[k])] = k


def _keep_pairs(memory: Memory, kept: npt.NDArray[np.bool_]) -> None:
    n = int(kept.sum())
    for array in (memory.u, memory.v, memory.weight):
        array[:n] = array[: len(kept)][kept]
    memory.used[PAIRS] = n
    _fill(memory.pair_map, memory.u, memory.v, n)
    memory.first[: memory.used[KEYS]] = NOBODY
    link(memory, 0, n)


@njit(cache=True)
def link(memory, start, end):  # type: ignore[no-untyped-def]
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
        found[i] = memory.key_map[place_of(memory.key_map, memory.op, memory.h, operator, h[i])]
    return found
