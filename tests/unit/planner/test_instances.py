"""Which slots get an operator's instances."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.planner.instances import SLACK, place_instances

OPERATORS = ("a", "b", "c", "d", "e")
counts = st.dictionaries(st.sampled_from(OPERATORS), st.integers(0, 20), min_size=1)
works = st.dictionaries(st.sampled_from(OPERATORS), st.floats(0, 1e3))
talking = st.dictionaries(
    st.tuples(st.sampled_from(OPERATORS), st.sampled_from(OPERATORS)), st.floats(0, 10)
)


@st.composite
def questions(draw):
    slots = draw(st.integers(1, 16))
    hosts = draw(st.just([]) | st.lists(st.sampled_from("wxyz"), min_size=slots, max_size=slots))
    some = st.sets(st.integers(0, 19), min_size=1).map(sorted).map(tuple)
    now = draw(st.dictionaries(st.sampled_from(OPERATORS), some))
    given_ = {"work": draw(works), "talks": draw(talking), "hosts": hosts, "now": now}
    return draw(counts), slots, given_


@given(questions())
def test_as_many_as_wanted_in_ascending_slots_and_always_the_same(question):
    wanted, slots, known = question
    found = place_instances(wanted, slots, **known)

    assert list(found) == list(wanted)
    for op, where in found.items():
        assert len(where) == min(max(1, wanted[op]), slots)
        assert list(where) == sorted(set(where))
        assert where[0] >= 0 and where[-1] < slots
    assert place_instances(wanted, slots, **known) == found


@given(questions())
def test_no_slot_is_left_that_need_not_be(question):
    wanted, slots, known = question
    for op, where in place_instances(wanted, slots, **known).items():
        had = {slot for slot in known["now"].get(op, ()) if slot < slots}
        if len(had) <= len(where):
            assert had <= set(where)
        else:
            assert set(where) <= had


@given(questions())
def test_hosts_have_as_many_of_an_operator_to_within_one(question):
    wanted, slots, known = question
    hosts = known["hosts"] or ["one"] * slots
    room = Counter(hosts)
    for where in place_instances(wanted, slots, **(known | {"now": {}})).values():
        mine = Counter(hosts[slot] for slot in where)
        open_to = [mine[host] for host in room if mine[host] < room[host]]
        if open_to:
            assert max(mine.values()) <= min(open_to) + 1


@given(questions(), st.integers(1, 4))
def test_work_is_even_to_within_two_of_the_heaviest_instances(question, hosts):
    """In a host, and between hosts of one size."""
    wanted, slots, known = question
    slots -= slots % hosts
    if not slots:
        return
    names = [f"host {slot % hosts}" for slot in range(slots)]
    found = place_instances(wanted, slots, work=known["work"], talks=known["talks"], hosts=names)

    each = {op: known["work"].get(op, 0.0) / len(where) for op, where in found.items()}
    load = np.zeros(slots)
    for op, where in found.items():
        load[list(where)] += each[op]
    bound = SLACK * max(each.values()) * (1 + 1e-6) + 1e-9
    of_host = load.reshape(-1, hosts)
    assert np.ptp(of_host, axis=0).max() <= bound
    assert np.ptp(of_host.sum(axis=0)) <= bound


@given(st.lists(st.integers(1, 12), min_size=2, max_size=5), st.integers(1, 12))
def test_operators_in_a_row_overlap_as_much_as_counts_allow(chain, slots):
    wanted = dict(zip(OPERATORS, chain, strict=False))
    names = list(wanted)
    talks = dict.fromkeys(pairwise(names), 1.0)

    found = place_instances(wanted, slots, talks=talks)

    for one, other in talks:
        shared = set(found[one]) & set(found[other])
        assert len(shared) == min(len(found[one]), len(found[other]))


@given(
    wanted=st.tuples(st.integers(1, 12), st.integers(1, 12)),
    work=st.floats(0.01, 100),
    hosts=st.integers(1, 4),
)
def test_two_that_talk_overlap_with_work_and_hosts_too(wanted, work, hosts):
    """Half of the slack is for the partner; instances of one work fit on each other."""
    names = [f"host {slot % hosts}" for slot in range(12)]
    found = place_instances(
        {"a": wanted[0], "b": wanted[1]},
        12,
        work={"a": work * wanted[0], "b": work * wanted[1]},
        talks={("a", "b"): 1.0},
        hosts=names,
    )

    assert len(set(found["a"]) & set(found["b"])) == min(wanted)


def test_those_that_do_not_talk_go_out_of_each_others_way():
    found = place_instances({"a": 6, "b": 6}, 12, work={"a": 6.0, "b": 6.0})

    assert not set(found["a"]) & set(found["b"])


def test_the_middle_of_a_row_is_not_torn_between_its_ends():
    """Placed by work alone, a and c would have been first, apart from each other."""
    talks = {("a", "b"): 1.0, ("b", "c"): 1.0}
    found = place_instances(
        {"a": 6, "b": 6, "c": 6}, 12, work={"a": 6.0, "b": 0.6, "c": 5.0}, talks=talks
    )

    assert found["a"] == found["b"] == found["c"]


@pytest.mark.parametrize("operators", [10, 20, 40])
def test_a_sort_of_the_slots_per_operator(operators, monkeypatch):
    sorts = Counter[str]()
    lexsort = np.lexsort

    def counting(keys):
        sorts["lexsort"] += 1
        return lexsort(keys)

    monkeypatch.setattr(np, "lexsort", counting)
    names = [f"op{i}" for i in range(operators)]
    talks = dict.fromkeys(pairwise(names), 1.0)

    place_instances(dict.fromkeys(names, 5), 12, talks=talks, hosts=list("wxyz") * 3)

    assert sorts["lexsort"] <= 2 * operators
