"""The judge objects to each kind of mistake, and to nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headgate.routing.table import hash_table
from headgate_lab.simulator.instance import Instance
from headgate_lab.simulator.message import Apply, Cut, Data, Hold, Migrate, Part, Restore, Resume
from headgate_lab.simulator.oracle import Oracle, Violation
from headgate_lab.simulator.plan import Plan, Router, key_hashes
from headgate_lab.simulator.record import Record, Snapshot
from headgate_lab.simulator.shape import MANAGER, Address, Edge, Operator, Shape, Wiring

KEYS = key_hashes(8)
SHAPE = Shape("test", (Operator("S", 1, False, ()), Operator("A", 2, True, (Edge("S", "fields"),))))
WIRING = Wiring(SHAPE)
(S0,) = WIRING.siblings["S"]
A0, A1 = WIRING.siblings["A"]
TABLE = hash_table(2, 8)
OLD = Plan(0, {"A": Router(TABLE, KEYS)})
KEY = next(key for key in KEYS.tolist() if OLD.routers["A"].slot(key) == 0)
MOVED = TABLE.pin_hashes(np.array([KEY], np.uint64), np.array([1], np.int32))
NEW = Plan(1, {"A": Router(MOVED, KEYS)})
EMPTY = Part(0, {}, OLD.routers, 0, 0, ())
RECORD = Record(OLD, OLD, Snapshot(0, OLD, dict.fromkeys(WIRING.instances, EMPTY)))
LOG = [Data(number, "", {"A": KEY}, number) for number in range(3)]


def applied(number: int, sender: Address = S0) -> Apply:
    return Apply(Data(number, "S", {"A": KEY}, number), KEY, sender)


@pytest.fixture
def oracle() -> Oracle:
    return Oracle(SHAPE, {S0: LOG}, RECORD)


@pytest.fixture
def moving(oracle: Oracle) -> Oracle:
    """Tuple 0 is counted, and a plan is saved that takes its key from A0 to A1."""
    oracle.applied(A0, 0, applied(0))
    oracle.saved(RECORD._replace(target=NEW))
    return oracle


def instance(address: Address, version: int = 0, routers: Any = OLD.routers, count: int = 0) -> Any:
    made = Instance(address, WIRING)
    counts = {KEY: count} if count else {}
    made.on(MANAGER, Restore(0, Part(version, counts, routers, 0, 0, ())))
    made.on(MANAGER, Resume(0))
    return made


def test_a_tuple_counted_twice(oracle: Oracle) -> None:
    oracle.applied(A0, 0, applied(0))

    with pytest.raises(Violation, match="processed twice"):
        oracle.applied(A0, 0, applied(0))


def test_a_tuple_counted_by_another_than_the_owner(oracle: Oracle) -> None:
    with pytest.raises(Violation, match="without its state") as found:
        oracle.applied(A1, 0, applied(0))
    assert (found.value.operator, found.value.tuple_id) == ("A", 0)


def test_a_tuple_that_overtakes_one_of_its_key_from_the_same_sender(oracle: Oracle) -> None:
    oracle.applied(A0, 0, applied(1))
    oracle.applied(A0, 0, applied(2, sender=Address("S", 1)))  # another sender: no order promised

    with pytest.raises(Violation, match="overtaken"):
        oracle.applied(A0, 0, applied(0))


def test_between_send_and_arrival_nobody_owns_a_key(moving: Oracle) -> None:
    moving.migrates(A0, 0, A1, Migrate(1, frozenset(), {KEY: 1}))

    for address in (A0, A1):
        with pytest.raises(Violation, match="belongs to in flight"):
            moving.applied(address, 0, applied(1 + address.slot))
    moving.migrated(A0, 0, A1)
    moving.applied(A1, 0, Apply(Data(3, "S", {"A": KEY}, 3), KEY, S0))


@pytest.mark.parametrize("states", [{}, {KEY: 2}])
def test_a_state_that_is_lost_or_changed_on_its_way(moving: Oracle, states: dict[int, int]) -> None:
    with pytest.raises(Violation, match="true is"):
        moving.migrates(A0, 0, A1, Migrate(1, frozenset(), states))


def test_a_state_given_away_twice(moving: Oracle) -> None:
    moving.migrates(A0, 0, A1, Migrate(1, frozenset(), {KEY: 1}))

    with pytest.raises(Violation, match="gives away"):
        moving.migrates(A0, 0, A1, Migrate(1, frozenset(), {KEY: 1}))


def test_a_tuple_held_without_need(moving: Oracle) -> None:
    data = Data(1, "S", {"A": KEY}, 1)
    moving.held(A1, 0, Hold(data, KEY))

    with pytest.raises(Violation, match="for no reason"):
        moving.held(A0, 0, Hold(data, KEY))


def test_two_holders_of_one_key(oracle: Oracle) -> None:
    oracle.applied(A0, 0, applied(0))
    oracle.check_holders([instance(A0, count=1), instance(A1)])

    with pytest.raises(Violation, match="belongs to A0"):
        oracle.check_holders([instance(A0, count=1), instance(A1, count=1)])
    with pytest.raises(Violation, match="nothing"):
        oracle.check_holders([instance(A0)])


def test_a_recovery_undoes_what_is_not_in_the_snapshot(oracle: Oracle) -> None:
    oracle.applied(A0, 0, applied(0))
    for address in WIRING.instances:
        oracle.cut(address, 0, Cut(1))
    oracle.applied(A0, 0, applied(1))
    snapshot = Snapshot(1, OLD, {})
    oracle.saved(RECORD._replace(snapshot=snapshot))
    oracle.saved(RECORD._replace(snapshot=snapshot, generation=1))

    assert oracle.counts["A"] == {KEY: 1}
    oracle.applied(A0, 0, applied(1))  # a straggler of the old generation is nobody's concern
    oracle.applied(A0, 1, applied(1))
    with pytest.raises(Violation, match="twice"):
        oracle.applied(A0, 1, applied(0))


def the_end(oracle: Oracle, *instances: Any, idle: bool = True) -> None:
    oracle.check_end([instance(S0), *instances], idle)


@pytest.fixture
def finished(oracle: Oracle) -> Oracle:
    for data in LOG:
        oracle.applied(S0, 0, Apply(data, 0, S0))
        oracle.applied(A0, 0, applied(data.id))
    return oracle


def test_a_good_end(finished: Oracle) -> None:
    the_end(finished, instance(A0, count=3), instance(A1))


def test_a_tuple_that_never_came(oracle: Oracle) -> None:
    with pytest.raises(Violation, match="never met S"):
        the_end(oracle, instance(A0), instance(A1))


def test_a_manager_that_waits_for_ever(finished: Oracle) -> None:
    with pytest.raises(Violation, match="manager still waits"):
        the_end(finished, instance(A0, count=3), instance(A1), idle=False)


def test_an_instance_that_is_missing_or_waits_for_ever(finished: Oracle) -> None:
    with pytest.raises(Violation, match="never started again"):
        the_end(finished, instance(A0, count=3))
    waiting = instance(A1)
    waiting.missing.add(("pin", KEY))
    with pytest.raises(Violation, match="A1 still waits"):
        the_end(finished, instance(A0, count=3), waiting)


def test_an_instance_on_another_version(finished: Oracle) -> None:
    with pytest.raises(Violation, match="ended on plan 1"):
        the_end(finished, instance(A0, count=3), instance(A1, version=1))
    with pytest.raises(Violation, match="table for A"):
        the_end(finished, instance(A0, count=3), instance(A1, routers=NEW.routers))
