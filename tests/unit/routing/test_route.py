"""Spreads: shares in, the same shares out, whatever the keys."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.errors import UnknownSlot
from headgate.routing.route import Spread
from strategies import examples

HASHES = st.integers(0, (1 << 64) - 1)
PIECES = st.dictionaries(st.integers(0, 40), st.floats(1e-3, 1e6), min_size=1, max_size=6)


@examples(100)
@given(shares=st.dictionaries(HASHES, PIECES, max_size=6), others=st.lists(HASHES, max_size=4))
def test_shares_are_kept_and_strangers_have_none(
    shares: dict[int, dict[int, float]], others: list[int]
) -> None:
    spread = Spread.of({h: list(pieces.items()) for h, pieces in shares.items()})

    assert spread.h.tolist() == sorted(shares) and len(spread) == len(shares)
    assert spread.replicas == sum(len(pieces) - 1 for pieces in shares.values())
    assert spread.cut.tolist() == sorted(h for h, pieces in shares.items() if len(pieces) > 1)
    for h, pieces in shares.items():
        whole = sum(pieces.values())
        found = spread.shares_of(h)
        assert list(found) == list(pieces)
        assert found == pytest.approx({s: w / whole for s, w in pieces.items()}, abs=1e-12)
    asked = [*shares, *others]
    at = spread.find(np.array(asked, np.uint64)).tolist()
    assert [None if i < 0 else int(spread.h[i]) for i in at] == [
        h if h in shares else None for h in asked
    ]
    for h in others:
        assert h in shares or spread.shares_of(h) == {}


@examples(40)
@given(weights=st.lists(st.floats(1e-9, 1e9), min_size=1, max_size=8))
def test_cumulated_shares_rise_to_the_last_word(weights: list[float]) -> None:
    spread = Spread.of({5: [(slot, weight) for slot, weight in enumerate(weights)]})

    assert (np.diff(spread.upto.astype(object)) >= 0).all()
    assert int(spread.upto[-1]) == (1 << 64) - 1


@pytest.mark.parametrize("pieces", [[], [(0, 1.0), (1, 0.0)], [(0, -1.0)], [(0, float("nan"))]])
def test_a_key_needs_slots_with_a_share_each(pieces: list[tuple[int, float]]) -> None:
    with pytest.raises(UnknownSlot, match="#0000000000000009 is spread over no slot"):
        Spread.of({9: pieces})
