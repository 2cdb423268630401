"""Two racks with a slow trunk between them: a manager that is told of them spares the trunk."""

from __future__ import annotations

import json
import select
from pathlib import Path
from typing import Any

import pytest
from tests.spark.jvm import DAEMONS, QUICK_JVM
from tests.spark.programs.rack_flow import MEASURED, ROWS, WIDE
from tests.waiting import PATIENCE_S

from headgate_lab.cluster.namespace_cluster import NamespaceCluster, stop_driver

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

CONF = {
    "spark.driver.extraJavaOptions": QUICK_JVM,
    "spark.executor.extraJavaOptions": QUICK_JVM,
    "spark.locality.wait.node": "120s",  # no slot leaves its host
    "spark.ui.showConsoleProgress": "false",
}
HOSTS = ("host1", "host2", "host3", "host4")
PAIRS = (("host1", "host2"), ("host1", "host3"), ("host1", "host4"))  # those on the left
LAYOUTS = [{host: "left" if host in pair else "right" for host in HOSTS} for pair in PAIRS]


def test_a_manager_that_is_told_of_racks_sends_half_as_much_over_the_trunk(tmp_path: Path) -> None:
    """A plan that is blind may be lucky: two hosts of a group share a rack once in three times. So
    it is measured with each of the three pairs of hosts on the left."""
    script = Path(__file__).parent / "programs" / "rack_flow.py"
    with NamespaceCluster(
        hosts=len(HOSTS), racks=LAYOUTS[0], trunk_mbit=100, memory="640m", conf=CONF, env=DAEMONS
    ) as cluster:
        racks = [{cluster.hosts[host]: rack for host, rack in by.items()} for by in LAYOUTS]
        log = tmp_path / "driver.log"
        process = cluster.start(script, str(tmp_path), json.dumps(racks), log=log)
        carried, facts = [], []
        try:
            for layout in (LAYOUTS[0], *LAYOUTS):
                assert answer(process, log)["said"] == "ready"
                cluster.move_to_racks(layout)
                before = over_trunks(cluster)
                go_on(process)
                facts.append(answer(process, log))
                carried.append(over_trunks(cluster) - before)
                go_on(process)
        finally:
            stop_driver(process)
    told, *blind = carried
    found = carried, facts

    assert [fact["said"] for fact in facts] == ["told", "blind", "blind", "blind"]
    assert all(fact["counted"] == fact["expected"] for fact in facts)
    assert sum(blind) / 3 > 0.2 * MEASURED * ROWS * WIDE, found
    assert told <= sum(blind) / 3 / 2, found
    assert all(sent > fact["elsewhere"] for sent, fact in zip(carried, facts, strict=True)), found


def over_trunks(cluster: NamespaceCluster) -> int:
    return sum(cluster.bytes_from_rack(rack) for rack in ("left", "right"))


def answer(process: Any, log: Path) -> dict[str, Any]:
    ready, _, _ = select.select([process.stdout], [], [], PATIENCE_S)
    line = process.stdout.readline() if ready else ""
    assert line, f"no answer:\n{log.read_text()[-3000:]}"
    found: dict[str, Any] = json.loads(line)
    return found


def go_on(process: Any) -> None:
    process.stdin.write("\n")
    process.stdin.flush()
