"""Heavy keys become units where they live; what is cut becomes a spread, and is read back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from headgate.control.split_units import COLD_SHARE, PIN_SHARE, SplitUnits, by_unit
from headgate.control.unit_index import UnitIndex
from headgate.control.unit_statistics import Capacity, Measured, Period
from headgate.planner.placing import KeyLoads, Observation, Pairs
from headgate.routing.hashing import bucket_of
from headgate.routing.table import RoutingTable, bucket_ids, hash_table

SLOTS, BUCKETS, TOTAL = 4, 16, 4000.0
HOT = np.uint64(0x1234_5678_9ABC_DEF0)
WARM = np.uint64(0xFEDC_BA98_7654_3210)
MEAN = TOTAL / SLOTS


def period(hot: float, warm: float = 0.0, rest: float | None = None) -> Period:
    """An operator whose rows come from another's only bucket that sends; `rest` was not counted."""
    rest = TOTAL - hot - warm if rest is None else rest
    keys = np.array([HOT, WARM], np.uint64)
    rows = np.array([hot, warm])
    producer = bucket_ids(BUCKETS)
    seen = Observation(
        epoch=7,
        epochs=5,
        rows=int(TOTAL),
        now_ms=10_000,
        pairs={("first", "hot"): Pairs(producer[:1], bucket_of_key(HOT), np.array([hot + 100.0]))},
        loads={
            "first": KeyLoads(producer, np.full(BUCKETS, 10.0), np.zeros(BUCKETS, np.int32)),
            "hot": KeyLoads(keys, rows, np.zeros(2, np.int32)),
        },
        slot_rows={"hot": np.array([hot + warm + rest, 0.0, 0.0, 0.0]), "first": np.full(4, 40.0)},
    )
    spent = {"hot": hot + warm + rest, "first": 100.0}
    return Period(seen, SLOTS, 10_000.0, spent, None, 0.0, {}, {}, {"hot": 15.0})


def bucket_of_key(h: np.uint64) -> np.ndarray:
    """The id of the bucket of a key, as it is counted before the key is pinned."""
    return bucket_ids(BUCKETS)[bucket_of(np.array([h], np.uint64), BUCKETS)]


TABLES = {"first": hash_table(SLOTS, BUCKETS), "hot": hash_table(SLOTS, BUCKETS)}


def measured(
    split: SplitUnits, tables: dict[str, RoutingTable], seen: Period
) -> tuple[Measured, UnitIndex, dict[str, RoutingTable]]:
    named = split.named(tables, seen)
    index = UnitIndex.of(named)
    found = by_unit(seen, named, split.operators).measure(named, Capacity(), 1.0)
    return split.cut(found, index, tables, seen), index, named


def test_a_heavy_key_is_pinned_where_it_is_and_a_cold_pin_goes() -> None:
    split = SplitUnits(["hot"])
    named = split.named(TABLES, period(2000.0, warm=0.9 * PIN_SHARE * MEAN))
    assert named["hot"].pinned_h.tolist() == [HOT]
    assert named["first"] is TABLES["first"]
    keys = np.arange(1 << 12, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    assert (named["hot"].route(keys) == TABLES["hot"].route(keys)).all(), "nothing moves"
    still = split.named(named, period(1.5 * COLD_SHARE * MEAN))
    assert still["hot"] is named["hot"]
    cold = split.named(named, period(0.5 * COLD_SHARE * MEAN))
    assert not len(cold["hot"].pinned_h)


def test_loads_by_key_become_loads_by_unit_and_lose_nothing() -> None:
    named = SplitUnits(["hot"]).named(TABLES, period(2000.0, 300.0))
    seen = by_unit(period(2000.0, 300.0), named, ["hot"]).seen
    index = UnitIndex.of(named)
    rows = index.look_up({"hot": (seen.loads["hot"].h, seen.loads["hot"].rows)})
    assert rows.sum() == pytest.approx(TOTAL)
    unit, known = index.find("hot", np.array([HOT], np.uint64))
    assert known.all() and rows[unit] == pytest.approx(2000.0)
    assert rows[:BUCKETS].sum() == 0, "the other operator's are its own"
    assert rows.min() >= 0


def test_a_key_pinned_just_now_has_its_share_of_its_buckets_traffic() -> None:
    seen = period(2000.0)
    found, index, _ = measured(SplitUnits(["hot"]), TABLES, seen)
    flow = found.situation.traffic
    unit = int(index.find("hot", np.array([HOT], np.uint64))[0][0])
    to_key = float(flow.rate[flow.receiver == unit].sum())
    bucket_rows = (TOTAL - 2000.0) / BUCKETS
    assert flow.total == pytest.approx(2100.0)
    assert to_key == pytest.approx(2100.0 * 2000.0 / (2000.0 + bucket_rows))


def test_what_is_cut_becomes_a_spread_and_is_cut_in_the_next_period() -> None:
    split = SplitUnits(["hot"])
    _, index, named = measured(split, TABLES, period(2000.0, 300.0))
    unit = int(index.find("hot", np.array([HOT], np.uint64))[0][0])
    owner = int(named["hot"].route(np.array([HOT], np.uint64))[0])
    others = [slot for slot in range(SLOTS) if slot != owner][:2]
    extras = {unit: tuple((slot, 0.3) for slot in others)}

    split.take(extras, index, named)

    spread = split.spreads["hot"]
    assert spread.shares_of(int(HOT)) == pytest.approx({owner: 0.4, others[0]: 0.3, others[1]: 0.3})
    assert spread.find(np.array([WARM], np.uint64)) >= 0, "known, so not taken for new"
    assert spread.cut.tolist() == [HOT]
    again, _, kept = measured(split, named, period(0.0, 300.0, rest=3700.0))
    assert again.situation.cut is not None
    back = again.situation.cut.extras[unit]
    assert [slot for slot, _ in back] == others
    assert [share for _, share in back] == pytest.approx([0.3, 0.3])
    assert HOT in kept["hot"].pinned_h, "cold, but cut"
    assert again.situation.cut.merge_rate[unit] == pytest.approx(15.0 / 2)
    split.begin_anew()
    assert measured(split, named, period(2000.0))[0].situation.cut.extras == {}


def test_pins_that_went_cold_away_from_their_bucket_are_bounded() -> None:
    split = SplitUnits(["hot"])
    keys = np.unique(np.random.default_rng(1).integers(0, 2**63, 400, np.uint64))
    home = TABLES["hot"].route(keys)
    away = replace(TABLES["hot"]).pin_hashes(keys, ((home + 1) % SLOTS).astype(np.int32))
    named = split.named({"hot": away}, period(2000.0))
    assert named["hot"].pinned_h.tolist() == [HOT]
    few = replace(TABLES["hot"]).pin_hashes(keys[:50], ((home + 1) % SLOTS).astype(np.int32)[:50])
    assert len(split.named({"hot": few}, period(2000.0))["hot"].pinned_h) == 51
