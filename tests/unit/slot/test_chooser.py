"""Choosers: chunks make no difference, no key uses slots that it should not, loads get even."""

from __future__ import annotations

from itertools import pairwise
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.routing.hashing import mix
from headgate.routing.route import Choose, Route, Shares
from headgate.routing.spread import Spread
from headgate.routing.table import BUCKETS, hash_table
from headgate.slot.chooser import Chooser, make_chooser
from headgate.topology.graph import SEVERAL_SLOTS, KeyGrouping
from strategies import examples

SLOTS = 8


def stream(rows: int, exponent: float, seed: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    p = 1 / np.arange(1, 1001) ** exponent
    drawn = np.random.default_rng(seed).choice(1000, rows, p=p / p.sum())
    return mix(drawn.astype(np.uint64))


def chooser_of(
    grouping: KeyGrouping,
    slots: int = SLOTS,
    producer: int = 0,
    spread: Spread | None = None,
    among: tuple[int, ...] = (),
) -> Chooser:
    table = (
        hash_table(slots)
        if not among
        else hash_table(slots).with_buckets(np.resize(np.array(among, np.int32), BUCKETS))
    )
    dispatch = Shares(spread or Spread()) if grouping == "split" else Choose(grouping)
    return make_chooser(Route(table, dispatch, among), producer)


def imbalance(targets: np.ndarray[tuple[int], np.dtype[np.int32]]) -> float:
    loads = np.bincount(targets, minlength=SLOTS)
    return float(loads.max() / loads.mean())


@pytest.mark.parametrize("grouping", SEVERAL_SLOTS)
@examples(8)
@given(cuts=st.lists(st.integers(0, 2500), max_size=3), spread=st.booleans())
def test_where_chunks_end_makes_no_difference(
    grouping: KeyGrouping, cuts: list[int], spread: bool
) -> None:
    h = stream(2500, 1.5, 0)
    owner = hash_table(SLOTS).route(h)
    known = Spread.of({int(h[0]): [(1, 1.0), (4, 2.0)]}) if spread else None
    whole, parts = (chooser_of(grouping, SLOTS, 3, known) for _ in range(2))

    at_once = whole.choose(h, owner)
    edges = [0, *sorted(cuts), len(h)]
    in_parts = [parts.choose(h[a:b], owner[a:b]) for a, b in pairwise(edges)]

    assert at_once.tolist() == np.concatenate(in_parts).tolist()


def test_more_choices_make_loads_more_even() -> None:
    h = stream(40_000, 1.6, 1)
    owner = hash_table(SLOTS).route(h)

    found = {
        grouping: imbalance(chooser_of(grouping).choose(h, owner)) for grouping in SEVERAL_SLOTS
    }

    assert imbalance(owner) > found["pkg"] + 0.5
    assert found["pkg"] > found["d_choices"] + 0.3
    assert max(found["d_choices"], found["w_choices"], found["split"]) < 1.05


def frequent(h: np.ndarray[tuple[int], np.dtype[np.uint64]], keys: int) -> list[int]:
    """The most frequent keys, the most frequent first."""
    found, count = np.unique(h, return_counts=True)
    return [int(key) for key in found[np.argsort(-count, kind="stable")][:keys]]


def test_a_split_grouping_that_knows_the_frequent_keys_sends_only_cut_ones_away() -> None:
    h = stream(5000, 1.5, 2)
    owner = hash_table(SLOTS).route(h)
    key, *others = frequent(h, 60)
    whole = {k: [(int(owner[h == k][0]), 1.0)] for k in others}
    spread = Spread.of({key: [(2, 0.5), (3, 0.25), (5, 0.25)], **whole})

    targets = chooser_of("split", SLOTS, 7, spread).choose(h, owner)

    assert spread.cut.tolist() == [key]
    assert (targets[h != key] == owner[h != key]).all()
    dealt = np.bincount(targets[h == key], minlength=SLOTS) / (h == key).sum()
    assert dealt[[2, 3, 5]] == pytest.approx([0.5, 0.25, 0.25], abs=0.01)


def test_a_key_that_got_hot_since_the_spread_was_made_goes_to_any_slot() -> None:
    h = stream(40_000, 1.8, 3)
    owner = hash_table(SLOTS).route(h)
    hottest = frequent(h, 1)[0]
    spread = Spread.of({int(mix(np.array([7_777], np.uint64))[0]): [(0, 1.0), (1, 1.0)]})

    targets = chooser_of("split", SLOTS, 0, spread).choose(h, owner)

    assert imbalance(owner) > 3 and imbalance(targets) < 1.05
    assert len(np.unique(targets[h == hottest])) == SLOTS
    rare = ~np.isin(h, np.array(frequent(h, 40), np.uint64))
    assert (targets[rare] == owner[rare]).all()


def test_there_is_a_chooser_for_every_grouping_with_several_slots() -> None:
    assert set(SEVERAL_SLOTS) | {"hash", "dkg"} == set(get_args(KeyGrouping))
    for grouping in SEVERAL_SLOTS:
        chooser = chooser_of(grouping, 1)
        nothing = chooser.choose(np.empty(0, np.uint64), np.empty(0, np.int32))
        one = chooser.choose(np.array([3], np.uint64), np.zeros(1, np.int32))
        assert (len(nothing), one.tolist()) == (0, [0])


@pytest.mark.parametrize("grouping", SEVERAL_SLOTS)
def test_slots_without_an_instance_get_no_row_and_the_others_are_as_even(
    grouping: KeyGrouping,
) -> None:
    """Slots 1, 4 and 6 of 8 do what three slots do."""
    h, among = stream(20_000, 1.6, 4), (1, 4, 6)
    owner = hash_table(3).route(h)
    hot = frequent(h, 1)[0]
    spread = Spread.of({hot: [(0, 2.0), (1, 1.0)]})
    there = Spread.of({hot: [(1, 2.0), (4, 1.0)]})

    three = chooser_of(grouping, 3, 0, spread).choose(h, owner)
    of_eight = chooser_of(grouping, 8, 0, there, among)
    found = of_eight.choose(h, np.array(among, np.int32)[owner])

    assert found.tolist() == np.array(among)[three].tolist()
