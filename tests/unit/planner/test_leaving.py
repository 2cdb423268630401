"""Which slots leave, and what the others are called then."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headgate.planner.leaving import REREAD, choose_leaving, new_order


@given(cost=st.lists(st.integers(0, 20), min_size=2, max_size=7), data=st.data())
def test_of_like_slots_those_leave_that_are_cheapest_to_empty(cost: list[int], data) -> None:
    """The oracle tries every set; a slot that has to be renumbered reads its state once more."""
    slots = len(cost)
    count = data.draw(st.integers(0, slots - 1))

    def price(gone: tuple[int, ...]) -> float:
        stay = [slot for slot in range(slots) if slot not in gone]
        renumbered = [slot for slot in stay if slot >= slots - count]
        return sum(cost[s] for s in gone) + REREAD * sum(cost[s] for s in renumbered)

    found = choose_leaving(np.array(cost, np.float64), np.ones(slots), count)

    assert len(found) == count and list(found) == sorted(found)
    assert price(found) == min(price(gone) for gone in combinations(range(slots), count))


def test_slow_hosts_leave_first_and_whole_if_they_can() -> None:
    hosts = ["a", "b", "c", "a", "b", "c"]
    speed = np.array([1.0, 0.5, 1.0, 1.0, 0.5, 1.0])
    state = np.array([3.0, 9.0, 9.0, 3.0, 9.0, 9.0])

    assert choose_leaving(state, speed, 2, hosts) == (1, 4)
    assert choose_leaving(state, np.ones(6), 2, hosts) == (0, 3)
    assert choose_leaving(state, speed, 3, hosts) == (1, 3, 4), "b, and the cheapest that is left"


def test_who_is_leaving_already_goes_on_leaving() -> None:
    state = np.array([1.0, 2.0, 9.0, 9.0])
    assert choose_leaving(state, np.ones(4), 2, already=(2,)) == (0, 2)


@given(slots=st.integers(1, 9), data=st.data())
def test_those_that_stay_have_the_numbers_without_gaps(slots: int, data) -> None:
    gone = data.draw(st.sets(st.integers(0, slots - 1), max_size=slots - 1))
    order = new_order(slots, tuple(gone)).tolist()
    left = slots - len(gone)

    assert sorted(order) == list(range(slots))
    assert {*order[left:]} == gone
    assert all(order[slot] == slot for slot in range(left) if slot not in gone)
