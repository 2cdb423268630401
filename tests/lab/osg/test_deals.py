"""Rows per epoch: nobody beats the bound, costs help where rows are few, debts and talk do not."""

from __future__ import annotations

import numpy as np
import pytest

from headgate_lab.osg.deals import DEALERS, DealOptions, as_storm, bound_ms, deal, in_turn
from headgate_lab.osg.reach import follower_graph

GRAPH = follower_graph(1_000, 15_000)
COST_MS = GRAPH.cost_ms(3)
OPTIONS = DealOptions(rows=(100, 1_000), learn_rows=20_000, epochs=6, rows_in_all=0)


@pytest.fixture(scope="module")
def found():
    return deal(GRAPH, COST_MS, (1, 4), OPTIONS)


def test_the_bound_is_the_even_share_or_the_longest_row():
    assert bound_ms(np.array([1.0, 2.0, 3.0]), 2) == 3.0
    assert bound_ms(np.array([1.0, 2.0, 3.0, 4.0]), 2) == 5.0


def test_in_turn_keeps_all_rows_and_alternates():
    drawn = np.array([3, 0, 1, 2, 0, 3], np.int32)
    weight = np.array([1.0, 9.0, 2.0, 8.0])
    turned = in_turn(drawn, weight)
    assert sorted(turned.tolist()) == sorted(drawn.tolist())
    assert (weight[turned[0::2]] >= weight[turned[1::2]].max()).all()


@pytest.mark.parametrize("rows", ["100", "1000"])
@pytest.mark.parametrize("stream", ["drawn", "interleaved"])
def test_nobody_is_below_the_bound_and_longest_first_is_next_to_it(found, stream, rows):
    over = found["over_bound"][stream][rows]
    assert set(over) == {*DEALERS, "small_partitions"}
    assert all(by_k["4"] >= 1.0 for by_k in over.values())
    assert all(over[name]["1"] == pytest.approx(1.0) for name in DEALERS)
    others = set(DEALERS) - {"longest_first", "online", "paper", "means_known"}
    assert over["longest_first"]["4"] < min(over[name]["4"] for name in others)
    assert over["longest_first"]["4"] < 1.05


@pytest.mark.parametrize("rows", ["100", "1000"])
def test_estimates_cost_little_beside_what_nobody_can_know(found, rows):
    over = found["over_bound"]["drawn"][rows]
    assert over["longest_first"]["4"] < over["means_known"]["4"] + 0.015


def test_the_gain_over_round_robin_shrinks_as_epochs_grow(found):
    def gain(rows):
        over = found["over_bound"]["drawn"][rows]
        return over["round_robin"]["4"] / over["longest_first"]["4"]

    assert gain("100") > gain("1000") > 0.98


def test_schedulers_need_not_talk_and_debts_of_other_epochs_do_not_help(found):
    alone, four = (found["schedulers"][n]["1000"]["4"] for n in ("1", "4"))
    assert four < alone + 0.02
    none, settled = (found["debts"][debt]["1000"]["4"] for debt in ("none", "settled"))
    assert none <= settled


def test_a_load_aware_scheduler_sees_queues_of_the_epoch_only():
    target = as_storm(np.zeros(1_000, np.int32), 4, None, 1)
    assert np.bincount(target, minlength=4).min() > 150
