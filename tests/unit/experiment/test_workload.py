from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from headgate.experiment.workload import (
    KeyChain,
    chain_keys,
    correlated_pairs,
    trends,
    write_epochs,
)

ROWS = 20_000


def shares(column: pa.ChunkedArray) -> np.ndarray:
    counts = pc.value_counts(column).field("counts").to_numpy()
    return np.sort(counts)[::-1] / len(column)


def home_regions(table: pa.Table) -> dict[str, str]:
    """The region from which each hashtag is posted most."""
    counted = table.group_by(["hashtag", "region"]).aggregate([([], "count_all")])
    ordered = counted.sort_by([("count_all", "ascending")])
    return dict(zip(ordered["hashtag"].to_pylist(), ordered["region"].to_pylist(), strict=True))


def top(table: pa.Table, count: int) -> list[str]:
    counted = table.group_by("hashtag").aggregate([([], "count_all")])
    return counted.sort_by([("count_all", "descending")])["hashtag"].to_pylist()[:count]


def test_same_seed_and_epoch_give_the_same_rows_and_others_do_not():
    for make in (correlated_pairs, trends):
        once = make(500, seed=3, epoch=1)
        assert once.equals(make(500, seed=3, epoch=1))
        assert not once.equals(make(500, seed=3, epoch=2))
        assert not once.equals(make(500, seed=4, epoch=1))
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


def test_trends_have_the_promised_columns_and_stay_in_their_epoch():
    table = trends(1_000, seed=2, epoch=5, epoch_seconds=60)
    assert table.schema == pa.schema(
        {"region": pa.string(), "hashtag": pa.string(), "ts": pa.timestamp("us", tz="UTC")}
    )
    ts = table["ts"].to_numpy().astype("datetime64[us]")
    start = np.datetime64("2026-01-01T00:05:00", "us")
    assert np.all(np.diff(ts).astype(int) >= 0)
    assert ts[0] >= start
    assert ts[-1] < start + np.timedelta64(60, "s")


def test_popularity_drifts_slowly_and_new_hashtags_are_born():
    now, soon, later = (trends(ROWS, seed=2, epoch=epoch) for epoch in (10, 11, 110))
    assert len(set(top(now, 20)) & set(top(soon, 20))) >= 15
    assert not set(top(now, 20)) & set(top(later, 20))
    alive = set(trends(ROWS, seed=2, epoch=0, hashtags=50)["hashtag"].to_pylist())
    next_alive = set(trends(ROWS, seed=2, epoch=1, hashtags=50)["hashtag"].to_pylist())
    assert next_alive - alive


def test_hashtags_have_a_home_region_and_move_house():
    options = {"hashtags": 200, "born_per_epoch": 1, "home_epochs": 25}
    now, soon, later = (
        home_regions(trends(ROWS, seed=2, epoch=epoch, **options)) for epoch in (10, 11, 60)
    )
    hot = set(top(trends(ROWS, seed=2, epoch=10, **options), 40))
    soon_stayed = np.mean([now[tag] == soon[tag] for tag in hot & soon.keys()])
    later_stayed = np.mean([now[tag] == later[tag] for tag in hot & later.keys()])
    assert soon_stayed > 0.8
    assert later_stayed < 0.5


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


def test_epoch_files_ascend_in_time_and_hold_every_row(tmp_path: Path):
    tables = [correlated_pairs(1_001, seed=1, epoch=epoch) for epoch in range(3)]
    epochs = write_epochs(tables, tmp_path, files_per_epoch=4)
    times = [path.stat().st_mtime for path in epochs.paths]
    assert times == sorted(set(times))
    assert sorted(tmp_path.iterdir()) == epochs.paths
    assert (len(epochs), epochs.files_per_epoch, epochs.rows(2)) == (3, 4, 1_001)
    assert all(epochs.read(epoch).equals(table) for epoch, table in enumerate(tables))


def test_later_epochs_may_be_added(tmp_path: Path):
    old = write_epochs([correlated_pairs(5, seed=1)], tmp_path)
    new = write_epochs([correlated_pairs(5, seed=1, epoch=1)], tmp_path, first=1)
    assert old.paths[0].stat().st_mtime < new.paths[0].stat().st_mtime
    assert old.paths != new.paths
