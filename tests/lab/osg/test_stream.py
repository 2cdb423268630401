"""The simulation: queues are right, policies are fair, and costs that are known shorten waiting."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.strategies import examples

from headgate_lab.osg.online import Online, OnlineSettings
from headgate_lab.osg.reach import follower_graph
from headgate_lab.osg.stream import POLICIES, Stream, completion_ms, stream

GRAPH = follower_graph(1_000, 15_000)
COST_MS = GRAPH.cost_ms(3)


def drawn(k=4, load=0.9, seed=0, tuples=4_096):
    return stream(GRAPH, COST_MS, tuples=tuples, instances=k, load=load, seed=seed)


@examples(30)
@given(
    st.lists(
        st.tuples(st.floats(0, 5), st.floats(0.1, 9), st.integers(0, 2)), min_size=1, max_size=40
    )
)
def test_completion_times_are_those_of_queues_emptied_by_hand(tuples):
    arrival = np.cumsum([gap for gap, _, _ in tuples])
    spent = np.array([[cost * (j + 1) for j in range(3)] for _, cost, _ in tuples])
    target = np.array([j for _, _, j in tuples], np.int32)
    what = Stream(np.zeros(len(tuples), np.int32), arrival, spent, 0)
    free = [0.0, 0.0, 0.0]
    expected = []
    for i, (_, cost, j) in enumerate(tuples):
        free[j] = max(free[j], arrival[i]) + cost * (j + 1)
        expected.append(free[j] - arrival[i])
    assert completion_ms(what, target) == pytest.approx(expected)


@pytest.mark.parametrize("policy", POLICIES)
def test_policies_are_pure_and_use_all_instances(policy):
    what = drawn(k=3, tuples=2_048)
    target = POLICIES[policy](what)
    assert (target == POLICIES[policy](what)).all()
    assert set(np.unique(target)) == {0, 1, 2}


@pytest.mark.parametrize("policy", POLICIES)
def test_one_instance_leaves_no_choice(policy):
    what = drawn(k=1, tuples=512)
    assert not POLICIES[policy](what).any()


@pytest.mark.parametrize("k", [2, 4, 8])
def test_estimates_beat_round_robin_and_nothing_beats_the_truth(k):
    what = drawn(k=k, tuples=8_192)
    took = {name: completion_ms(what, policy(what)).mean() for name, policy in POLICIES.items()}
    assert took["osg"] < took["round_robin"] and took["osg_paper"] < took["round_robin"]
    assert took["all_known"] == min(took.values())


def test_messages_are_few_and_sketches_fewer():
    what = drawn(k=4, tuples=16_384)
    online = Online(what.author, what.arrival_ms, what.spent_ms)
    online.run()
    assert 4 <= online.sketches_sent <= 80
    assert online.settled <= len(what.author) / 8


def test_settling_debts_is_what_keeps_estimates_near_the_truth():
    what = drawn(k=4, tuples=8_192)

    def mean_ms(settle):
        settings = OnlineSettings(settle=settle, clock=False)
        target = Online(what.author, what.arrival_ms, what.spent_ms, settings).run()
        return completion_ms(what, target).mean()

    assert mean_ms("rows") < min(mean_ms("sketch"), mean_ms("never"))
