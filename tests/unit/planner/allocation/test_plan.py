"""Why units move: lines that are true of the plan they belong to."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from headgate.planner.allocation import plan as plans
from headgate.planner.allocation.model import Nodes, Situation, Traffic, Units
from headgate.planner.allocation.plan import Limits, make_allocator, reasons_for
from headgate.planner.distance import Distances
from unit.planner.allocation.clusters import airline


def cluster(load, home, nodes, traffic=None):
    n = len(load)
    units = Units(("op",), np.zeros(n, np.int32), np.array(load, float), np.ones(n))
    return Situation(units, nodes, np.array(home, np.int32), traffic or Traffic.none())


def told(situation, node, **how):
    return reasons_for(situation, np.array(node, np.int32), **how)


@pytest.mark.parametrize("planner", ["milp", "flux", "headgate", "albic"])
def test_every_move_has_a_reason_that_does_not_contradict_itself(planner):
    plan = make_allocator(planner).plan(airline(1, nodes=8), Limits(10_000.0, 5.0, seconds=0.5))

    assert plan.migrations
    assert len(plan.reasons) == plan.migrations
    assert all(", " in line for line in plan.reasons)
    for line in plan.reasons:
        if found := re.search(r"would have ([\d.]+) % of the mean, node \d+ ([\d.]+) %", line):
            assert float(found[1]) >= float(found[2]), line


def test_the_heaviest_units_are_told_first_and_the_rest_is_counted(monkeypatch):
    monkeypatch.setattr(plans, "REASONS_MAX", 2)
    lines = told(cluster([1, 5, 3, 2], [0] * 4, Nodes.alike(2)), [1, 1, 1, 0])

    assert [line.split(":")[0] for line in lines[:2]] == ["op[1]", "op[2]"]
    assert lines[2:] == ("and 1 more",)


def test_loads_are_judged_as_planned():
    """Node 1 was the fuller one; after what leaves it, it is the emptier one."""
    situation = cluster([4, 2, 9], [0, 0, 1], Nodes.alike(3))
    lines = told(situation, [0, 1, 2])

    assert lines == (
        "op[2]: node 1 -> 2, evens loads: without it node 1 would have 220.0 % of the mean, "
        "node 2 0.0 %",
        "op[1]: node 0 -> 1, evens loads: without it node 0 would have 120.0 % of the mean, "
        "node 1 0.0 %",
    )


def test_units_that_change_places_are_told_as_an_exchange():
    situation = cluster([4, 5], [0, 1], Nodes.alike(2))

    assert told(situation, [1, 0])[1].endswith("evens loads: without it node 0 would have "
                                               "200.0 % of the mean, node 1 0.0 %")  # fmt: skip
    uneven = cluster([1, 5, 6], [0, 1, 1], Nodes.alike(2))
    assert told(uneven, [1, 0, 1])[1] == "op[0]: node 0 -> 1, in exchange for what comes to node 0"


@pytest.mark.parametrize(
    ("node", "words"),
    [(1, "stay on its node"), (2, "stay on its host"), (3, "stay in its rack")],
)
def test_rows_that_are_nearer_are_the_reason_whatever_the_loads(node, words):
    distances = Distances.of(["a", "b", "b", "c"], {"a": "r", "b": "s", "c": "s"})
    nodes = replace(Nodes.alike(4), distances=distances)
    situation = cluster(
        [1, 1], [0, 1], nodes, Traffic(np.array([0]), np.array([1]), np.array([70.0]))
    )

    assert told(situation, [node, 1]) == (
        f"op[0]: node 0 -> {node}, 70 rows of it {words}, 0 before",
    )
    assert "evens" in told(situation, [2, 1], for_rows=False)[0]


def test_a_node_that_leaves_is_reason_enough():
    situation = cluster([1, 1], [0, 1], Nodes.alike(2, leaving=(0,)))

    assert told(situation, [1, 1]) == ("op[0]: node 0 -> 1, node 0 is to be removed",)


def test_a_plan_aims_at_the_limit_without_the_chance_in_it_but_does_not_follow_chance() -> None:
    assert Limits(distance_max_pct=5.0).aim_pct == 5.0
    assert Limits(distance_max_pct=5.0, noise_pct=3.0).aim_pct == 4.0
    assert Limits(distance_max_pct=30.0, noise_pct=30.0).aim_pct == 10.0
