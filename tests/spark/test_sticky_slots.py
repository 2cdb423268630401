"""Slots stay on the hosts that the driver chose, on a real cluster of several hosts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.spark.jvm import DAEMONS, QUICK_JVM
from tests.waiting import PATIENCE_S

from headgate_lab.cluster.namespace_cluster import NamespaceCluster

pytestmark = pytest.mark.cluster

SLOTS, EPOCHS, ROWS = 6, 4, 600
CONF = {
    "spark.driver.extraJavaOptions": QUICK_JVM,
    "spark.executor.extraJavaOptions": QUICK_JVM,
    "spark.locality.wait.node": "120s",
    "spark.ui.showConsoleProgress": "false",
}


def test_every_slot_runs_on_its_host_in_every_level_of_every_epoch(tmp_path: Path) -> None:
    """A slot's operators, at both levels and in all epochs, ran where the anchor was put."""
    script = Path(__file__).parent / "programs" / "sticky_flow.py"
    with NamespaceCluster(hosts=3, conf=CONF, env=DAEMONS) as cluster:
        done = cluster.run(script, str(tmp_path), timeout=PATIENCE_S)
        hosts_there = set(cluster.hosts.values())
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, done.stderr[-3000:]
    told = json.loads(lines[-1].removeprefix("RESULT "))

    homes = told["hosts"][0]
    assert all(hosts == homes for hosts in told["hosts"]), "the anchor moved between epochs"
    assert set(homes) == hosts_there, "the driver did not use every host"
    assert told["applied"] == told["rows"] == EPOCHS * ROWS

    ran = [note.split("-")[:4] for note in told["notes"] if not note.startswith("few")]
    assert {(column, epoch) for column, epoch, _, _ in ran} == {
        (column, str(epoch)) for column in ("k1", "k2") for epoch in range(EPOCHS)
    }
    strays = [note for note in ran if homes[int(note[2])] != note[3]]
    assert not strays, f"{len(strays)} of {len(ran)} tasks ran away from home: {strays[:5]}"

    # An operator with two instances has two tasks in its level, at home too.
    assert told["tasks"] == [[SLOTS, SLOTS, 2]] * EPOCHS
    few = {note.split("-")[3] for note in told["notes"] if note.startswith("few")}
    assert few == {homes[slot] for slot in told["few"]}
