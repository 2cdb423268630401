"""Candidates and shares: the kernels against loops that anyone can read."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.errors import UnknownSlot
from headgate.routing.choices import deal, least_loaded, two_choices
from headgate.routing.hashing import mix
from headgate.routing.spread import Spread
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

    targets = two_choices(h, owner, np.zeros(16, np.int64))

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
