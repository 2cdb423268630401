"""The bound holds against exact counts, however rows are cut into batches, slots and merges."""

from __future__ import annotations

import pickle
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.arrays import U64
from headgate.routing.hashing import mix
from headgate.routing.space_saving import PAIR_BYTES, HeadKeys, PairSketch, choices_needed
from strategies import examples

pairs = st.tuples(st.integers(0, 12), st.integers(0, 12))
batches = st.lists(st.lists(pairs, max_size=40), max_size=8)


def arrays(batch):
    a = np.array([x for x, _ in batch], np.uint64)
    b = np.array([y for _, y in batch], np.uint64)
    return a, b


def filled(capacity, batches):
    sketch = PairSketch(capacity)
    for batch in batches:
        sketch.update(*arrays(batch))
    return sketch


def check(sketch, exact, total, scale=1.0):
    kept = {}
    for a, b, count, error in zip(sketch.a, sketch.b, sketch.count, sketch.error, strict=True):
        kept[int(a), int(b)] = (count, error)
    slack = 1e-9 * max(1.0, total)
    assert len(kept) == len(sketch) <= sketch.capacity
    assert sketch.total == pytest.approx(total)
    assert sketch.floor <= total / (sketch.capacity + 1) + slack
    for pair, (count, error) in kept.items():
        assert error <= sketch.floor + slack
        assert count - error - slack <= exact.get(pair, 0) * scale <= count + slack
    for pair, true in exact.items():
        if pair not in kept:
            assert true * scale <= sketch.floor + slack


@given(st.integers(1, 30), batches)
def test_counts_are_bounded_whatever_the_batches(capacity, batches):
    exact = Counter(p for batch in batches for p in batch)
    check(filled(capacity, batches), exact, sum(exact.values()))


@given(st.integers(1, 30), st.integers(1, 30), st.lists(batches, max_size=4))
def test_merged_sketches_keep_the_bound_of_the_smaller(small, large, slots):
    exact = Counter(p for slot in slots for batch in slot for p in batch)
    merged = PairSketch(min(small, large))
    for slot in slots:
        merged.merge(filled(small + large, slot))
    check(merged, exact, sum(exact.values()))


@given(st.integers(1, 20), batches, st.floats(0.1, 1.0))
def test_decay_scales_counts_and_bounds_alike(capacity, batches, factor):
    exact = Counter(p for batch in batches for p in batch)
    sketch = filled(capacity, batches)
    sketch.decay(factor)
    check(sketch, exact, sum(exact.values()) * factor, scale=factor)


@given(st.integers(1, 20), batches)
def test_it_survives_pickling(capacity, batches):
    sketch = filled(capacity, batches)
    back = pickle.loads(pickle.dumps(sketch))
    assert (back.capacity, back.floor, back.total) == (capacity, sketch.floor, sketch.total)
    assert np.array_equal(back.count, sketch.count) and np.array_equal(back.b, sketch.b)
    back.update(*arrays([(1, 1)]))  # its arrays are its own


@given(batches)
def test_with_room_for_all_it_is_exact(batches):
    exact = Counter(p for batch in batches for p in batch)
    sketch = filled(200, batches)
    assert sketch.floor == 0 and not sketch.error.any()
    assert {(int(a), int(b)): c for a, b, c in zip(sketch.a, sketch.b, sketch.count)} == exact


def test_the_heaviest_pairs_of_a_skewed_stream_are_kept():
    draw = np.random.default_rng(7)
    rank = np.minimum(draw.zipf(1.3, 200_000), 50_000).astype(np.uint64)
    sketch = PairSketch(1_000)
    for part in np.array_split(rank, 40):
        sketch.update(part, part * np.uint64(3))
    exact = Counter(rank.tolist())
    heavy = {key for key, n in exact.items() if n > sketch.floor}
    assert heavy and heavy <= set(sketch.a.tolist())


def test_memory_is_what_was_asked_for():
    sketch = PairSketch.within(1 << 20)
    draw = np.random.default_rng(1)
    for _ in range(3):
        sketch.update(*draw.integers(0, 1 << 60, (2, 50_000)).astype(np.uint64))
    stored = sum(x.nbytes for x in (sketch.a, sketch.b, sketch.count, sketch.error))
    assert stored <= 1 << 20 and stored == len(sketch) * PAIR_BYTES


def test_reset_forgets():
    sketch = filled(3, [[(1, 2), (3, 4), (5, 6), (7, 8)]])
    sketch.reset()
    assert len(sketch) == 0 and sketch.floor == sketch.total == 0


def test_a_sketch_without_room_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        PairSketch(0)


# --- The head of a stream: found as by counting, whatever the chunks; and the choices it needs.


def zipf(
    keys: int, exponent: float, rows: int, seed: int
) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    p = 1 / np.arange(1, keys + 1) ** exponent
    drawn = np.random.default_rng(seed).choice(keys, rows, p=p / p.sum())
    return mix(drawn.astype(np.uint64))


def taken(head: HeadKeys, h: U64) -> list[bool]:
    """Whether each row was in the head when it came."""
    found = np.empty(len(h), np.bool_)
    for part in head.stretches(h):
        found[part] = head.holds(h[part])
    return found.tolist()


@examples(20)
@given(cuts=st.lists(st.integers(0, 3000), max_size=4), seed=st.integers(0, 5))
def test_where_chunks_end_makes_no_difference(cuts: list[int], seed: int) -> None:
    h = zipf(400, 1.3, 3000, seed)
    whole, parts = HeadKeys(4), HeadKeys(4)

    at_once = taken(whole, h)
    in_parts = [x for chunk in np.split(h, sorted(cuts)) for x in taken(parts, chunk)]

    assert at_once == in_parts
    assert any(at_once)


def test_every_key_above_the_threshold_is_in_the_head_and_none_far_below() -> None:
    h = zipf(2000, 1.1, 50_000, 1)
    head = HeadKeys(16)
    list(head.stretches(h))
    judged = h[: 50_000 - sum(len(w) for w in head._waiting)]
    key, count = np.unique(judged, return_counts=True)
    share = count / len(judged)

    assert set(key[share >= head.theta].tolist()) <= set(head.h.tolist())
    assert set(head.h.tolist()) <= set(key[share >= head.theta * 7 / 8].tolist())


def covers(d: int, p: list[float], slots: int) -> bool:
    """The condition, prefix by prefix."""
    for n in range(1, len(p) + 1):
        covered = slots * (1 - (1 - 1 / slots) ** (n * d))
        into = sum(p[:n]) + (covered / slots) ** d * sum(p[n:])
        into += (covered / slots) ** 2 * (1 - sum(p))
        if into > covered * (1 / slots + 1e-4) + 1e-12:
            return False
    return True


@examples(60)
@given(
    weights=st.lists(st.integers(1, 50), min_size=1, max_size=8),
    tail=st.integers(0, 200),
    slots=st.integers(3, 40),
)
def test_the_fewest_choices_that_cover_every_prefix(
    weights: list[int], tail: int, slots: int
) -> None:
    p = sorted((w / (sum(weights) + tail) for w in weights), reverse=True)

    d = choices_needed(np.array(p), slots)

    assert d == slots or covers(d, p, slots)
    assert all(not covers(less, p, slots) for less in range(2, d) if less >= p[0] * slots)


@pytest.mark.parametrize(("p", "slots", "d"), [([], 8, 2), ([0.9], 2, 2), ([1.0], 8, 8)])
def test_nothing_to_solve(p: list[float], slots: int, d: int) -> None:
    assert choices_needed(np.array(p), slots) == d
