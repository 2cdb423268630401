"""Files in folders that name the first key, or its shard, are read on the hosts of its slots."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.spark.jvm import DAEMONS
from tests.spark.programs.first_hop_flow import KEYS, ROWS, SLOTS, WAYS, WIDE
from tests.spark.test_racks import CONF, answer, go_on

from headgate_lab.cluster.namespace_cluster import NamespaceCluster, stop_driver

pytestmark = pytest.mark.cluster


def test_rows_do_not_leave_the_host_that_reads_them(tmp_path: Path) -> None:
    script = Path(__file__).parent / "programs" / "first_hop_flow.py"
    with NamespaceCluster(hosts=SLOTS, memory="640m", conf=CONF, env=DAEMONS) as cluster:
        log = tmp_path / "driver.log"
        process = cluster.start(script, str(tmp_path), log=log)
        sent = {}
        try:
            for name in WAYS:
                assert answer(process, log)["said"] == "ready"
                before = sum(cluster.bytes_sent(host) for host in cluster.hosts)
                go_on(process)
                told = answer(process, log)
                sent[name] = sum(cluster.bytes_sent(host) for host in cluster.hosts) - before
                assert told["counts"] == {str(key): ROWS for key in range(KEYS)}
                assert told["hosts"] == SLOTS
                go_on(process)
        finally:
            stop_driver(process)

    rows = KEYS * ROWS * WIDE
    assert sent["plain"] > 0.5 * rows, sent
    assert sent["named"] < sent["plain"] / 4, sent
    assert sent["shards"] < sent["plain"] / 4, sent
