"""Send and receive lists say of every key exactly what the two tables say."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headgate.routing.table import RoutingTable, hash_table
from headgate_lab.simulator.plan import Router, handovers, key_hashes

SLOTS, BUCKETS, KEYS = 3, 8, 20
HASHES = key_hashes(KEYS)


@st.composite
def tables(draw: st.DrawFn) -> RoutingTable:
    owners = draw(st.lists(st.integers(0, SLOTS - 1), min_size=BUCKETS, max_size=BUCKETS))
    pins = draw(st.dictionaries(st.integers(0, KEYS - 1), st.integers(0, SLOTS - 1), max_size=6))
    table = hash_table(SLOTS, BUCKETS).with_buckets(np.array(owners, np.int32))
    return table.pin_hashes(HASHES[list(pins)], np.array(list(pins.values()), np.int32))


@given(old=tables(), new=tables())
def test_a_key_is_on_the_lists_of_its_two_owners_and_on_no_others(
    old: RoutingTable, new: RoutingTable
) -> None:
    lists = handovers(Router(old, HASHES[:10]), Router(new, HASHES[:10]))
    for key, before, after in zip(HASHES.tolist(), old.route(HASHES), new.route(HASHES)):
        unit = lists[0].units.of(key)
        sends = [(s, r) for s in range(SLOTS) for r, u in lists[s].send.items() if unit in u]
        receives = [(s, r) for r in range(SLOTS) for s, u in lists[r].receive.items() if unit in u]
        assert sends == receives == ([(before, after)] if before != after else [])


@given(table=tables())
def test_a_router_answers_like_its_table_for_known_and_unknown_keys(table: RoutingTable) -> None:
    router = Router(table, HASHES[:5])

    assert [router.slot(key) for key in HASHES.tolist()] == table.route(HASHES).tolist()


def test_equal_tables_hand_nothing_over() -> None:
    table = hash_table(SLOTS, BUCKETS)

    for lists in handovers(Router(table, HASHES), Router(table, HASHES)):
        assert not lists.send and not lists.receive
