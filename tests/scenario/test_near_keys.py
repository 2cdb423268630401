"""Keys near some of their columns: they live together, move together, and are what they would be.

Results and state are those of a plain fold, whatever moves. Starts that call other columns near are
refused, with the way out.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import headgate as hg
from headgate.commit.inspection import Inspection
from headgate.errors import IncompatibleFlow
from headgate.testing import ListSource, run

SHARDS, KEYS, EPOCHS = 12, 40, 6
SCHEMA = "shard int, k string, n bigint, t timestamp"
ROWS = [
    [
        {"shard": shard, "k": f"k{shard}-{key}", "n": number, "t": None}
        for number in range(150)
        for draw in [np.random.default_rng((epoch, number))]
        for shard, key in [(int(draw.integers(SHARDS)), int(draw.integers(KEYS // SHARDS)))]
    ]
    for epoch in range(EPOCHS)
]
KEY = ("shard", "k")


def flow_of(epochs: int, near: Any = "shard", **other: Any) -> hg.Flow:
    flow = hg.Flow("near")
    rows = flow.source(ListSource(SCHEMA, ROWS[:epochs]))
    keyed = rows.key_by(*KEY, near=near, grouping="hash")
    keyed.process(hg.Count(emit="rows"), name="rows").key_by("k").process(
        hg.Max("n"), name="after"
    ).to_memory("after")
    keyed.process(hg.Sum("n"), name="sums").to_memory("sums")
    keyed.process(hg.TopRows(2, by="n desc"), name="best").to_memory("best")
    right = rows.select(*KEY, m="n").filter("m < 3").key_by(*KEY, near=near, grouping="hash")
    keyed.join(right, name="pairs").to_memory("pairs")
    return flow


def rows_of(epochs: int) -> list[dict[str, Any]]:
    return [row for epoch in ROWS[:epochs] for row in epoch]


def pins(table: hg.RoutingTable, slots: int) -> hg.RoutingTable:
    """Some keys with an owner of their own."""
    keys = sorted({(row["shard"], row["k"]) for row in rows_of(EPOCHS)})[::3]
    columns = [pa.array([k[0] for k in keys], pa.int32()), pa.array([k[1] for k in keys])]
    return table.pin(columns, [(i + 1) % slots for i in range(len(keys))], near=(0,))


def table_of(seed: int, slots: int) -> hg.RoutingTable:
    owners = np.random.default_rng(seed).integers(0, slots, 1024).astype(np.int32)
    return hg.hash_table(slots).with_buckets(owners)


def test_results_and_state_are_those_of_a_fold_through_moves_and_rescales(tmp_path: Path) -> None:
    starts = [(2, 3, False), (3, 5, True), (5, 2, False), (6, 4, True)]
    told: dict[str, list[Any]] = {"sums": [], "pairs": [], "best": []}
    seen = 0
    for number, (until, slots, pinned) in enumerate(starts):
        table = table_of(number, slots)
        table = pins(table, slots) if pinned else table
        tables = dict.fromkeys(("rows", "sums", "best", "pairs"), table)
        done = run(flow_of(until), slots=slots, checkpoint=tmp_path, tables=tables, partitions=2)
        for name, rows in told.items():
            rows += [row for epoch, row in done.outputs.get(name, []) if epoch >= seen]
        seen = until

        fold: Counter[tuple[int, str]] = Counter()
        for row in rows_of(until):
            fold[row["shard"], row["k"]] += row["n"]
        assert {(r["shard"], r["k"]): r["sum"] for r in done.state("sums")} == fold
    sums = {(row["shard"], row["k"]): row["sum"] for row in told["sums"]}
    assert sums == fold

    rows = rows_of(EPOCHS)
    few = [(row["shard"], row["k"]) for row in rows if row["n"] < 3]
    counts = Counter((row["shard"], row["k"]) for row in rows)
    assert len(told["pairs"]) == sum(counts[key] for key in few)
    best = {(row["shard"], row["k"], row["rank"]): row["n"] for row in told["best"]}
    for key in counts:
        mine = sorted((r["n"] for r in rows if (r["shard"], r["k"]) == key), reverse=True)[:2]
        assert [best[*key, rank + 1] for rank in range(len(mine))] == mine


def test_keys_of_a_shard_live_in_one_slot_but_for_those_that_are_pinned(tmp_path: Path) -> None:
    run(flow_of(2), slots=5, checkpoint=tmp_path / "plain")
    tables = {"sums": pins(hg.hash_table(5), 5)}
    run(flow_of(2), slots=5, checkpoint=tmp_path / "pinned", tables=tables)
    keys = sorted({(row["shard"], row["k"]) for row in rows_of(2)})

    found = [Inspection(str(tmp_path / "plain")).find("sums", [str(s), k]) for s, k in keys]
    assert all(one.rows.num_rows == 1 and not one.pinned for one in found)
    assert [one.bucket for one in found] == [shard for shard, _ in keys], "shard 7 is bucket 7"
    assert [one.slot for one in found] == [shard % 5 for shard, _ in keys]

    moved = [Inspection(str(tmp_path / "pinned")).find("sums", [str(s), k]) for s, k in keys]
    assert all(one.rows.num_rows == 1 for one in moved)
    away = [one.slot != shard % 5 for one, (shard, _) in zip(moved, keys, strict=True)]
    assert away == [one.pinned for one in moved] and any(away) and not all(away)


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("shard", (), "the key of 'sums' was near shard, is now near nothing"),
        ((), "shard", "the key of 'sums' was near nothing, is now near shard"),
        ("shard", "k", "the key of 'sums' was near shard, is now near k"),
    ],
)
def test_a_start_that_calls_other_columns_near_is_refused_with_the_way_out(
    tmp_path: Path, before: Any, after: Any, says: str
) -> None:
    run(flow_of(2, before), slots=3, checkpoint=tmp_path)

    with pytest.raises(IncompatibleFlow) as refused:
        run(flow_of(3, after), slots=3, checkpoint=tmp_path)
    assert says in str(refused.value) and "reset=['name']" in str(refused.value)

    anew = run(
        flow_of(3, after), slots=3, checkpoint=tmp_path, reset=["rows", "sums", "best", "pairs"]
    )
    fold: Counter[tuple[int, str]] = Counter()
    for row in ROWS[2]:
        fold[row["shard"], row["k"]] += row["n"]
    assert {(r["shard"], r["k"]): r["sum"] for r in anew.state("sums")} == fold


def test_a_lookup_keeps_what_is_near() -> None:
    table = pa.table({"shard": pa.array(range(SHARDS), pa.int32()), "host": ["a"] * SHARDS})
    flow = hg.Flow("looked")
    rows = flow.source(ListSource(SCHEMA, ROWS[:1])).key_by(*KEY, near="shard")
    looked = rows.lookup(table, on="shard")

    assert looked.grouping.key.near_names == ("shard",)
    assert "by shard, k near shard" in repr(looked)


def test_shards_stay_even_when_slots_come_and_go() -> None:
    table, shards = hg.hash_table(6), pa.array(range(64), pa.int32())
    for slots in (8, 5, 6, 3, 4, 12, 2, 6):
        table = table.resized(slots)
        held = np.bincount(table.near([shards], 64), minlength=slots)
        assert held.max() <= 1.35 * 64 / slots + 1, (slots, held.tolist())
