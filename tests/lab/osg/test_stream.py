"""The simulation: queues are right, policies are fair, and costs that are known shorten waiting."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.strategies import examples

from headgate_lab.osg.online import Online, OnlineSettings
from headgate_lab.osg.reach import follower_graph
from headgate_lab.osg.stream import (
    POLICIES,
    SCHEDULERS,
    Stream,
    completion_ms,
    scheduled,
    stream,
)

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
    assert took["osg"] < min(took["round_robin"], took["power_of_two"], took["load_aware"])
    assert took["osg"] < min(took["osg_paper"], took["osg_cumulated"])
    assert took["all_known"] == min(took.values())


def test_messages_are_few_and_sketches_fewer():
    what = drawn(k=4, tuples=16_384)
    online = Online(what.author, what.arrival_ms, what.spent_ms)
    online.run()
    assert 4 <= online.sketches_sent <= 80
    assert online.settled <= online.messages - online.sketches_sent <= len(what.author) / 8


def test_settling_debts_is_what_keeps_estimates_near_the_truth():
    what = drawn(k=4, tuples=8_192)

    def mean_ms(settle):
        settings = OnlineSettings(settle=settle, clock=False)
        target = Online(what.author, what.arrival_ms, what.spent_ms, settings).run()
        return completion_ms(what, target).mean()

    assert mean_ms("rows") < min(mean_ms("request"), mean_ms("never"))


def test_requests_and_answers_correct_what_was_estimated():
    """The paper's synchronisation: without it, what scheduler and instance think drifts apart."""
    what = drawn(k=4, tuples=8_192)

    def left_ms(settle):
        settings = replace(SCHEDULERS["osg_paper"], settle=settle)
        online = Online(what.author, what.arrival_ms, what.spent_ms, settings)
        target = online.run()
        real = np.bincount(target, what.spent_ms[np.arange(len(target)), target], 4)
        return np.abs(online._busy[0] - real).mean(), online

    settled, online = left_ms("request")
    drifted, _ = left_ms("never")

    assert settled < drifted / 2
    assert online.settled > 0
    assert online.messages <= online.sketches_sent * (1 + 2 * 4)
    assert online.messages >= online.sketches_sent + 2 * 4 * online.settled


def test_estimates_come_near_true_costs_and_know_it():
    what = drawn(k=4, tuples=16_384)
    errors = {}
    for name in SCHEDULERS:
        online = scheduled(what, name)
        assert online.error(COST_MS, GRAPH.shares) == 1.0, "nothing is known yet"
        online.run()
        errors[name] = online.error(COST_MS, GRAPH.shares)

    assert errors["osg"] < 0.5
    assert errors["osg"] < errors["osg_paper"], "each instance has to see every value by itself"


def test_several_schedulers_settle_their_own_tuples_only():
    """If each of several made good for what all had sent, they would overdo it, more each time."""
    what = drawn(k=4, tuples=16_384)

    def mean_ms(settle, schedulers):
        target = scheduled(what, "osg_cumulated", settle=settle, schedulers=schedulers).run()
        return completion_ms(what, target).mean()

    assert mean_ms("request", 4) < 1.2 * mean_ms("never", 4)
    round_robin_ms = completion_ms(what, POLICIES["round_robin"](what)).mean()
    ours = scheduled(what, "osg", schedulers=4).run()
    assert completion_ms(what, ours).mean() < round_robin_ms


def test_instances_that_begin_anew_tell_again_and_again():
    """What the authors' own instances are said to do, and why those of flows forget nothing."""
    what = drawn(k=2, tuples=8_192)
    kept, anew = scheduled(what, "osg_paper"), scheduled(what, "osg_paper", forgets=True)
    kept.run(), anew.run()
    assert anew.sketches_sent > 5 * kept.sketches_sent
    assert anew.error(COST_MS, GRAPH.shares) > kept.error(COST_MS, GRAPH.shares)
