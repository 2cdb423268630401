"""Slots that come to other hosts: the planner heeds the distances there are now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

import headgate as hg
from headgate.errors import DeclarationError
from headgate.planner.distance import COSTS, Distances
from headgate.planner.placing import KeyLoads, Observation, Pairs, Task, make_placing
from headgate.routing.hashing import mix
from headgate.routing.table import hash_table

SLOTS, KEYS, ROWS = 4, 60, 6_000
BEFORE, AFTER = ("x", "x", "y", "y"), ("x", "y", "x", "y")
TASK = Task(
    operators=("a", "b"),
    edges=(("a", "b"),),
    slots=SLOTS,
    alpha=1.05,
    pins_max=10_000,
    moves_max=10_000,
    born_local=frozenset(),
    memory_epochs=4,
    seed=1,
    distance_costs={"host": 0.1, "rack": 10.0, "elsewhere": 10.0},
)


def seen(epoch: int, hosts: Sequence[str]) -> Observation:
    """Two groups of keys, each worth two slots: a group fits on a host, not in a slot."""
    draw = np.random.default_rng([4, epoch])
    group = draw.integers(0, 2, ROWS) * KEYS
    keys = {name: group + draw.integers(0, KEYS, ROWS) for name in ("a", "b")}
    hashed = {name: mix(found.astype(np.uint64)) for name, found in keys.items()}
    loads = {}
    for name, h in hashed.items():
        found, rows = np.unique(h, return_counts=True)
        none = np.zeros(len(found), np.int32)
        loads[name] = KeyLoads(found, rows.astype(np.float64), none)
    even = np.full(SLOTS, ROWS / SLOTS)
    return Observation(
        epoch=epoch,
        epochs=1,
        rows=ROWS,
        now_ms=0,
        pairs={("a", "b"): Pairs(hashed["a"], hashed["b"], np.ones(ROWS))},
        loads=loads,
        slot_rows={"a": even, "b": even},
        hosts=tuple(hosts),
    )


def off_host(hosts: Sequence[Sequence[str]], task: Task = TASK) -> float:
    """Rows that leave their host in the end, if slots were on these hosts epoch after epoch."""
    placing = make_placing("headgate", task)
    tables = {name: hash_table(SLOTS) for name in ("a", "b")}
    for epoch, now in enumerate(hosts):
        found = seen(epoch, now)
        placing.observe(found, tables)
        proposal = placing.propose(found, tables)
        for name, pins in {} if proposal is None else proposal.pins.items():
            tables[name] = tables[name].pin_hashes(pins.h, pins.slot)
    pairs, home = seen(99, ()).pairs["a", "b"], np.array(hosts[-1])
    a, b = (home[tables[n].route(h)] for n, h in (("a", pairs.a), ("b", pairs.b)))
    return float((a != b).mean())


def test_slots_that_come_to_other_hosts_get_other_keys() -> None:
    stayed = off_host([BEFORE] * 8)
    changed = off_host([BEFORE] * 4 + [AFTER] * 8)

    assert stayed < 0.1
    assert changed < 0.1, "half of the rows, had the planner kept to the hosts of the first epoch"


def test_hosts_that_are_not_known_change_nothing() -> None:
    unknown: tuple[str, ...] = ()

    assert off_host([BEFORE] * 4 + [unknown] * 3 + [BEFORE]) < 0.1


def test_given_costs_are_those_of_the_classes_and_others_are_refused() -> None:
    given = {"host": 1.0, "rack": 5.0, "elsewhere": 50.0}
    far = Distances.of(["x", "x", "y", "z"], {"x": "r", "y": "r", "z": "s"}, given)

    assert far.cost[0].tolist() == [0.0, 1.0, 5.0, 50.0]
    assert Distances.of(["x", "y"]).costs.tolist() == COSTS.tolist()
    assert hg.PlannerSettings(distance_costs=given).distance_costs == given
    for wrong in ({"host": 1.0}, {**given, "rack": 0.5}, {**given, "slot": 0.0}):
        with pytest.raises(DeclarationError, match="give host, rack and elsewhere"):
            hg.PlannerSettings(distance_costs=wrong)


def test_without_costs_the_usual_ones_hold() -> None:
    assert off_host([BEFORE] * 6, replace(TASK, distance_costs={})) < 0.25
