"""Grouping: the distinct keys of a batch, in order of appearance."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.operator.rows import Groups, KeyedRows, group_rows
from headgate.routing.identity import Identity

PAIRS = st.lists(st.tuples(st.integers(0, 5), st.sampled_from([1, 3, 5])), max_size=60)


@settings(deadline=None)
@given(PAIRS, st.sampled_from([1, 1 << 20, 1 << 60]))
def test_groups_are_the_distinct_pairs_even_when_hashes_collide(
    pairs: list[tuple[int, int]], spread: int
) -> None:
    h = np.array([h * spread for h, _ in pairs], np.uint64)
    mark = np.array([mark for _, mark in pairs], np.uint64)
    codes, first = group_rows(h, [np.ones_like(mark), mark])
    distinct = list(dict.fromkeys(pairs))
    assert [distinct[code] for code in codes] == pairs
    assert [pairs[row] for row in first] == distinct
    assert first.tolist() == sorted(first.tolist())


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 6), max_size=50))
def test_order_rank_and_last_follow_arrival(keys: list[int]) -> None:
    groups = _groups(np.array(keys, np.int64))
    assert groups.rank.tolist() == [keys[:at].count(key) for at, key in enumerate(keys)]
    assert groups.sizes.tolist() == [keys.count(key) for key in dict.fromkeys(keys)]
    by_key = [at for key in dict.fromkeys(keys) for at, other in enumerate(keys) if other == key]
    assert groups.order.tolist() == by_key
    last = {key: at for at, key in enumerate(keys)}
    assert groups.last.tolist() == [last[key] for key in dict.fromkeys(keys)]


def test_more_than_65536_groups_are_ordered_too() -> None:
    keys = np.random.default_rng(7).integers(0, 150_000, 200_000)
    groups = _groups(keys)
    assert len(groups) > 1 << 16
    assert np.array_equal(groups.order, np.argsort(groups.codes, kind="stable"))
    assert np.array_equal(keys[groups.first][groups.codes], keys)


def test_sub_groups_keep_the_route_of_their_key() -> None:
    rows = KeyedRows(pa.RecordBatch.from_pydict({"k": ["a", "b", "a", "a"]}), ["k"])
    groups = rows.sub_groups(["n"], [pa.array([1, 1, 2, 1])])
    assert groups.codes.tolist() == [0, 1, 2, 0]
    assert groups.route.tolist() == rows.h[[0, 1, 2]].tolist()
    assert len(set(groups.h.tolist())) == 3
    assert groups.columns.to_pydict() == {"k": ["a", "b", "a"], "n": [1, 1, 2]}


def test_a_crafted_pair_of_key_and_sub_key_is_two() -> None:
    """Sub-keys and keys that shared all bits of checks that anybody could compute."""
    rows = pa.RecordBatch.from_pydict({"k": [1, -2368165507825326210]})
    items = pa.array([1, -2343569517131420652])

    assert len(KeyedRows(rows, ["k"], identity=Identity(bytes(16))).sub_groups(["n"], [items])) == 2


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.sampled_from(["", "a", "b", None]), st.sampled_from([0, 1, None]))))
def test_a_state_that_tells_keys_apart_in_another_way_gets_checks_of_that_way(
    rows: list[tuple[str | None, int | None]],
) -> None:
    batch = pa.RecordBatch.from_pydict(
        {
            "k": pa.array([k for k, _ in rows], pa.string()),
            "n": pa.array([n for _, n in rows], pa.int64()),
        }
    )
    for identity in (Identity(bytes(range(16))), Identity(bytes(16))):
        told = KeyedRows(batch, ["k"], identity=identity)
        untold = KeyedRows(batch, ["k"])
        for some, same in (
            (untold.groups, told.groups),
            (
                untold.sub_groups(["n"], [batch.column("n")]),
                told.sub_groups(["n"], [batch.column("n")]),
            ),
        ):
            assert some.codes.tolist() == same.codes.tolist()
            assert some.check(identity).tolist() == same.check().tolist()
            chosen = np.arange(len(some))[::2]
            assert some.take(chosen).check(identity).tolist() == same.check()[::2].tolist()


def test_taken_keys_are_a_subset() -> None:
    groups = KeyedRows(pa.RecordBatch.from_pydict({"k": [5, 6, 5, 7]}), ["k"]).groups
    some = groups.take(np.array([True, False, True]))
    assert some.columns.to_pydict() == {"k": [5, 7]}
    assert some.h.tolist() == groups.h[[0, 2]].tolist()
    assert len(some) == 2


def _groups(keys: np.ndarray) -> Groups:
    return KeyedRows(pa.RecordBatch.from_pydict({"k": pa.array(keys)}), ["k"]).groups
