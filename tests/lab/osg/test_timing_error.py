"""Estimates come near true costs, also of rows that are only timed in company."""

from __future__ import annotations

from headgate_lab.osg.reach import follower_graph
from headgate_lab.osg.timing_error import timing_error

GRAPH = follower_graph(300, 4_000)
COST_MS = GRAPH.cost_ms(3)


def test_errors_fall_with_the_rows_seen_and_sooner_if_rows_are_timed_one_by_one():
    found = timing_error(GRAPH, COST_MS, rows=64_000, epsilon=0.0005)
    assert list(found["per_row"]) == ["4000", "8000", "16000", "32000", "64000"]
    for way in found.values():
        assert way["64000"] < 0.6 * way["4000"], "a wrong model does not confirm itself"
    assert found["per_row"]["64000"] < 0.05
    assert all(found["per_row"][n] < found["vectorised"][n] for n in found["per_row"])
