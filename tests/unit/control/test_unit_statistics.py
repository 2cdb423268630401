"""What units cost, hold and send, from what tasks counted, against counting by hand."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import headgate as hg
from headgate.commit.facts import EdgeFacts, EngineFacts, EpochFacts, StateSize
from headgate.commit.planning import Decision, Observed
from headgate.control.adaptation import MeasuredUnits
from headgate.control.unit_period import Period, UnitIndex
from headgate.control.units import MigrationCost
from headgate.errors import DeclarationError
from headgate.routing.hashing import hash_columns
from headgate.testing import ListSource, run

BUCKETS, SLOTS = 16, 2
ROWS = [
    [{"a": int(i % 7), "b": int(i * i % 11)} for i in range(start, start + 60)] for start in (0, 60)
]


class Watching:
    """A manager that has units counted, and decides nothing."""

    statistics_bytes = 1 << 16
    born_local: frozenset[str] = frozenset()
    units_of = frozenset({"first", "second"})

    def __init__(self) -> None:
        self.observed: list[Observed] = []
        self.tables: dict[str, Any] = {}

    def step(self, observed: Any, tables: Any) -> Decision:
        self.observed += observed
        self.tables = dict(tables)
        return Decision()


@pytest.fixture(scope="module")
def watched() -> Watching:
    flow = hg.Flow("units")
    rows = flow.source(ListSource("a bigint, b bigint", ROWS))
    first = rows.key_by("a").process(hg.Count(emit="rows"), name="first")
    first.key_by("b").process(hg.Count(), name="second").to_memory("out")
    pins = hg.hash_table(SLOTS, BUCKETS).pin([pa.array([3])], [1])
    manager = Watching()
    run(
        flow,
        slots=SLOTS,
        buckets=BUCKETS,
        manager=manager,
        tables={"first": pins},
        check_purity=False,
    )
    return manager


def hashes(key: str) -> Any:
    values = [row[key] for epoch in ROWS for row in epoch]
    return hash_columns([pa.array(values, pa.int64())], len(values))


def as_if(watched: Watching, **changes: Any) -> list[Observed]:
    """The same epochs, a second apart, with known times."""
    return [
        Observed(replace(epoch.facts, now_ms=1000 * (i + 1), **changes), epoch.statistics)
        for i, epoch in enumerate(watched.observed)
    ]


def slot_loads(measured: MeasuredUnits) -> Any:
    return measured.situation.node_loads(measured.situation.home) + measured.base


def by_hand(watched: Watching, key: str, operator: str) -> dict[int, int]:
    return Counter(watched.tables[operator].units(hashes(key)).tolist())


def test_rows_and_traffic_of_units_are_those_of_their_keys(watched: Watching) -> None:
    period = Period.of(as_if(watched, operator_ms={"first": (30.0, 30.0), "second": (0.0, 0.0)}), 0)
    measured = period.measure(watched.tables, hg.PlannerSettings(), 1.0)
    index = UnitIndex.of(watched.tables)

    rows = by_hand(watched, "a", "first")
    for unit, count in rows.items():
        number, known = index.find("first", np.array([unit], np.uint64))
        assert known.all()
        load = measured.situation.units.load[number[0]]
        assert load == pytest.approx(100 * count / 2000), "1 ms a row, in a period of 2 s"
    assert measured.situation.units.load.sum() == pytest.approx(100 * 120 / 2000)
    t = measured.situation.traffic
    names = measured.situation.units.names
    seen = {
        (names[s], names[r]): n
        for s, r, n in zip(t.sender.tolist(), t.receiver.tolist(), t.rate.tolist(), strict=True)
    }
    pairs: Counter[tuple[str, str]] = Counter()
    a, _ = index.find("first", watched.tables["first"].units(hashes("a")))
    b, _ = index.find("second", watched.tables["second"].units(hashes("b")))
    for x, y in zip(a.tolist(), b.tolist(), strict=True):
        pairs[names[x], names[y]] += 1
    assert seen == pairs
    assert measured.situation.home.tolist() == [
        *watched.tables["first"].all_units()[1],
        *watched.tables["second"].all_units()[1],
    ]


def test_state_of_a_unit_is_its_share_of_its_slots_files(watched: Watching) -> None:
    state = {op: {0: StateSize(1, 8000), 1: StateSize(1, 4000)} for op in ("first", "second")}
    period = Period.of(as_if(watched, state=state), 0)
    measured = period.measure(watched.tables, hg.PlannerSettings(), 0.5)
    index = UnitIndex.of(watched.tables)

    table = watched.tables["first"]
    keys = np.unique(hashes("a"))
    held = Counter(table.units(keys).tolist())
    on = Counter(table.route(keys).tolist())
    for unit, count in held.items():
        number, _ = index.find("first", np.array([unit], np.uint64))
        slot = int(table.route(np.array([unit], np.uint64))[0])
        size = {0: 8000, 1: 4000}[slot] * count / on[slot]
        assert measured.situation.units.state_bytes[number[0]] == pytest.approx(size)
        assert measured.situation.migration_cost[number[0]] == pytest.approx(0.5 * size)


def test_the_bottleneck_is_the_resource_with_the_greatest_use(watched: Watching) -> None:
    state = {op: {0: StateSize(1, 9000), 1: StateSize(1, 9000)} for op in ("first", "second")}
    period = Period.of(as_if(watched, operator_ms={"first": (10.0, 10.0)}, state=state), 0)

    def found(**capacity: Any) -> str:
        return period.measure(watched.tables, hg.PlannerSettings(**capacity), 1.0).resource

    assert found() == "time"
    assert found(slot_state_bytes=1e9, slot_bytes_per_second=1e12) == "time"
    assert found(slot_state_bytes=1e5) == "memory"
    assert found(slot_bytes_per_second=10.0) == "bytes"


def test_time_that_is_not_in_operators_counts_for_the_bottleneck(watched: Watching) -> None:
    """Operators take 30 % of a slot, crossing and the rest of the tasks 70 %; memory is at 68 %."""
    times = {
        "operator_ms": {"first": (150.0, 150.0), "second": (0.0, 0.0)},
        "engine": EngineFacts(task_ms={0: 500.0, 1: 500.0}),
    }
    held = {slot: StateSize(1, 1000) for slot in range(SLOTS)}
    period = Period.of(as_if(watched, **times, state={"first": held, "second": held}), 0)
    measured = period.measure(watched.tables, hg.PlannerSettings(slot_state_bytes=8000), 1.0)

    assert measured.resource == "time"
    assert slot_loads(measured).sum() == pytest.approx(100)


def test_bytes_are_those_that_cross_slots(watched: Watching) -> None:
    edge = EdgeFacts(local_rows=30, remote_rows=30, local_bytes=9000, remote_bytes=600)
    period = Period.of(as_if(watched, edges={"first->second": edge}, operator_ms={}), 0)
    measured = period.measure(watched.tables, hg.PlannerSettings(slot_bytes_per_second=1000.0), 1.0)

    assert measured.resource == "bytes"
    load, units = measured.situation.units.load, measured.situation.units
    for operator, side in (("first", "sent"), ("second", "taken in")):
        mine = units.operator == units.operators.index(operator)
        assert load[mine].sum() == pytest.approx(60), f"1200 bytes of 2000, {side}"
    stays = measured.situation.remote == 0
    assert stays.any() and not load[stays].any(), "only by units whose rows cross"


def test_what_operators_do_not_account_for_is_shared_by_all_slots(watched: Watching) -> None:
    times = {
        "operator_ms": {"first": (50.0, 50.0)},
        "engine": EngineFacts(task_ms={0: 100.0, 1: 100.0}),
    }
    period = Period.of(as_if(watched, **times), 0)
    measured = period.measure(watched.tables, hg.PlannerSettings(), 1.0)

    assert slot_loads(measured).sum() == pytest.approx(20.0), "400 of 2000 ms, all tasks"
    assert measured.base >= 0


def test_a_period_can_be_read_under_other_tables(watched: Watching) -> None:
    period = Period.of(as_if(watched), 0)
    before = period.measure(watched.tables, hg.PlannerSettings(), 1.0)
    wider = {op: table.resized(4, even=False) for op, table in watched.tables.items()}
    after = period.measure(wider, hg.PlannerSettings(), 1.0, leaving=(3,))

    assert np.array_equal(before.situation.units.state_bytes, after.situation.units.state_bytes)
    assert len(after.situation.nodes) == 4
    assert after.situation.nodes.leaving.tolist() == [False, False, False, True]


def test_without_a_clock_loads_are_rows_and_nothing_is_timed(watched: Watching) -> None:
    still = [replace(e, facts=replace(e.facts, now_ms=0)) for e in watched.observed]
    measured = Period.of(still, 0).measure(watched.tables, hg.PlannerSettings(), 1.0)

    assert not measured.timed
    assert measured.situation.units.load.sum() == 240


def test_what_moving_costs_is_learnt_from_moves() -> None:
    cost = MigrationCost()
    assert cost.per_byte == pytest.approx(2e-8)
    facts = EpochFacts(
        epoch=1,
        moved_rows={"op": 50},
        state={"op": {0: StateSize(60, 6_000_000_000), 1: StateSize(40, 4_000_000_000)}},
        moving_ms={"op": (20_000.0, 30_000.0)},
    )

    for _ in range(20):
        cost.learn([Observed(facts, ())])

    assert cost.per_byte == pytest.approx(1e-8, rel=0.01), "50 s for 5 GB, over and over"


@pytest.mark.parametrize("setting", ["slot_state_bytes", "slot_bytes_per_second"])
def test_memory_and_network_may_differ_by_host(watched: Watching, setting: str) -> None:
    """The last slot is on a host with three times as much: alike in use, it has a third of it."""
    period = Period.of(watched.observed, -1)
    slots = next(iter(watched.tables.values())).slots
    hosts = (*["small"] * (slots - 1), "big")
    period = replace(period, seen=replace(period.seen, hosts=hosts))

    def found(value: Any) -> MeasuredUnits:
        return period.measure(watched.tables, hg.PlannerSettings(**{setting: value}), 1.0)

    alike, named = found(10.0), found({"small": 10.0, "big": 30.0})

    assert named.resource == alike.resource != "time"
    factor = np.array([1.0] * (slots - 1) + [3.0])
    assert named.loads == pytest.approx(alike.loads / factor)
    assert named.situation.nodes.capacity == pytest.approx(factor / factor.mean())
    assert "of slots" in named.told
    assert found({"small": 10.0}).loads == pytest.approx(alike.loads), "not named: the least"


@pytest.mark.parametrize(
    "wrong",
    [
        {"slot_state_bytes": 0},
        {"slot_bytes_per_second": -1},
        {"slot_state_bytes": {"a": 0}},
        {"slot_bytes_per_second": {}},
    ],
)
def test_a_capacity_of_nothing_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(DeclarationError):
        hg.PlannerSettings(**wrong)
