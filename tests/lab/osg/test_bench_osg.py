"""The simulated half of `headgate-lab bench osg`, small: all figures are there and repeatable."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headgate_lab.bench.osg import QUICK, describe, simulate
from headgate_lab.osg.reach import follower_graph
from headgate_lab.osg.recovery import RecoveryOptions
from headgate_lab.osg.stream import POLICIES, SCHEDULERS

SMALL = replace(
    QUICK,
    instances=(1, 2),
    tuples=2_048,
    timed_authors=3,
    recovery=RecoveryOptions(tuples=4_096, seeds=1, policies=("round_robin", "osg")),
)
GRAPH = follower_graph(1_000, 15_000)
COST_MS = GRAPH.cost_ms(3)


def quiet(_line: str) -> None:
    pass


def test_the_fields_are_there_and_equal_options_give_equal_figures():
    found = simulate(GRAPH, COST_MS, SMALL, quiet)
    assert found == simulate(GRAPH, COST_MS, SMALL, quiet)
    assert set(found["speedup_by_k"]) == set(POLICIES)
    ours = found["speedup_by_k"]["osg"]
    assert ours["1"] == 1.0
    assert found["speedup_mean"] == pytest.approx(sum(ours.values()) / 2)
    assert (found["speedup_min"], found["speedup_max"]) == (min(ours.values()), max(ours.values()))
    assert set(found["epochs"]["longest_first"]) == {"1", "2"}
    assert set(found["synchronisation"]["osg"]["request"]) == {"1", "2", "4"}
    assert set(found["deals"]["over_bound"]["drawn"]) == {"100", "1000"}
    assert set(found["timing_error"]) == {"per_row", "vectorised"}
    assert set(found["messages"]) == set(found["error"]) == set(SCHEDULERS)
    assert all(0 < sent["2"] < SMALL.tuples for sent in found["messages"].values())
    assert 0 < found["error"]["osg"]["2"] < 1
    assert set(found["recovery_windows"]) == {"costs", "slow_instance", "both"}


def test_the_workload_is_described_with_real_times():
    facts = describe(GRAPH, COST_MS, SMALL)
    assert facts["nodes"] == 1_000
    assert 0 < facts["measured_ms"]["least"] <= facts["measured_ms"]["most"]
