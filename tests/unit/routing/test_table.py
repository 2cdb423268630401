"""Routing tables: pins before buckets, and a change moves what it must and nothing else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headgate as hg
from headgate.errors import HeadgateError, UnknownSlot
from headgate.routing.hashing import bucket_of, hash_columns
from headgate.routing.table import BUCKETS, RoutingTable, hash_table, moves_between, save_tables
from strategies import examples, owner_by_hand, tables

KEYS = pa.array([f"key {i}" for i in range(60)])
H = hash_columns([KEYS], len(KEYS))


@pytest.mark.parametrize("slots", [1, 2, 3, 7, 64])
def test_an_empty_table_routes_exactly_like_hash_grouping(slots: int) -> None:
    """Invariant 6."""
    assert hash_table(slots).route(H).tolist() == [(h >> 54) % slots for h in H.tolist()]
    assert hash_table(slots).buckets == BUCKETS == 1024


@examples(60)
@given(data=st.data(), slots=st.integers(1, 5))
def test_a_pin_wins_over_the_bucket_and_all_other_keys_follow_theirs(
    data: st.DataObject, slots: int
) -> None:
    table = data.draw(tables(slots, KEYS))

    assert table.route(H).tolist() == owner_by_hand(table, KEYS)


def test_a_later_pin_of_the_same_key_wins() -> None:
    twice_at_once = hash_table(4).pin([pa.array(["a", "b", "a"])], [1, 2, 3])
    one_by_one = hash_table(4).pin([pa.array(["a"])], [1]).pin([pa.array(["a"])], [3])
    a = hash_columns([pa.array(["a"])], 1)

    assert twice_at_once.route(a).tolist() == [3]
    assert one_by_one.route(a).tolist() == [3]
    assert len(one_by_one.pinned_h) == 1


def test_composite_keys_can_be_pinned() -> None:
    key = [pa.array([1, 1]), pa.array(["a", "b"])]
    table = hash_table(5).pin(key, [4, 3])

    assert table.route(hash_columns(key, 2)).tolist() == [4, 3]


def test_every_change_gives_a_new_version_and_leaves_the_old_table_alone() -> None:
    old = hash_table(2, buckets=4)

    changed = [
        old.pin([pa.array(["a"])], [1]),
        old.with_buckets(np.array([1, 1, 0, 0], np.int32)),
        old.resized(3),
    ]

    assert [t.version for t in changed] == [1, 1, 1]
    assert old.version == 0
    assert old.bucket_slots.tolist() == [0, 1, 0, 1]
    assert not len(old.pinned_h)


@pytest.mark.parametrize(
    ("buckets", "pins", "named"), [([0, 2], [], 2), ([0, 1], [5], 5), ([0, -1], [], -1)]
)
def test_a_slot_that_the_flow_does_not_have_is_refused(
    buckets: list[int], pins: list[int], named: int
) -> None:
    with pytest.raises(UnknownSlot) as caught:
        RoutingTable(
            2,
            np.array(buckets, np.int32),
            pinned_h=np.arange(len(pins), dtype=np.uint64),
            pinned_slots=np.array(pins, np.int32),
        )

    assert (caught.value.slot, caught.value.slots) == (named, 2)
    assert f"slot {named}" in str(caught.value)


# --- resizing ---------------------------------------------------------------------------------


@examples(80)
@given(data=st.data(), slots=st.integers(1, 6), after=st.integers(1, 6))
def test_resizing_is_balanced_and_moves_as_few_buckets_as_balance_allows(
    data: st.DataObject, slots: int, after: int
) -> None:
    old = data.draw(tables(slots, KEYS))
    new = old.resized(after)

    assert new.slots == after
    if after == slots:
        assert new is old
        return
    load = np.bincount(new.bucket_slots, minlength=after)
    assert load.max() - load.min() <= 1
    moved = int((new.bucket_slots != old.bucket_slots).sum())
    assert moved == _fewest_moves(old.bucket_slots, after)


@examples(60)
@given(data=st.data(), slots=st.integers(1, 6), after=st.integers(1, 6))
def test_uneven_resizing_moves_only_what_has_lost_its_slot(
    data: st.DataObject, slots: int, after: int
) -> None:
    old = data.draw(tables(slots, KEYS))
    new = old.resized(after, even=False)

    stays = old.bucket_slots < after
    assert (new.bucket_slots[stays] == old.bucket_slots[stays]).all()
    assert (new.bucket_slots < after).all() and new.slots == after


@examples(80)
@given(data=st.data(), slots=st.integers(1, 6), after=st.integers(1, 6))
def test_other_instances_own_all_units_evenly_and_what_can_stay_does(
    data: st.DataObject, slots: int, after: int
) -> None:
    some = st.sets(st.integers(0, after - 1), min_size=1).map(sorted)
    old, mine = data.draw(tables(slots, KEYS)), data.draw(some)
    new = old.resized(after, mine)

    assert new.slots == after
    assert {*new.bucket_slots.tolist(), *new.pinned_slots.tolist()} <= {*mine}
    if [*range(slots)] != mine:
        load = np.bincount(new.bucket_slots, minlength=after)[mine]
        assert load.max() - load.min() <= 1
    stays = np.isin(old.pinned_slots, mine)
    assert (new.pinned_slots[stays] == old.pinned_slots[stays]).all()
    assert new.resized(after, mine, before=mine) is new


@examples(60)
@given(data=st.data(), slots=st.integers(1, 4))
def test_every_key_has_one_unit_and_units_have_the_keys_owner(
    data: st.DataObject, slots: int
) -> None:
    table = data.draw(tables(slots, KEYS))
    h = H
    units, owners = table.all_units()

    mine = table.units(h)
    assert set(mine.tolist()) <= set(units.tolist())
    assert (table.route(mine) == table.route(h)).all()
    assert (table.route(units) == owners).all()
    assert table.with_owners(owners).same_routes(table)


@examples(60)
@given(data=st.data(), slots=st.integers(1, 6), after=st.integers(1, 6))
def test_resizing_leaves_every_pin_whose_slot_stays(
    data: st.DataObject, slots: int, after: int
) -> None:
    old = data.draw(tables(slots, KEYS))
    new = old.resized(after)

    assert np.array_equal(new.pinned_h, old.pinned_h)
    for before, now in zip(old.pinned_slots, new.pinned_slots, strict=True):
        assert now == before if before < after else now < after


@examples(60)
@given(data=st.data(), slots=st.integers(1, 6), more=st.integers(1, 6))
def test_new_slots_get_their_share_of_pins_if_asked_for(
    data: st.DataObject, slots: int, more: int
) -> None:
    old = data.draw(tables(slots, KEYS))
    new = old.resized(slots + more, share_pins=True)

    assert np.array_equal(new.pinned_h, old.pinned_h)
    load = np.bincount(new.pinned_slots, minlength=slots + more)
    assert load.max() - load.min() <= 1
    moved = int((new.pinned_slots != old.pinned_slots).sum())
    assert moved == _fewest_moves(old.pinned_slots, slots + more)


def test_keys_pinned_to_a_leaving_slot_stay_together_where_that_is_even() -> None:
    """4 -> 2: slot 2 joins slot 0 and 3 joins 1. 5 -> 2: the fifth is shared out."""
    h = np.arange(10, dtype=np.uint64)
    four = hash_table(4).pin_hashes(h[:8], np.repeat(np.arange(4, dtype=np.int32), 2))
    five = hash_table(5).pin_hashes(h, np.repeat(np.arange(5, dtype=np.int32), 2))

    assert four.resized(2).pinned_slots.tolist() == [0, 0, 1, 1, 0, 0, 1, 1]
    assert five.resized(2).pinned_slots.tolist() == [0, 0, 1, 1, 0, 0, 1, 1, 0, 1]


@pytest.mark.parametrize(("slots", "after"), [(4, 5), (4, 3), (2, 4), (6, 2)])
def test_resizing_a_hash_table_moves_only_the_share_that_changes_hands(
    slots: int, after: int
) -> None:
    old = hash_table(slots)
    moved = int((old.resized(after).bucket_slots != old.bucket_slots).sum())

    assert moved <= np.ceil(1024 * abs(after - slots) / max(slots, after))


def test_there_may_be_more_slots_than_buckets() -> None:
    table = hash_table(2, buckets=4).resized(9)

    assert sorted(np.bincount(table.bucket_slots, minlength=9)) == [0] * 5 + [1] * 4


def _fewest_moves(owners: np.ndarray, slots: int) -> int:
    """Brute force: of all ways to give the larger shares away, the one that moves least."""
    share, extra = divmod(len(owners), slots)
    load = np.bincount(owners, minlength=slots)
    kept_with_extra = sorted(min(n, share + 1) - min(n, share) for n in load[:slots])[::-1]
    kept = sum(min(int(n), share) for n in load[:slots]) + sum(kept_with_extra[:extra])
    return len(owners) - kept


# --- what moves -------------------------------------------------------------------------------


@examples(100)
@given(data=st.data(), slots=st.integers(1, 5), after=st.integers(1, 5))
def test_moves_name_every_key_that_changes_owner(
    data: st.DataObject, slots: int, after: int
) -> None:
    old, new = data.draw(tables(slots, KEYS)), data.draw(tables(after, KEYS))
    moves = moves_between(old, new)

    before, now = owner_by_hand(old, KEYS), owner_by_hand(new, KEYS)
    pinned = set(old.pinned_h.tolist()) | set(new.pinned_h.tolist())
    for h, bucket, was, is_ in zip(H.tolist(), bucket_of(H, 16), before, now, strict=True):
        named = h in moves.routes or (h not in pinned and bucket in moves.buckets)
        assert named == (was != is_)
    assert moves.buckets.tolist() == [
        b for b in range(16) if old.bucket_slots[b] != new.bucket_slots[b]
    ]
    assert moves.route_from.tolist() == old.route(moves.routes).tolist()
    assert moves.route_to.tolist() == new.route(moves.routes).tolist()
    for giver in range(slots):
        leaving_buckets, leaving_routes = moves.leaving(giver)
        arrived = [moves.between(giver, taker) for taker in range(after)]
        assert sorted(b for part, _ in arrived for b in part) == leaving_buckets.tolist()
        assert sorted(h for _, part in arrived for h in part) == leaving_routes.tolist()


@examples(60)
@given(data=st.data(), slots=st.integers(1, 5))
def test_unpinned_keys_fall_back_to_their_bucket(data: st.DataObject, slots: int) -> None:
    table = data.draw(tables(slots, KEYS))
    freed = table.unpin_hashes(H[::2])

    assert table.is_pinned(H).tolist() == np.isin(H, table.pinned_h).tolist()
    assert not freed.is_pinned(H[::2]).any()
    assert np.array_equal(freed.is_pinned(H[1::2]), table.is_pinned(H[1::2]))
    assert np.array_equal(freed.route(H[::2]), hash_slots(table, H[::2]))


def hash_slots(table: RoutingTable, h: np.ndarray) -> np.ndarray:
    return table.bucket_slots[bucket_of(h, table.buckets)]


@examples(60)
@given(data=st.data(), slots=st.integers(1, 5))
def test_nothing_moves_between_a_table_and_itself(data: st.DataObject, slots: int) -> None:
    table = data.draw(tables(slots, KEYS))

    assert not moves_between(table, table)
    assert table.same_routes(table)


def test_pinning_a_key_where_it_is_moves_nothing() -> None:
    table = hash_table(3)
    pinned = table.pin([KEYS], table.route(H))

    assert not moves_between(table, pinned)
    assert not table.same_routes(pinned)


# --- on storage -------------------------------------------------------------------------------


@examples(60)
@given(data=st.data(), slots=st.integers(1, 5))
def test_a_table_comes_back_from_storage_as_it_was(data: st.DataObject, slots: int) -> None:
    table = data.draw(tables(slots, KEYS))
    sink = pa.BufferOutputStream()
    arrow = table.to_arrow()
    with pa.ipc.new_file(sink, arrow.schema) as writer:
        writer.write_table(arrow)

    back = RoutingTable.from_arrow(pa.ipc.open_file(sink.getvalue()).read_all())

    assert back.same_routes(table)
    assert (back.version, back.buckets) == (table.version, table.buckets)
    assert back.route(H).tolist() == table.route(H).tolist()


def test_the_number_of_buckets_is_a_power_of_two() -> None:
    with pytest.raises(UnknownSlot, match="power of two"):
        hash_table(2, buckets=100)


# --- Routing tables as a folder: what is saved is what is loaded, and strangers are refused.


def pinned(slots: int, count: int, seed: int = 0) -> hg.RoutingTable:
    rng = np.random.default_rng(seed)
    h = rng.integers(0, 2**64, count, np.uint64)
    return hg.hash_table(slots).pin_hashes(h, rng.integers(0, slots, count).astype(np.int32))


@given(slots=st.integers(1, 9), count=st.integers(0, 50), seed=st.integers(0, 9))
def test_tables_come_back_as_they_were(
    tmp_path_factory: pytest.TempPathFactory, slots: int, count: int, seed: int
) -> None:
    """Parquet keeps the slots, buckets and version that the Arrow table has in its metadata."""
    folder = tmp_path_factory.mktemp("tables")
    tables = {"by_a": pinned(slots, count, seed), "by-b.2": hg.hash_table(slots)}

    save_tables(tables, folder)
    found = hg.load_tables(folder)

    assert set(found) == set(tables)
    for name, table in tables.items():
        assert found[name].same_routes(table)
        assert found[name].version == table.version


def test_a_uri_is_a_folder_too(tmp_path: Path) -> None:
    save_tables({"a": pinned(3, 5)}, tmp_path.as_uri())

    assert hg.load_tables(tmp_path.as_uri())["a"].same_routes(hg.load_tables(str(tmp_path))["a"])


def test_tables_of_an_earlier_analysis_are_replaced(tmp_path: Path) -> None:
    save_tables({"a": pinned(3, 5), "b": pinned(3, 5)}, tmp_path)
    (tmp_path / "report.html").write_text("stays")

    save_tables({"b": pinned(2, 7), "c": pinned(2, 7)}, tmp_path)

    assert {name: table.slots for name, table in hg.load_tables(tmp_path).items()} == {
        "b": 2,
        "c": 2,
    }
    assert (tmp_path / "report.html").exists()
    assert not list(tmp_path.glob("*.new"))


def test_a_folder_with_data_is_refused_and_kept(tmp_path: Path) -> None:
    pq.write_table(pa.table({"h": [1], "slot": [2]}), tmp_path / "mine.parquet")

    with pytest.raises(HeadgateError, match=r"mine\.parquet is not a routing table"):
        save_tables({"a": pinned(3, 5)}, tmp_path)

    assert [path.name for path in tmp_path.iterdir()] == ["mine.parquet"]
    with pytest.raises(HeadgateError, match="not a routing table"):
        hg.load_tables(tmp_path)


@pytest.mark.parametrize("made", [False, True])
def test_no_tables_says_where_they_come_from(tmp_path: Path, made: bool) -> None:
    folder = tmp_path / "none"
    if made:
        folder.mkdir()

    with pytest.raises(HeadgateError, match=r"no routing tables in .*none.*headgate analyze"):
        hg.load_tables(folder)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"not parquet")

    with pytest.raises(HeadgateError, match=r"a\.parquet cannot be read"):
        hg.load_tables(tmp_path)
