"""The file of `headgate-lab nexmark --json`: what it tells of a query, whoever could run it."""

from __future__ import annotations

from headgate_lab.nexmark.bench import NexmarkOptions, Rounds, _told
from headgate_lab.nexmark.contestants import Ran
from headgate_lab.nexmark.queries import QUERIES


def test_a_query_tells_rates_of_medians_and_null_where_a_peer_cannot() -> None:
    rounds = Rounds(rows=100, warmup=1)
    for seconds in (1.0, 4.0, 2.0):
        rounds.add("headgate", Ran((50.0, seconds)))
    rounds.add("memory", 8.0)
    rounds.add("rocksdb", 10.0)
    rounds.add("memory", 8.0)

    told = _told(QUERIES["q4"], rounds, True, "right", NexmarkOptions())

    assert told["right"] is True and told["lines"] > 0
    assert (told["rows_per_s"], told["native_rows_per_s"]) == (50.0, 12.5)
    assert told["flink_rows_per_s"] is None and told["over_flink"] is None
    assert (told["over_native"], told["p95_latency_s"]) == (4.0, 2.0)
    assert told["per_core"]["rows_per_s"] == 50.0 / NexmarkOptions().slots
    assert told["rounds"] == {"headgate": 3, "memory": 2, "rocksdb": 1}
