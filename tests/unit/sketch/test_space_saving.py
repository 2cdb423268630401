"""The bound holds against exact counts, however rows are cut into batches, slots and merges."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.sketch.space_saving import PAIR_BYTES, PairSketch

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
def test_it_survives_arrow(capacity, batches):
    sketch = filled(capacity, batches)
    back = PairSketch.from_arrow(sketch.to_arrow())
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
