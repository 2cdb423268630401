"""Replay with split operators, against a model that looks at one row at a time."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.errors import HeadgateError
from headgate.offline.replay import choose_anchor, replay
from headgate.offline.replay_owners import SplitOwners, Trace, read_trace
from headgate.offline.replay_planners import ReplayOptions
from strategies import examples

DATA = Path(os.environ.get("HEADGATE_DATA", Path(__file__).parents[4] / "shared" / "data"))
SLOTS = 4


@dataclass
class Model:
    """Who processes a row, from the rows before it: counts that anyone can follow."""

    owners: SplitOwners

    def owner(self, k: int, number: int) -> int:
        entry = int(self.owners.entry[k][number])
        return entry if entry >= 0 else int(self.owners.home[k][number])

    def slots_of_rows(self, rows: int) -> list[int]:
        anchor = self.owners.anchor
        numbers = self.owners.trace.keys[anchor].number.tolist()
        seen: Counter[int] = Counter()
        loads: Counter[int] = Counter()
        head: set[int] = set()
        judged_at = 4 * 5 * SLOTS
        found = []
        for row in range(rows):
            number = numbers[row]
            home = self.owner(anchor, number)
            order = [(home + j) % SLOTS for j in range(SLOTS)]
            slot = min(order, key=lambda s: (loads[s], order.index(s))) if number in head else home
            found.append(slot)
            loads[slot] += 1
            seen[number] += 1
            if row + 1 == judged_at:
                head = {n for n, count in seen.items() if count * 5 * SLOTS >= judged_at}
                judged_at *= 2
        return found


@examples(40)
@given(
    a=st.lists(st.integers(0, 12), min_size=1, max_size=20),
    b=st.lists(st.integers(0, 30), min_size=1, max_size=20),
    rows=st.integers(1, 400),
    anchor=st.integers(0, 1),
    entries=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 12), st.integers(0, 3))),
)
def test_rows_partials_and_statistics_are_those_of_the_model(
    a: list[int], b: list[int], rows: int, anchor: int, entries: list[tuple[int, int, int]]
) -> None:
    columns = {"a": pa.array((a * rows)[:rows]), "b": pa.array((b * rows)[:rows])}
    owners = SplitOwners(Trace.of(columns), SLOTS, anchor)
    for k, number, slot in entries:
        if number < len(owners.entry[k]):
            owners.entry[k][number] = slot
    model = Model(owners)
    expected = model.slots_of_rows(rows)

    epoch = owners.route(0, rows)

    assert [s.tolist() for s in epoch.slot] == [expected, expected]
    numbers = [column.number.tolist() for column in owners.trace.keys]
    partials = [Counter(zip(numbers[k], expected, strict=True)) for k in range(2)]
    assert owners.merge_rows(epoch) == sum(
        model.owner(k, number) != slot for k in range(2) for number, slot in partials[k]
    )
    other = 1 - anchor
    (pairs,) = owners.seen_pairs(epoch)
    assert pairs.rows.sum() == pytest.approx(len(partials[other]))
    told = owners.seen_keys(epoch)
    assert told[anchor].rows.sum() == rows
    assert told[other].rows.sum() == len(partials[other])
    merged = Counter(model.owner(other, number) for number, _ in partials[other])
    assert owners.slot_rows(epoch)[other].tolist() == [merged[s] for s in range(SLOTS)]


def few_and_many(rows: int, *, hot: float = 0.0, seed: int = 0) -> Trace:
    """Six regions with 80 tags each; `hot` of the rows have one of two tags that all use."""
    rng = np.random.default_rng(seed)
    region = rng.integers(0, 6, rows)
    tag = 100 + region * 80 + rng.integers(0, 80, rows)
    tag = np.where(rng.random(rows) < hot, rng.integers(0, 2, rows), tag)
    return Trace.of({"region": pa.array(region), "tag": pa.array(tag)})


def options(**more: object) -> ReplayOptions:
    return ReplayOptions("headgate", **{"window": 3_000, "period": 2_000, "epoch": 500, **more})


def test_no_row_is_remote_and_merge_rows_are_few_where_keys_go_together() -> None:
    found = replay(few_and_many(11_000), options(split=True))

    assert found["locality"] == 1.0
    assert found["remote_plus_merge_per_row"] == found["merge_rows_per_row"] < 0.03
    assert max(found["imbalance"]) < 1.15


@pytest.mark.parametrize("seed", range(3))
def test_keys_too_hot_for_a_slot_are_split_too(seed: int) -> None:
    found = replay(few_and_many(11_000, hot=0.6, seed=seed), options(split=True))

    assert found["imbalance_floor"][1] > 1.7  # what one owner a key would force
    assert max(found["imbalance"]) < 1.2
    assert max(found["imbalance_epoch"]) < 1.35


def test_rows_go_by_the_key_that_makes_fewest_merge_rows() -> None:
    assert choose_anchor(few_and_many(6_000), options(split=True)) == 1
    mirrored = Trace(tuple(reversed(few_and_many(6_000).keys)))
    assert choose_anchor(mirrored, options(split=True)) == 0
    assert replay(few_and_many(6_000), options(split=True))["anchor"] == "tag"


@pytest.mark.parametrize("wrong", [{"planner": "online"}, {"strict": True}])
def test_only_the_planner_of_headgate_splits(wrong: dict[str, object]) -> None:
    given = {"planner": "headgate", "window": 3_000, "period": 2_000, "split": True, **wrong}
    with pytest.raises(HeadgateError, match="--split is for --planner headgate"):
        replay(few_and_many(6_000), ReplayOptions(**given))


def test_congress_needs_few_merge_rows_and_no_remote_ones() -> None:
    """A seventh of the trace; the whole of it: docs/guide/hot-keys.md."""
    path = DATA / "congress_state_hashtag_2017_2023.parquet"
    if not path.exists():
        pytest.skip(f"no data: {path} is absent (set HEADGATE_DATA)")
    whole = read_trace(path, ["state", "hashtag"])
    trace = Trace(tuple(type(c)(c.name, c.h, c.number[:330_000]) for c in whole.keys))
    found = replay(trace, ReplayOptions("headgate", 60_000, 30_000, epoch=2_000, split=True))

    assert found["anchor"] == "hashtag"
    assert found["remote_plus_merge_per_row"] <= 0.12
    assert max(found["imbalance"]) <= 1.08
