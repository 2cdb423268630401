"""Split or by key: the estimate of partials, the costs, and a choice that does not waver."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.planner.hot_keys import (
    CLEARLY,
    HELD_EPOCHS,
    ROWS_PER_MERGE,
    Seen,
    SplitOrKey,
    excess,
    partials_expected,
)
from strategies import examples

BY_KEY = Seen(1000.0, 0.0, remote_rows=800.0, excess_rows=100.0, merge_rows=40.0)


@examples(50)
@given(
    keys=st.integers(1, 60),
    tasks=st.integers(1, 8),
    rows=st.integers(1, 600),
    seed=st.integers(0, 99),
)
def test_partials_are_distinct_keys_per_task(keys: int, tasks: int, rows: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    weight = rng.exponential(1.0, keys)
    drawn = [
        rng.choice(keys, tasks * rows, p=weight / weight.sum()).reshape(tasks, rows)
        for _ in range(30)
    ]
    counted = [sum(len(np.unique(task)) for task in epoch) for epoch in drawn]

    expected = partials_expected(weight, float(tasks * rows), tasks)

    spread = np.std(counted) / np.sqrt(len(counted))
    assert expected == pytest.approx(np.mean(counted), abs=6 * spread + 0.02 * np.mean(counted))


def test_partials_without_rows_or_knowledge() -> None:
    assert partials_expected(np.array([1.0]), 0.0, 3) == 0
    assert partials_expected(np.empty(0), 50.0, 3) == 50  # every row may be a key of its own
    assert partials_expected(np.array([5.0]), 50.0, 3) == pytest.approx(3)
    assert partials_expected(np.ones(10_000), 60.0, 3) == pytest.approx(60, rel=0.01)


@given(st.lists(st.integers(0, 1000), max_size=9))
def test_excess_is_what_all_would_do_more_if_each_did_as_the_busiest(loads: list[int]) -> None:
    assert excess(loads) == sum(max(loads) - load for load in loads)


@examples(80)
@given(
    remote=st.floats(0, 1000), uneven=st.floats(0, 3000), merges=st.floats(0, 1000),
    producers=st.floats(0, 500),
)  # fmt: skip
def test_it_splits_if_partials_cost_clearly_less_than_travel_and_skew(
    remote: float, uneven: float, merges: float, producers: float
) -> None:
    choice = SplitOrKey()
    choice.observe(Seen(1000.0, producers, remote, uneven, merges))

    reason = choice.decide()

    pays = ROWS_PER_MERGE * merges + producers < CLEARLY * (remote + uneven)
    assert choice.split == pays
    assert (reason is not None and reason.startswith("split:")) == pays
    assert choice.decide() is None  # told once


def test_a_choice_is_held_measured_and_taken_back_when_keys_become_many() -> None:
    choice = SplitOrKey()
    choice.observe(BY_KEY)
    assert choice.decide() == (
        "split: 80 rows' worth of partials and skew an epoch, against 900 of travel and skew by key"
    )
    told = []
    for _ in range(12):
        choice.observe(Seen(1000.0, 0.0, merge_rows=950.0))
        told.append(choice.decide())
        if not choice.split:
            break

    assert told[: HELD_EPOCHS - 1] == [None] * (HELD_EPOCHS - 1)
    assert told[-1] is not None and told[-1].startswith("by key again: ")
    choice.observe(Seen(1000.0, 0.0, 800.0, 100.0, merge_rows=950.0))
    assert choice.decide() is None


def test_rows_that_stay_local_anyway_are_no_reason_to_split() -> None:
    choice = SplitOrKey()
    choice.observe(Seen(1000.0, 0.0, remote_rows=20.0, excess_rows=10.0, merge_rows=100.0))
    assert choice.decide() is None and not choice.split


def test_epochs_without_rows_say_nothing() -> None:
    choice = SplitOrKey()
    choice.observe(Seen(0.0, 0.0))
    assert choice.decide() is None
    choice.observe(Seen(10.0, 0.0, 5.0, 1.0))  # nothing is known of the other way
    assert choice.decide() is None
