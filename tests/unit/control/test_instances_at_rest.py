"""The loop closed over instances: many of what waits, few of what is cheap, and then it rests."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.control.tuner import RETUNE_EPOCHS, Tuner
from headgate.planner.tuning.cost_model import EngineCosts
from unit.control.service_world import CHAIN, Cluster, Costs, Lived, Truth, live, program

pytestmark = pytest.mark.no_cover  # thousands of epochs, and the lines of test_instances.py

MORE_SEEDS = [pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3)]
SLOTS, ROWS, EPOCHS = 12, 20_000, 320
COSTS = EngineCosts(2e-5, 0.0, task_s=0.05, epoch_s=0.3)


def run(**options: Any) -> Lived:
    declared, chooses = options.pop("parallelism", {}), options.pop("instances", True)
    cluster = options.get("cluster") or Cluster()
    tuner = Tuner(
        program(declared),
        COSTS,
        cores=cluster.cores,
        slots=SLOTS,
        all_there=True,
        batches=("in->first", "first->call", "call->second", "second->total"),
        instances=chooses,
    )
    return live(tuner, rows=ROWS, epochs=EPOCHS, **options)


def epoch_s(lived: Lived, cluster: Cluster, costs: Costs | None = None) -> float:
    places = {op: lived.instances.get(op, tuple(range(SLOTS))) for op in CHAIN}
    return Truth(costs or Costs(), cluster, SLOTS).epoch_s(ROWS, places)


def alike_s(cluster: Cluster, slots: int, costs: Costs | None = None) -> float:
    """With an instance of every operator in so many slots, but one of "total"."""
    everywhere = tuple(range(slots))
    places = dict.fromkeys(CHAIN, everywhere) | {"total": (0,)}
    return Truth(costs or Costs(), cluster, slots).epoch_s(ROWS, places)


@pytest.mark.parametrize("seed", [1, *MORE_SEEDS])
@pytest.mark.parametrize("task_s", [0.05, 0.1])
def test_what_waits_gets_many_instances_the_others_few_and_it_stays_so(seed, task_s):
    cluster = Cluster(task_s=task_s)

    lived = run(cluster=cluster, seed=seed)

    assert lived.count("call", SLOTS) >= 8
    assert lived.count("first", SLOTS) <= 4 and lived.count("second", SLOTS) <= 4
    assert lived.count("total", SLOTS) == 1
    assert all(epoch < EPOCHS // 2 for epoch, _, _ in lived.changes), lived.changes
    assert len(lived.changes) <= 8, lived.changes
    best_alike = min(alike_s(cluster, n) for n in range(1, SLOTS + 1))
    assert epoch_s(lived, cluster) < best_alike / 1.15


def test_the_reasons_name_operators_and_seconds():
    lived = run()

    first = next(said for said in lived.said if said.instances)
    assert first.epoch == RETUNE_EPOCHS - 1
    assert first.why_instances is not None
    assert "first" in first.why_instances and "epochs of 20,000 rows" in first.why_instances
    told = next(said.settings for said in lived.said if said.settings)
    why = {choice.name: choice.why for choice in told.operators}
    assert "it waits 95% of its time" in why["call"]


def test_what_was_promised_comes_true():
    lived = run(cluster=Cluster(noise=0.0))

    asked = [said for said in lived.said if said.instances]
    promised = float(asked[-1].why_instances.split("to take ")[1].split(" s")[0])
    assert promised == pytest.approx(epoch_s(lived, Cluster()), rel=0.15)


def test_instances_that_were_given_stay():
    lived = run(parallelism={"first": 12, "second": 12})

    assert {op for _, op, _ in lived.changes} <= {"call"}


def test_an_operator_that_somebody_else_holds_is_left_alone_and_that_is_said_once():
    lived = run(refuses=("first",))

    assert [op for _, op, _ in lived.changes].count("first") == 1
    assert lived.notes == ["instances of first did not change; they are left alone"]
    assert lived.count("second", SLOTS) <= 4


def test_state_that_costs_more_to_move_than_it_saves_stays():
    costs = EngineCosts(2e-5, 16e-9, task_s=0.05, epoch_s=0.3)
    tuner = Tuner(program(), costs, cores=12, slots=SLOTS, all_there=True, instances=True)

    lived = live(tuner, rows=ROWS, epochs=64, cluster=Cluster(state_bytes=50 << 30))

    assert lived.changes == []


def test_nothing_changes_where_nothing_is_to_be_chosen():
    assert run(instances=False).changes == []


def test_batches_are_chosen_once():
    lived = run()

    assert set(lived.batch_rows) == {"in->first", "first->call", "call->second", "second->total"}
    assert sum(said.batch_rows is not None for said in lived.said) <= 3


def test_work_that_needs_cores_gets_no_more_instances_than_there_are():
    """Ten times the work of the others, on two processors: two or three instances will do."""
    busy = Costs({"first": 2e-6, "call": 2e-5, "second": 2e-6, "total": 1e-8}, {})

    lived = run(costs=busy)

    assert lived.count("call", SLOTS) <= 4
    assert epoch_s(lived, Cluster(), busy) < alike_s(Cluster(), SLOTS, busy) / 1.3
