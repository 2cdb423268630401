"""The head of a stream: found as by counting, whatever the chunks; and the choices it needs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.routing.hashing import U64, mix
from headgate.sketch.head import HeadKeys, choices_needed
from strategies import examples


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
