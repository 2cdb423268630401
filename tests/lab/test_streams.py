from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from headgate_lab.streams import KeyChain, chain_keys, correlated_pairs

ROWS = 20_000


def shares(column: pa.ChunkedArray) -> np.ndarray:
    counts = pc.value_counts(column).field("counts").to_numpy()
    return np.sort(counts)[::-1] / len(column)


def test_same_seed_and_epoch_give_the_same_rows_and_others_do_not():
    once = correlated_pairs(500, seed=3, epoch=1)
    assert once.equals(correlated_pairs(500, seed=3, epoch=1))
    assert not once.equals(correlated_pairs(500, seed=3, epoch=2))
    assert not once.equals(correlated_pairs(500, seed=4, epoch=1))
    first, again = (chain_keys(50, seed=3, payload_bytes=8) for _ in range(2))
    assert first.table.equals(again.table)


def test_first_keys_follow_a_zipf_law():
    share = shares(correlated_pairs(ROWS, seed=1, k1=1_000, zipf=1.0)["k1"])
    harmonic = (1 / np.arange(1, 1_001)).sum()
    assert share[0] == pytest.approx(1 / harmonic, rel=0.1)
    assert share[:10].sum() == pytest.approx((1 / np.arange(1, 11)).sum() / harmonic, rel=0.1)


@pytest.mark.parametrize("correlation", [0.0, 0.8, 1.0])
def test_second_keys_follow_the_first_as_often_as_asked(correlation):
    """With ten partners each, the ten heaviest k2 of a hot k1 hold about `correlation` of it."""
    table = correlated_pairs(ROWS, seed=1, k1=100, k2=1_000, correlation=correlation)
    hottest = pc.mode(table["k1"])[0]["mode"]
    rows = table.filter(pc.equal(table["k1"], hottest))
    assert shares(rows["k2"])[:10].sum() == pytest.approx(correlation, abs=0.05)


def test_epochs_of_one_seed_share_their_partners():
    pairs = [
        set(
            zip(
                *(
                    correlated_pairs(ROWS, seed=1, epoch=epoch, k1=10, k2=40, correlation=1.0)[
                        key
                    ].to_pylist()
                    for key in ("k1", "k2")
                ),
                strict=True,
            )
        )
        for epoch in (0, 1)
    ]
    assert pairs[0] == pairs[1]
    assert len(pairs[0]) == 40


def test_payload_is_there_on_request_and_has_its_size():
    assert "payload" not in correlated_pairs(10, seed=1).column_names
    payload = correlated_pairs(10, seed=1, payload_bytes=64)["payload"]
    assert pc.all(pc.equal(pc.binary_length(payload), 64)).as_py()
    assert len(set(payload.to_pylist())) == 10


@pytest.mark.parametrize("locality", [0.5, 0.8])
def test_chain_keeps_the_promised_share_of_each_hop_in_its_cluster(locality):
    made = chain_keys(
        ROWS, seed=5, chain=3, keys=100, clusters=6, payload_bytes=1, locality=locality
    )
    places = clusters_visited(made)
    for here, there in pairwise(places):
        assert np.mean(here == there) == pytest.approx(locality, abs=0.02)
    for place in places:
        assert np.bincount(place, minlength=6) / ROWS == pytest.approx(1 / 6, abs=0.02)


def clusters_visited(made: KeyChain) -> list[np.ndarray]:
    return [
        clusters[made.table[f"k{position}"].to_numpy()]
        for position, clusters in enumerate(made.clusters, start=1)
    ]
