"""Policies and operators with instances in some slots only: plans keep to these slots."""

from __future__ import annotations

import numpy as np
import pytest
from tests.unit.control.instance_world import World, groups, loop_of

import headgate as hg
from headgate.commit.planning import Decision

SLOTS = 4
ROWS = groups(2_000)
OVERLAP = {"a": (0, 1, 2), "b": (1, 2, 3)}


# --- keys -----------------------------------------------------------------------------------
@pytest.mark.parametrize("born_local", [True, False])
def test_keys_are_brought_together_where_both_operators_are(born_local: bool) -> None:
    manager = hg.Manager(born_local=born_local, alpha=1.1)
    world = World(loop_of(manager, SLOTS), SLOTS, OVERLAP, ROWS)
    before = world.locality
    world.run(12)

    assert world.locality > before + 0.2
    assert not any(world.moved[6:]), "the same rows again move nothing"
    for operator in ("a", "b"):
        loads = world.loads(operator)
        assert loads.max() < 1.3 * loads.mean() and loads.sum() == len(ROWS)


def test_other_instances_are_another_problem_for_a_planner_of_keys() -> None:
    world = World(loop_of(hg.Manager(alpha=1.1), SLOTS), SLOTS, {}, ROWS)
    world.run(6)
    everywhere = world.locality
    world.follow(Decision(instances={"b": (3,)}))
    world.run(6)

    assert everywhere > 0.8
    assert set(np.unique(world.tables["b"].pinned_slots)) == {3}
    assert world.locality == pytest.approx(0.25, abs=0.1), "a slot of a has room for a quarter"
