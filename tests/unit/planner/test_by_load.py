"""Placing by load: what is promised of every layout, and how even it gets."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.errors import UnknownSlot
from headgate.planner.hot_keys import (
    GOOD,
    KNOWN_SHARE,
    SLIVER,
    Layout,
    Places,
    expected_loads,
    lay_out_split,
    lay_out_whole,
)
from headgate.routing.hashing import bucket_of, mix
from headgate.routing.table import RoutingTable, hash_table
from strategies import examples

BUCKETS = 64
WAYS: dict[str, Callable[..., Layout]] = {"dkg": lay_out_whole, "split": lay_out_split}


def hashes(n: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return np.sort(mix(np.arange(n, dtype=np.uint64)))


def loads_by_hand(
    h: np.ndarray, rows: np.ndarray, total: float, table: RoutingTable, layout: Layout
) -> np.ndarray:
    loads = np.zeros(table.slots)
    for key, load in zip(h.tolist(), rows.tolist(), strict=True):
        shares = layout.spread.shares_of(key)
        if not shares:
            shares = {int(layout.table.route(np.array([key], np.uint64))[0]): 1.0}
        for slot, share in shares.items():
            loads[slot] += share * load
    rest = max(0.0, total - float(rows.sum())) / table.buckets
    for slot in layout.table.bucket_slots.tolist():
        loads[slot] += rest
    return loads


@st.composite
def problems(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, float, RoutingTable]:
    n = draw(st.integers(1, 40))
    slots = draw(st.integers(1, 9))
    h = hashes(200)[draw(st.lists(st.integers(0, 199), min_size=n, max_size=n, unique=True))]
    rows = np.array(draw(st.lists(st.integers(1, 400), min_size=n, max_size=n)), np.float64)
    if draw(st.booleans()):
        rows = rows**2
    table = hash_table(slots, BUCKETS)
    pins = draw(st.lists(st.integers(0, 199), max_size=8, unique=True))
    if pins:
        table = table.pin_hashes(hashes(200)[pins], np.arange(len(pins)) % slots)
    return h, rows, float(rows.sum()) * draw(st.sampled_from([1.0, 1.0, 1.5, 4.0])), table


@pytest.mark.parametrize("way", WAYS)
@examples(60)
@given(problem=problems())
def test_loads_are_what_table_and_spread_make_of_the_keys(way, problem) -> None:
    h, rows, total, table = problem

    made = WAYS[way](h, rows, total, table)

    assert made.loads.sum() == pytest.approx(total)
    assert made.loads == pytest.approx(loads_by_hand(h, rows, total, table, made))
    assert made.loads == pytest.approx(expected_loads(h, rows, total, made.table, made.spread))
    assert set(made.table.pinned_h.tolist()) <= set(h.tolist())  # tables stay bounded
    if way == "dkg":
        assert len(made.spread) == 0
        largest = max(rows.max(), (rows.sum() + total) / BUCKETS)
        assert made.loads.max() <= total / table.slots + largest + total / BUCKETS


@examples(80)
@given(problem=problems())
def test_a_cut_key_keeps_one_owner_that_has_a_piece_of_it(problem) -> None:
    h, rows, total, table = problem

    made = lay_out_split(h, rows, total, table)

    assert len(made.spread.slots) < len(made.spread) + table.slots  # few pieces
    for key in made.spread.h.tolist():
        shares = made.spread.shares_of(key)
        assert sum(shares.values()) == pytest.approx(1)
        owner = int(made.table.route(np.array([key], np.uint64))[0])
        assert owner in shares  # also of those left whole
        before = int(table.route(np.array([key], np.uint64))[0])
        if before in shares:
            assert owner == before  # its state need not move


@examples(60)
@given(problem=problems())
def test_what_is_laid_out_stays_when_the_loads_do(problem) -> None:
    h, rows, total, table = problem
    made = lay_out_split(h, rows, total, table)

    again = lay_out_split(h, rows, total, made.table, made.spread)

    assert again.imbalance <= made.imbalance + SLIVER


@pytest.mark.parametrize("exponent", [0.8, 1.0, 1.4, 2.0])
@pytest.mark.parametrize("slots", [2, 6, 16])
def test_split_units_are_even_at_any_skew(exponent: float, slots: int) -> None:
    h = hashes(20_000)
    rows = 1e6 / np.random.default_rng(1).permutation(np.arange(1, 20_001)) ** exponent
    table = hash_table(slots)

    split = lay_out_split(h, rows, rows.sum(), table)
    whole = lay_out_whole(h, rows, rows.sum(), table)

    assert split.imbalance <= GOOD + SLIVER
    heaviest = slots * rows.max() / rows.sum()
    assert max(1.0, heaviest) <= whole.imbalance + 1e-9
    assert whole.imbalance <= max(1.02, heaviest + 0.02)
    assert len(split.spread.cut) <= slots  # only the heaviest are cut
    cut = np.isin(h, split.spread.cut)
    assert not cut.any() or rows[cut].min() >= np.sort(rows)[-slots]
    again = lay_out_split(h, rows, rows.sum(), split.table, split.spread)
    assert again.table.same_routes(split.table)
    assert again.spread.h.tolist() == split.spread.h.tolist()
    known = rows >= KNOWN_SHARE * rows.sum() / slots
    assert set(h[known].tolist()) == set(split.spread.h.tolist())


def test_light_keys_follow_their_bucket_and_only_what_must_move_does() -> None:
    h = hashes(4_000)
    rows = np.full(4_000, 10.0)
    table = hash_table(4)
    even = lay_out_split(h, rows, rows.sum(), table)
    assert even.imbalance <= GOOD + SLIVER
    moved = np.count_nonzero(even.table.route(h) != table.route(h))
    assert moved < 0.15 * len(h)  # hash is nearly even to begin with

    hot = rows.copy()
    hot[7] = 0.4 * rows.sum()
    made = lay_out_split(h, hot, hot.sum(), even.table)

    assert made.imbalance <= GOOD + SLIVER
    assert made.spread.cut.tolist() == [h[7]]
    buckets = bucket_of(h, table.buckets)
    follow = made.table.bucket_slots[buckets]
    light = ~made.table.is_pinned(h)
    assert (made.table.route(h)[light] == follow[light]).all()
    assert light.sum() >= 3_900


@given(
    problem=problems(),
    slots=st.sets(st.integers(0, 12), min_size=9),
    way=st.sampled_from(sorted(WAYS)),
)
@examples(40)
def test_an_operator_in_some_slots_is_laid_out_as_if_there_were_no_others(problem, slots, way):
    h, rows, total, table = problem
    own = np.array(sorted(slots)[: table.slots], np.int32)
    places = Places(own, 13)
    there = table.renamed(own, 13)
    inside = places.inside(there)
    assert inside.same_routes(table)

    made, found = (
        WAYS[way](h, rows, total, table),
        places.outside(WAYS[way](h, rows, total, inside)),
    )

    assert np.array_equal(found.table.bucket_slots, own[made.table.bucket_slots])
    assert np.array_equal(found.table.pinned_slots, own[made.table.pinned_slots])
    assert np.array_equal(found.spread.slots, own[made.spread.slots])
    back = places.inside_spread(found.spread)
    assert back is not None and np.array_equal(back.slots, made.spread.slots)
    if table.slots < 13:
        with pytest.raises(UnknownSlot):
            places.inside(hash_table(13, BUCKETS))
