"""Schedulers are pure, fill the instance that is done first, and keep Graham's bounds."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.routing import schedule
from headgate.routing.schedule import greedy, longest_first, round_robin

costs = st.lists(st.integers(1, 70), min_size=1, max_size=7)


def alike(times, k):
    return np.repeat(np.array(times, np.float64)[:, None], k, axis=1)


def spent(times, targets, k):
    return np.bincount(targets, np.array(times, np.float64), k)


def shortest(times, k):
    return min(
        spent(times, np.array(choice), k).max() for choice in product(range(k), repeat=len(times))
    )


@settings(deadline=None)
@given(costs, st.integers(1, 3), st.integers(0, 5))
def test_the_busiest_instance_is_within_grahams_bounds(times, k, first):
    """List scheduling is at most 2 - 1/k from the best schedule, longest first 4/3 - 1/(3k)."""
    group = np.arange(len(times))
    best = shortest(times, k)
    for way, bound in ((greedy, 2 - 1 / k), (longest_first, 4 / 3 - 1 / (3 * k))):
        busy = np.zeros(k)
        targets = way(alike(times, k), group, busy, first)
        assert busy == pytest.approx(spent(times, targets, k))
        assert busy.max() <= bound * best + 1e-9


@given(st.lists(st.lists(st.floats(0.01, 70), min_size=3, max_size=3), min_size=1, max_size=40))
def test_a_tuple_goes_where_it_is_done_first(times):
    """Against the definition, for instances that differ."""
    table = np.array(times)
    busy, plain = np.zeros(3), np.zeros(3)
    targets = greedy(table, np.arange(len(table)), busy, 1)
    for i, target in enumerate(targets):
        ends = plain + table[i]
        assert ends[target] == ends.min()
        plain[target] = ends[target]
    assert (busy == plain).all()


@settings(deadline=None)  # the first run loads numba
@given(
    st.integers(1, 6),
    st.integers(0, 7),
    st.integers(0, 2**32 - 1),
    st.sampled_from([greedy, longest_first]),
)
def test_the_compiled_loop_is_the_plain_one(k, first, seed, way):
    draw = np.random.default_rng(seed)
    times, group = draw.uniform(0, 70, (20, k)), draw.integers(0, 20, 300)
    busy = [np.zeros(k), np.zeros(k)]
    plain = way(times, group, busy[0], first)
    order = np.argsort(-times.min(axis=1)[group], kind="stable")
    if way is greedy:
        order = np.arange(300)
    compiled = schedule._compiled()(times, group[order], busy[1], first % k)
    assert (plain[order] == compiled).all()
    assert (busy[0] == busy[1]).all()


@given(costs, st.integers(1, 4), st.integers(0, 9))
def test_online_targets_do_not_depend_on_how_tuples_are_cut(times, k, cut):
    table, group = alike(times, k), np.arange(len(times))
    whole = greedy(table, group, np.zeros(k), 2)
    busy = np.zeros(k)
    parts = [greedy(table, part, busy, 2) for part in (group[:cut], group[cut:])]
    assert (np.concatenate(parts) == whole).all()


def test_equal_times_go_round_from_the_first_instance_on():
    targets = greedy(np.ones((1, 3)), np.zeros(6, np.int64), np.zeros(3), first=1)
    assert targets.tolist() == [1, 2, 0, 1, 2, 0]
    assert round_robin(4, 4, 3).tolist() == [1, 2, 0, 1]


def test_a_slow_instance_gets_less():
    times = np.array([[3.0, 1.0, 1.0]])
    targets = greedy(times, np.zeros(70, np.int64), np.zeros(3))
    assert np.bincount(targets).tolist() == [10, 30, 30]


def test_times_must_be_those_of_the_instances():
    with pytest.raises(ValueError, match="times of 2 instances, but 3"):
        greedy(np.ones((1, 2)), np.zeros(1, np.int64), np.zeros(3))
