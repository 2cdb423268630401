"""What the incremental planner remembers: keys, the pairs that tie them, loads of slots. Bounded.

Everything is in flat arrays that kernels change in place, grown by doubling up to a stated bound.
A key (operator, hash) has a number; `toward[key, slot]` is the weight of its pairs whose other key
is in that slot, kept up to date when keys move, so that a key can be judged without walking its
pairs. A pair hangs in two linked lists, one per end, which only a move walks. Weights age by a
scale that grows with every row (newer rows weigh more) instead of being multiplied down.

Bounds: `keys_max` keys per operator, 8 * slots + 49 bytes each; `pairs_max` pairs, 24 bytes each;
plus their hash maps, at most 16 bytes an entry. When pairs are full the lightest quarter is
forgotten, and when keys are full the coldest eighth of that operator.
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
_FEWEST = 1_024
_SCALE_MAX = 1e90


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
    used = int(memory.used[KEYS])
    if used + keys > len(memory.h):
        memory = _grown(memory, _PER_KEY, used, max(2 * len(memory.h), used + keys))
        memory = memory._replace(key_map=_free_map(len(memory.h)))
        _fill_key_map(memory.key_map, memory.h, memory.op, used)
    used = int(memory.used[PAIRS])
    if used + pairs > len(memory.u):
        memory = _grown(memory, _PER_PAIR, used, max(2 * len(memory.u), used + pairs))
        memory = memory._replace(pair_map=_free_map(len(memory.u)))
        _fill_pair_map(memory.pair_map, memory.u, memory.v, used)
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


def forget_keys(memory: Memory, gone: I64) -> None:
    """Drop these keys with all their pairs; numbers of the others change."""
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
    memory.key_map[:] = NOBODY
    _fill_key_map(memory.key_map, memory.h, memory.op, int(stays.sum()))
    _keep_pairs(memory, kept)


def age(memory: Memory, pair_factor: float, load_factor: float) -> None:
    """Let rows pass: weights recorded from now on count so much more."""
    memory.scale[PAIR_SCALE] *= pair_factor
    memory.scale[LOAD_SCALE] *= load_factor
    if memory.scale.max() > _SCALE_MAX:
        pairs, keys = int(memory.used[PAIRS]), int(memory.used[KEYS])
        memory.weight[:pairs] /= memory.scale[PAIR_SCALE]
        memory.toward[:keys] /= memory.scale[PAIR_SCALE]
        memory.load[:keys] /= memory.scale[LOAD_SCALE]
        memory.planned[:] /= memory.scale[LOAD_SCALE]
        memory.scale[:] = 1.0


def find_keys(memory: Memory, operator: int, h: U64) -> I64:
    """Numbers of these keys, -1 for those that are not known."""
    out = np.empty(len(h), np.int64)
    _find_keys(memory.key_map, memory.h, memory.op, operator, h, out)
    return out


@njit(cache=True)
def place_of_key(key_map, known_h, known_op, operator, h):  # type: ignore[no-untyped-def]
    """Where a key is in the map, or the free place where it belongs. The map is never full."""
    mask = len(key_map) - 1
    spread = (h ^ np.uint64(operator * 0x9E3779B1)) * np.uint64(0x9E3779B97F4A7C15)
    at = np.int64(spread >> np.uint64(20)) & mask
    while True:
        k = key_map[at]
        if k < 0 or (known_h[k] == h and known_op[k] == operator):
            return at
        at = (at + 1) & mask


@njit(cache=True)
def place_of_pair(pair_map, known_u, known_v, u, v):  # type: ignore[no-untyped-def]
    """Where a pair is in the map, or the free place where it belongs."""
    mask = len(pair_map) - 1
    spread = (np.uint64(u) << np.uint64(32) | np.uint64(v)) * np.uint64(0x9E3779B97F4A7C15)
    at = np.int64(spread >> np.uint64(20)) & mask
    while True:
        e = pair_map[at]
        if e < 0 or (known_u[e] == u and known_v[e] == v):
            return at
        at = (at + 1) & mask


# --- inside --------------------------------------------------------------------------------
def _grown(memory: Memory, names: tuple[str, ...], used: int, size: int) -> Memory:
    larger: dict[str, Any] = {}
    for name in names:
        old = getattr(memory, name)
        larger[name] = np.zeros((size, *old.shape[1:]), old.dtype)
        larger[name][:used] = old[:used]
    return memory._replace(**larger)


def _free_map(entries: int) -> I32:
    """An empty map for so many entries: a power of two, at most half full."""
    return np.full(1 << (2 * entries - 1).bit_length(), NOBODY, np.int32)


def _keep_pairs(memory: Memory, kept: npt.NDArray[np.bool_]) -> None:
    n = int(kept.sum())
    for array in (memory.u, memory.v, memory.weight):
        array[:n] = array[: len(kept)][kept]
    memory.used[PAIRS] = n
    memory.pair_map[:] = NOBODY
    _fill_pair_map(memory.pair_map, memory.u, memory.v, n)
    memory.first[: memory.used[KEYS]] = NOBODY
    _link(memory, n)


@njit(cache=True)
def _link(memory, n):  # type: ignore[no-untyped-def]
    for e in range(n):
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
def _fill_key_map(key_map, h, op, n):  # type: ignore[no-untyped-def]
    for k in range(n):
        key_map[place_of_key(key_map, h, op, op[k], h[k])] = k


@njit(cache=True)
def _fill_pair_map(pair_map, u, v, n):  # type: ignore[no-untyped-def]
    for e in range(n):
        pair_map[place_of_pair(pair_map, u, v, u[e], v[e])] = e


@njit(cache=True)
def _find_keys(key_map, known_h, known_op, operator, h, out):  # type: ignore[no-untyped-def]
    for i in range(len(h)):
        out[i] = key_map[place_of_key(key_map, known_h, known_op, operator, h[i])]
