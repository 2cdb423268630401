"""Micro-batches: every tuple is in one epoch, longest first beats the online greedy."""

from __future__ import annotations

import numpy as np
import pytest

from headgate_lab.osg.epochs import EngineCosts, run_epochs, small_tasks, spreadings
from headgate_lab.osg.reach import follower_graph
from headgate_lab.osg.stream import stream

GRAPH = follower_graph(1_000, 15_000)
COST_MS = GRAPH.cost_ms(3)


def runs(k, tuples=8_192):
    what = stream(GRAPH, COST_MS, tuples=tuples, instances=k, load=0.8, seed=1)
    return {
        name: run_epochs(what, spreading, EngineCosts())
        for name, spreading in spreadings(GRAPH.nodes, k).items()
    }


@pytest.mark.parametrize("k", [2, 6])
def test_who_looks_at_the_whole_epoch_is_more_even(k):
    done = runs(k)
    assert all(sum(run.tuples) == 8_192 for run in done.values())
    even = {name: np.mean(run.imbalance[len(run.imbalance) // 2 :]) for name, run in done.items()}
    assert even["all_known"] < even["longest_first"] < even["round_robin"]
    assert even["longest_first"] < 1.01 * even["osg"]
    took = {name: run.completion_ms.mean() for name, run in done.items()}
    assert took["longest_first"] < took["round_robin"]
    assert took["longest_first"] < took["many_small_partitions"]


def test_one_instance_leaves_no_choice_but_the_number_of_tasks():
    done = runs(1, tuples=1_024)
    took = {name: run.completion_ms.mean() for name, run in done.items()}
    assert took["longest_first"] == took["osg"] == took["round_robin"]
    assert took["many_small_partitions"] > took["round_robin"], "each task costs something"


def test_small_tasks_are_taken_by_free_cores():
    spent = np.array([[8.0, 8.0], [1.0, 1.0], [1.0, 1.0], [1.0, 1.0]])
    busy = small_tasks(spent, EngineCosts(task_ms=0.5, tasks_per_core=2))
    assert sorted(busy.tolist()) == [4.5, 8.5]
