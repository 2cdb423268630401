"""Algorithm 1 of Madsen et al. 2017 on a real cluster: load adds a slot and takes one away.

A host for each slot. Who leaves is whoever was cheapest to empty; those that stay keep their hosts,
whatever they are called then.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.spark.jvm import DAEMONS
from tests.spark.programs import adapting_driver
from tests.spark.test_elastic_cluster import CONF
from tests.waiting import PATIENCE_S

from headgate.planner.leaving import new_order
from headgate_lab.cluster.namespace_cluster import NamespaceCluster

pytestmark = pytest.mark.cluster

FEW, MANY = adapting_driver.FEW, adapting_driver.MANY


@pytest.mark.parametrize(
    "planner",
    ["milp", *(pytest.param(name, marks=pytest.mark.slow) for name in ("albic", "headgate"))],
)
def test_slots_follow_the_load_and_executors_the_slots(
    planner: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("adapting")
    with NamespaceCluster(hosts=MANY, conf=CONF, env=DAEMONS) as cluster:
        done = cluster.run(adapting_driver.__file__, planner, str(folder), timeout=PATIENCE_S)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, done.stderr[-3000:]
    told: dict[str, Any] = json.loads(lines[-1].removeprefix("RESULT "))
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for record in told["journal"]:
        by_kind.setdefault(record["kind"], []).append(record)

    assert told["equal_to_fold"]
    assert told["executors"] == [FEW, FEW, MANY, FEW]
    assert not [plan for plan in by_kind["plan"] if "failed" in plan]
    assert {epoch["attempts"] for epoch in by_kind["epoch"]} == {1}, "a release cost a task"
    grown, released = by_kind["scale"]
    assert (grown["before"], grown["slots"]) == (FEW, MANY)
    assert grown["why"].startswith("planned loads: mean ")
    assert (released["before"], released["slots"]) == (MANY, FEW)
    assert "drained, nothing lives there" in released["why"]
    epochs = {epoch["epoch"]: epoch for epoch in by_kind["epoch"]}
    before, after = epochs[released["epoch"] - 1], epochs[released["epoch"]]
    assert not sum(after["moved_rows"].values()), "what is released has been drained before"
    drained = [e for e in range(grown["epoch"], released["epoch"]) if epochs[e]["slots"] == MANY]
    assert any(sum(epochs[e]["moved_rows"].values()) for e in drained)
    stay = new_order(MANY, released["gone"])[:FEW]
    assert after["hosts"] == [before["hosts"][slot] for slot in stay]
    (given_back,) = by_kind["elastic"][-1]["released"]
    assert given_back.rpartition(" ")[2] == before["hosts"][released["gone"][0]]
