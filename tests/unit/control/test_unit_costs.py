"""Costs of units and speeds of hosts, learnt from times, against the costs that made the times."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import headgate as hg
from headgate.arrays import F64
from headgate.commit.facts import EngineFacts, EpochFacts
from headgate.commit.planning import Observed
from headgate.control.unit_costs import HostSpeeds, UnitCosts
from headgate.control.unit_period import Period
from headgate.errors import DeclarationError
from headgate.routing.space_saving import PairSketch
from headgate.routing.table import bucket_ids
from headgate.slot.statistics import TaskStatistics
from headgate.slot.unit_times import part_of_units

BUCKETS, PARTS, SLOTS = 256, 16, 2
UNITS = bucket_ids(BUCKETS)
HOME = hg.hash_table(SLOTS, BUCKETS).bucket_slots


def timed(epoch: int, cost: F64, rows: F64, noise: float = 0.0) -> Observed:
    """An epoch in which every slot has timed its parts, of units that cost what they do."""
    draw = np.random.default_rng([epoch, 1])
    tasks = []
    for slot in range(SLOTS):
        mine = slot == HOME
        sketch = PairSketch(BUCKETS)
        sketch.update(UNITS[mine], np.zeros(mine.sum(), np.uint64), rows[mine])
        part = part_of_units(UNITS[mine], epoch, PARTS)
        ns = np.bincount(part, 1_000 * rows[mine] * cost[mine], PARTS)
        ns *= np.exp(draw.uniform(-noise, noise, PARTS))
        told = TaskStatistics(slot, loads={"op": sketch})
        told.unit_ns["op"] = tuple(int(x) for x in ns)
        tasks.append(told)
    return Observed(EpochFacts(epoch, slots=SLOTS), tasks)


@pytest.mark.parametrize("seed", range(3))
def test_factors_come_to_the_costs_that_the_times_were_made_of(seed: int) -> None:
    draw = np.random.default_rng(seed)
    rows = draw.integers(50, 500, BUCKETS).astype(np.float64)
    cost = np.where(draw.random(BUCKETS) < 0.05, 20.0, 1.0)
    costs = UnitCosts()
    for epoch in range(25):
        costs.learn([timed(epoch, cost, rows, noise=0.05)], {})

    load = rows * costs.factors("op", UNITS)
    share, real = load / load.sum(), rows * cost / (rows * cost).sum()
    by_rows = rows / rows.sum()
    assert np.abs(share - real).sum() < 0.35 * np.abs(by_rows - real).sum()
    assert (share[cost > 1] > 3 * by_rows[cost > 1]).mean() > 0.8


def test_units_that_are_all_expensive_in_one_slot_are_found() -> None:
    rows, cost = np.full(BUCKETS, 100.0), np.where(HOME == 1, 4.0, 1.0)
    costs = UnitCosts()
    for epoch in range(8):
        costs.learn([timed(epoch, cost, rows)], {})

    factor = costs.factors("op", UNITS)
    assert factor[HOME == 1].mean() == pytest.approx(4 * factor[HOME == 0].mean(), rel=0.3)
    slower = UnitCosts()
    for epoch in range(8):
        slower.learn([timed(epoch, cost, rows)], {1: 0.25})
    assert (slower.factors("op", UNITS) == 1).all(), "it is the host that is slow"


def test_noise_teaches_nothing() -> None:
    rows, costs = np.full(BUCKETS, 100.0), UnitCosts()
    for epoch in range(20):
        costs.learn([timed(epoch, np.ones(BUCKETS), rows, noise=0.08)], {})

    assert (costs.factors("op", UNITS) == 1).all()


def test_a_pause_of_a_clock_is_doubted_until_measurements_agree_again() -> None:
    """One part of slot 0 stands still: what that makes of the slot's load is within the doubt."""
    rows, even, costs = np.full(BUCKETS, 100.0), np.ones(BUCKETS), UnitCosts()
    costs.learn([timed(epoch, even, rows, noise=0.1) for epoch in range(5)], {})
    before = costs.doubt("op", SLOTS)
    paused = timed(5, even, rows, noise=0.1)
    ns = paused.statistics[0].unit_ns["op"]
    paused.statistics[0].unit_ns["op"] = (10 * ns[0], *ns[1:])
    costs.learn([paused], {})

    loads = np.bincount(HOME, rows * costs.factors("op", UNITS))
    off, doubt = abs(loads[0] / loads.mean() - 1), costs.doubt("op", SLOTS)
    assert off > 0.05
    assert 3 * doubt[0] > off
    assert doubt[0] > 2 * before[0]
    assert (3 * before < 0.1).all()
    costs.learn([timed(epoch, even, rows, noise=0.1) for epoch in range(6, 20)], {})
    assert costs.doubt("op", SLOTS)[0] < 0.5 * doubt[0]


