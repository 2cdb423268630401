"""Candidates and shares: the kernels against loops that anyone can read."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.errors import UnknownSlot
from headgate.routing.chooser import Chooser, deal, least_loaded
from headgate.routing.hashing import mix
from headgate.routing.route import Choose, Route, Shares, Spread
from headgate.routing.table import BUCKETS, hash_table
from headgate.topology.graph import SEVERAL_SLOTS, TO_OWNERS, KeyGrouping
from strategies import examples

WORD = (1 << 64) - 1


def keys(numbers: list[int]) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return mix(np.array(numbers, np.uint64))


def candidates(h: int, owner: int, choices: int, slots: int) -> list[int]:
    """The slots of a key, the owner first."""
    if choices >= slots:
        return [(owner + j) % slots for j in range(slots)]
    found = [owner]
    for j in range(1, choices):
        word = np.array([(h + j * 0x9E3779B97F4A7C15) & WORD], np.uint64)
        found.append((owner + 1 + int(mix(word)[0]) % (slots - 1)) % slots)
    return found


@examples(60)
@given(
    rows=st.lists(st.tuples(st.integers(0, 20), st.integers(1, 9)), max_size=60),
    slots=st.integers(1, 8),
    cut=st.integers(0, 60),
)
def test_each_row_goes_to_the_least_loaded_candidate(
    rows: list[tuple[int, int]], slots: int, cut: int
) -> None:
    h = keys([key for key, _ in rows])
    owner = (h % np.uint64(slots)).astype(np.int32)
    choices = np.array([c for _, c in rows], np.int64)
    loads = np.zeros(slots, np.int64)

    targets = np.concatenate(
        [
            least_loaded(h[part], owner[part], choices[part], loads)
            for part in (slice(cut), slice(cut, None))
        ]
    )

    sent: Counter[int] = Counter()
    for i, target in enumerate(targets.tolist()):
        options = candidates(int(h[i]), int(owner[i]), int(choices[i]), slots)
        assert target == min(options, key=lambda s: (sent[s], options.index(s)))
        sent[target] += 1
    assert loads.tolist() == [sent[s] for s in range(slots)]


def test_two_choices_give_a_key_its_owner_and_one_other_slot() -> None:
    h = np.repeat(keys(list(range(300))), 10)
    owner = (h % np.uint64(16)).astype(np.int32)

    targets = least_loaded(h, owner, np.full(len(h), 2), np.zeros(16, np.int64))

    slots_of = {key: set(targets[h == key].tolist()) for key in np.unique(h)}
    assert all(
        int(owner[h == key][0]) in slots for key, slots in slots_of.items() if len(slots) > 1
    )
    assert max(len(slots) for slots in slots_of.values()) == 2


@examples(40)
@given(
    weights=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    rows=st.integers(0, 400),
    offset=st.integers(0, WORD),
    cut=st.integers(0, 400),
)
def test_rows_are_dealt_in_the_shares_of_the_spread(
    weights: list[int], rows: int, offset: int, cut: int
) -> None:
    key = int(keys([5])[0])
    spread = Spread.of({key: [(slot, float(w)) for slot, w in enumerate(weights)], 77: [(0, 1.0)]})
    h = np.full(rows, key, np.uint64)
    turn = np.zeros(len(spread), np.uint64)
    targets = np.full(rows, -1, np.int32)

    for part in (slice(cut), slice(cut, None)):
        deal(
            spread.find(h[part]), spread.starts, spread.slots, spread.upto, turn,
            np.uint64(offset), targets[part],
        )  # fmt: skip

    dealt = np.bincount(targets, minlength=len(weights)) if rows else np.zeros(len(weights))
    ideal = rows * np.array(weights) / sum(weights)
    assert np.abs(dealt - ideal).max() < 2 + np.log2(rows + 1)


def test_keys_that_are_not_spread_keep_their_target() -> None:
    spread = Spread.of({9: [(1, 1.0)]})
    targets = np.array([3, 3], np.int32)

    deal(
        spread.find(np.array([8, 9], np.uint64)), spread.starts, spread.slots, spread.upto,
        np.zeros(1, np.uint64), np.uint64(0), targets,
    )  # fmt: skip

    assert targets.tolist() == [3, 1]
    assert Spread().find(np.array([8], np.uint64)).tolist() == [-1]
    assert (len(spread), spread.replicas, spread.shares_of(8)) == (1, 0, {})


def test_a_share_of_nothing_is_refused() -> None:
    with pytest.raises(UnknownSlot, match="share of 0"):
        Spread.of({9: [(1, 0.0)]})


# --- Choosers: chunks make no difference, no key uses slots that it should not, loads get even.

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
    dispatch = Shares(spread or Spread()) if grouping == "cut" else Choose(grouping)
    return Chooser(Route(table, dispatch, among), producer)


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
    assert max(found["d_choices"], found["w_choices"], found["cut"]) < 1.05


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

    targets = chooser_of("cut", SLOTS, 7, spread).choose(h, owner)

    assert spread.cut.tolist() == [key]
    assert (targets[h != key] == owner[h != key]).all()
    dealt = np.bincount(targets[h == key], minlength=SLOTS) / (h == key).sum()
    assert dealt[[2, 3, 5]] == pytest.approx([0.5, 0.25, 0.25], abs=0.01)


def test_a_key_that_got_hot_since_the_spread_was_made_goes_to_any_slot() -> None:
    h = stream(40_000, 1.8, 3)
    owner = hash_table(SLOTS).route(h)
    hottest = frequent(h, 1)[0]
    spread = Spread.of({int(mix(np.array([7_777], np.uint64))[0]): [(0, 1.0), (1, 1.0)]})

    targets = chooser_of("cut", SLOTS, 0, spread).choose(h, owner)

    assert imbalance(owner) > 3 and imbalance(targets) < 1.05
    assert len(np.unique(targets[h == hottest])) == SLOTS
    rare = ~np.isin(h, np.array(frequent(h, 40), np.uint64))
    assert (targets[rare] == owner[rare]).all()


def test_there_is_a_chooser_for_every_grouping_with_several_slots() -> None:
    assert {*SEVERAL_SLOTS, *TO_OWNERS, "dkg", "partial"} == set(get_args(KeyGrouping))
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


def test_shares_in_slots_without_an_instance_go_to_the_others() -> None:
    """A spread that was made for other instances."""
    h = stream(4_000, 1.6, 4)
    hot, second = frequent(h, 2)
    spread = Spread.of({hot: [(0, 2.0), (1, 1.0), (4, 1.0)], second: [(0, 1.0), (2, 1.0)]})
    owner = np.array((1, 4, 6), np.int32)[hash_table(3).route(h)]

    found = chooser_of("cut", 8, 0, spread, (1, 4, 6)).choose(h, owner)

    assert set(found.tolist()) <= {1, 4, 6}
    counts = np.bincount(found[h == hot], minlength=8)
    assert abs(int(counts[1]) - int(counts[4])) <= 3 and counts[6] == 0
    left = spread.within((1, 4, 6))
    assert left.shares_of(hot) == {1: 0.5, 4: 0.5} and left.shares_of(second) == {}
    assert spread.within(range(8)) is spread
