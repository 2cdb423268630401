from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from headgate.demo import trends, write_epochs

ROWS = 20_000


def home_regions(table: pa.Table) -> dict[str, str]:
    """The region from which each hashtag is posted most."""
    counted = table.group_by(["hashtag", "region"]).aggregate([([], "count_all")])
    ordered = counted.sort_by([("count_all", "ascending")])
    return dict(zip(ordered["hashtag"].to_pylist(), ordered["region"].to_pylist(), strict=True))


def top(table: pa.Table, count: int) -> list[str]:
    counted = table.group_by("hashtag").aggregate([([], "count_all")])
    return counted.sort_by([("count_all", "descending")])["hashtag"].to_pylist()[:count]


def test_same_seed_and_epoch_give_the_same_rows_and_others_do_not():
    once = trends(500, seed=3, epoch=1)
    assert once.equals(trends(500, seed=3, epoch=1))
    assert not once.equals(trends(500, seed=3, epoch=2))
    assert not once.equals(trends(500, seed=4, epoch=1))


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


def test_epoch_files_ascend_in_time_and_hold_every_row(tmp_path: Path):
    tables = [trends(1_001, seed=1, epoch=epoch) for epoch in range(3)]
    epochs = write_epochs(tables, tmp_path, files_per_epoch=4)
    times = [path.stat().st_mtime for path in epochs.paths]
    assert times == sorted(set(times))
    assert sorted(tmp_path.iterdir()) == epochs.paths
    assert (len(epochs), epochs.files_per_epoch, epochs.rows(2)) == (3, 4, 1_001)
    assert all(epochs.read(epoch).equals(table) for epoch, table in enumerate(tables))


def test_later_epochs_may_be_added(tmp_path: Path):
    old = write_epochs([trends(5, seed=1, epoch=0)], tmp_path)
    new = write_epochs([trends(5, seed=1, epoch=1)], tmp_path, first=1)
    assert old.paths[0].stat().st_mtime < new.paths[0].stat().st_mtime
    assert old.paths != new.paths