def yardsticks(times: dict[str, int], epochs: int) -> list[Observed]:
    hosts = tuple(times)
    facts = EpochFacts(0, slots=len(hosts), engine=EngineFacts(hosts=hosts))
    tasks = [TaskStatistics(slot, yardstick_ns=times[host]) for slot, host in enumerate(hosts)]
    return [Observed(replace(facts, epoch=epoch), tasks) for epoch in range(epochs)]


def test_speeds_are_measured_once_hosts_are_clearly_not_alike() -> None:
    speeds, alike = HostSpeeds({}), HostSpeeds({})
    speeds.learn(yardsticks({"a": 100, "b": 100, "c": 200}, 4))
    assert speeds.of(["a", "b", "c"]).tolist() == [1, 1, 1], "too few to believe"
    speeds.learn(yardsticks({"a": 100, "b": 100, "c": 200}, 4))
    alike.learn(yardsticks({"a": 100, "b": 110, "c": 120}, 20))

    assert speeds.of(["c", "a", "a"]).tolist() == [0.75, 1.5, 1.5], "the middle of both is 1"
    assert speeds.of(["a", "b", "c"]).tolist() == [1, 1, 0.5]
    assert speeds.of(["a", "new"]).tolist() == [1, 1], "a host that nobody has measured"
    assert alike.of(["a", "b", "c"]).tolist() == [1, 1, 1]


def test_given_speeds_are_obeyed() -> None:
    speeds = HostSpeeds({"a": 2.0})
    speeds.learn(yardsticks({"a": 100, "b": 10}, 20))

    assert speeds.of(["a", "b"]).tolist() == [2.0, 1.0]
    with pytest.raises(DeclarationError, match="'b' is 0"):
        hg.PlannerSettings(host_speeds={"b": 0})


def test_loads_are_the_time_of_units_on_a_host_of_speed_one() -> None:
    """Slot 1 is half as fast, and half of its time is a single unit's, which has few rows."""
    rows = np.full(BUCKETS, 10.0)
    odd = int(np.flatnonzero(HOME == 1)[0])
    cost = np.ones(BUCKETS)
    cost[odd] = 127.0
    costs, seen = UnitCosts(), []
    slow = {1: 0.5}
    for epoch in range(60):
        observed = timed(epoch, cost / np.where(HOME == 1, 0.5, 1.0), rows)
        costs.learn([observed], slow)
        facts = replace(observed.facts, now_ms=1_000 * epoch)
        spent = {"op": (12.8, 50.8)}
        seen = [replace(observed, facts=replace(facts, operator_ms=spent))]
    tables = {"op": hg.hash_table(SLOTS, BUCKETS)}
    period = Period.of(seen, seen[0].facts.now_ms - 1_000)

    measured = period.measure(
        tables, hg.PlannerSettings(), 1.0, costs=costs, speeds=np.array([1.0, 0.5])
    )

    assert measured.resource == "time"
    load = measured.situation.units.load
    assert load.sum() == pytest.approx(3.82), "12.8 ms, and 50.8 that are worth 25.4, of a second"
    assert load[odd] == pytest.approx(1.27, rel=0.25)
    assert measured.loads == pytest.approx([1.28, 5.08], rel=0.1)
    assert measured.situation.nodes.capacity.tolist() == [1.0, 0.5]
    assert "the bottleneck is time 3 %" in measured.told
    assert "speeds of slots 1, 0.5" in measured.told
