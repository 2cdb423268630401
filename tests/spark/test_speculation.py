"""Speculation: Spark runs a slow task a second time, beside the first, on another host.

Needs hosts that differ (Spark starts no twin on the host of the first attempt), so it runs on
network namespaces.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.spark.jvm import DAEMONS, QUICK_JVM
from tests.waiting import PATIENCE_S

from headgate_lab.cluster.namespace_cluster import NamespaceCluster

CONF = {
    "spark.driver.extraJavaOptions": QUICK_JVM,
    "spark.executor.extraJavaOptions": QUICK_JVM,
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.0",
    "spark.locality.wait": "0",
}


@pytest.mark.cluster
def test_two_attempts_of_a_task_at_once_count_as_one(tmp_path: Path) -> None:
    """The first attempt goes on only when its twin is there; both write, one is taken."""
    script = Path(__file__).parent / "programs" / "speculation_driver.py"
    with NamespaceCluster(hosts=2, conf=CONF, env=DAEMONS) as cluster:
        done = cluster.run(script, str(tmp_path), timeout=PATIENCE_S)

    assert done.returncode == 0, done.stderr[-4000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["waited"] and told["twin"], told
    first = [line.split() for line in told["ran"] if line.split()[0] == told["ran"][0].split()[0]]
    assert {attempt for _, slot, attempt in first if slot == "0"} >= {"0", "1"}, told
    assert told["attempts"] == [1, 1], "Spark dealt with it inside one job"
