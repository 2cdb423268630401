"""Executors come and go with the slots of a running flow, on a real cluster of several hosts."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from tests.spark.jvm import DAEMONS, QUICK_JVM
from tests.waiting import PATIENCE_S

from headgate_lab.bench import elastic_driver
from headgate_lab.cluster.namespace_cluster import NamespaceCluster

pytestmark = pytest.mark.cluster

FEW, MANY = 2, 3
CONF = {
    "spark.driver.extraJavaOptions": QUICK_JVM,
    "spark.executor.extraJavaOptions": QUICK_JVM,
    "spark.ui.showConsoleProgress": "false",
}
DYNAMIC = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.initialExecutors": str(MANY),
    "spark.dynamicAllocation.minExecutors": str(FEW),
    "spark.dynamicAllocation.maxExecutors": str(MANY),
    "spark.dynamicAllocation.schedulerBacklogTimeout": "3600s",  # the flow asks, nobody else
}
OPTIONS = {"rows": 2_000, "slots": [FEW, MANY], "warmup": 0, "epochs": 2, "seed": 5}


@pytest.fixture(
    scope="module", params=[{}, pytest.param(DYNAMIC, marks=pytest.mark.slow)], ids=["", "dynamic"]
)
def told(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """What the flow's driver saw: 2 slots on 2 executors, 3 on 3, and back, fed all the time."""
    folder = tmp_path_factory.mktemp("elastic")
    script = elastic_driver.__file__
    with NamespaceCluster(hosts=MANY, conf={**CONF, **request.param}, env=DAEMONS) as cluster:
        done = cluster.run(script, json.dumps(OPTIONS), str(folder), timeout=PATIENCE_S)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(lines[-1].removeprefix("RESULT "))
    return found


def test_nothing_is_lost_and_no_epoch_is_run_twice(told: dict[str, Any]) -> None:
    assert told["equal_to_fold"]
    assert {epoch["attempts"] for epoch in told["epochs"]} == {1}, "a release cost a task"


def test_executors_are_asked_for_warmed_and_given_back(told: dict[str, Any]) -> None:
    assert told["executors"] == [FEW, FEW, MANY, FEW]
    grown, shrunk = [r for r in told["changes"] if r["kind"] == "elastic"]
    assert (grown["before"], grown["slots"], grown["cores"]) == (FEW, MANY, MANY)
    assert grown["read_source"], "a newcomer did not practise reading"
    (newcomer,) = grown["arrived"]
    wider = next(e for e in told["epochs"] if e["slots"] == MANY)
    assert newcomer.rpartition(" ")[2] in wider["hosts"]
    assert (shrunk["before"], shrunk["slots"]) == (MANY, FEW)
    (leaving,) = shrunk["released"]
    assert leaving.rpartition(" ")[2] not in told["epochs"][-1]["hosts"]


def test_slots_follow_the_executors_and_only_what_must_move_does(told: dict[str, Any]) -> None:
    epochs = told["epochs"]
    changed = [(a, b) for a, b in pairwise(epochs) if a["slots"] != b["slots"]]
    assert [(a["slots"], b["slots"]) for a, b in changed] == [(FEW, MANY), (MANY, FEW)]
    assert all(len(set(e["hosts"])) == e["slots"] for e in epochs), "a host per slot"
    assert all(e["slots"] <= e["cores"] <= MANY for e in epochs)
    assert epochs[0]["cores"] == epochs[-1]["cores"] == FEW
    for before, after in changed:
        share = after["moved_rows"] / before["state_rows"]
        assert abs(share - 1 / MANY) < 0.1
    steady = [e for e in epochs if e not in [b for _, b in changed]]
    assert not any(e["moved_rows"] for e in steady)
