"""Batches as small as nearly the best allows, within memory, and never in vain."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.planner.tuning.batches import (
    COPIES,
    SMALL_BYTES,
    SPARE,
    batch_rows_max,
    choose_batches,
    rounded_up,
)
from headgate.planner.tuning.cost_model import EngineCosts
from headgate.planner.tuning.epoch_times import Traffic

COSTS = EngineCosts(20e-6, 16e-9, message_bytes_max=8 << 20)

streams = st.builds(
    Traffic,
    st.just(""),
    st.floats(1, 5_000),
    st.integers(1, 16),
    st.integers(1, 16),
    st.floats(0, 1e8),
)
several = st.lists(streams, min_size=1, max_size=5).map(
    lambda found: [t._replace(stream=f"s{n}") for n, t in enumerate(found)]
)


def largest(traffic: list[Traffic], tasks: int = 4, memory: int = 256 << 20) -> dict[str, int]:
    return {t.stream: batch_rows_max(COSTS, t.row_bytes, tasks, memory) for t in traffic}


def messages_s(traffic: list[Traffic], batch: dict[str, int], cpus: int) -> float:
    """What messages take of an epoch beyond one for each pair of tasks."""
    spent = 0.0
    for t in traffic:
        more = max(0.0, t.rows / batch[t.stream] - t.senders * t.targets)
        spent += more * COSTS.message_s * (0.5 / min(t.senders, cpus) + 0.5 / min(t.targets, cpus))
    return spent


@given(traffic=several, epoch_s=st.floats(0.1, 100), cpus=st.integers(1, 16))
def test_messages_take_no_more_than_was_allowed_and_batches_fit(traffic, epoch_s, cpus):
    most = largest(traffic)
    chosen = choose_batches(traffic, COSTS, epoch_s=epoch_s, cpus=cpus, largest=most)

    assert all(1 <= chosen[name] <= most[name] for name in most)
    free = [t for t in traffic if chosen[t.stream] < most[t.stream]]
    assert messages_s(free, chosen, cpus) <= SPARE * epoch_s * 1.01


@given(traffic=several, epoch_s=st.floats(0.1, 100))
def test_no_batch_is_larger_than_a_pair_of_tasks_fills(traffic, epoch_s):
    chosen = choose_batches(traffic, COSTS, epoch_s=epoch_s, cpus=4, largest=largest(traffic))

    for t in traffic:
        assert chosen[t.stream] <= rounded_up(t.rows / (t.senders * t.targets))


def test_where_every_millisecond_counts_a_pair_has_one_batch():
    traffic = [Traffic("a->b", 100.0, 2, 4, 80_000.0)]

    slow = choose_batches(traffic, COSTS, epoch_s=1.0, cpus=2, largest=largest(traffic), spare=0.0)

    assert slow == {"a->b": 10_000}


def test_half_the_batches_would_cost_twice_as_much():
    """A million rows of 16 bytes: some thousands share a message, not half a million."""
    traffic = [Traffic("a->b", 16.0, 2, 2, 1e6)]
    chosen = choose_batches(traffic, COSTS, epoch_s=1.0, cpus=2, largest=largest(traffic))

    assert 2_000 <= chosen["a->b"] <= 4_000
    half = {"a->b": chosen["a->b"] // 2}
    assert messages_s(traffic, half, 2) > SPARE


def test_of_two_streams_the_one_with_large_rows_gets_the_smaller_batches():
    traffic = [Traffic("thin", 100.0, 4, 4, 1e7), Traffic("fat", 10_000.0, 4, 4, 1e7)]
    chosen = choose_batches(traffic, COSTS, epoch_s=100.0, cpus=4, largest=largest(traffic))

    assert chosen["fat"] < chosen["thin"]
    weight = {"thin": 100.0, "fat": 10_000.0}
    assert chosen["thin"] / chosen["fat"] == pytest.approx(
        math.sqrt(weight["fat"] / weight["thin"]), rel=0.1
    )


def test_small_streams_are_not_cut_to_single_rows():
    chosen = choose_batches(
        [Traffic("a->b", 20.0, 1, 1, 200.0), Traffic("c->d", 20.0, 1, 1, 1e6)],
        COSTS,
        epoch_s=100.0,
        cpus=2,
        largest={"a->b": 10**6, "c->d": 10**6},
    )

    assert chosen["a->b"] == 200
    assert chosen["c->d"] == rounded_up(SMALL_BYTES / 20.0)


def test_tuples_on_their_way_stay_within_memory():
    assert batch_rows_max(COSTS, 1_000.0, 2, 256 << 20) == (8 << 20) // 1_000
    assert batch_rows_max(COSTS, 1_000.0, 64, 256 << 20) == (256 << 20) // (COPIES * 64) // 1_000
    assert batch_rows_max(COSTS, 1e9, 64, 1) == 1


@given(rows=st.floats(0, 1e12))
def test_rounding_is_up_and_by_a_tenth_at_most(rows):
    assert rows * (1 - 1e-6) <= rounded_up(rows) <= max(1.0, rows) * 1.1 + 1
