"""How busy slots are, and which levels more of them would shorten."""

from __future__ import annotations

import pytest

import headgate as hg
from headgate.commit.facts import EngineFacts, EpochFacts
from headgate.control.demand import held_levels, load_between
from headgate.slot.compile import compile_flow
from headgate.testing import ListSource


def test_levels_of_few_instances_are_not_shortened_by_slots():
    flow = hg.Flow("two")
    rows = flow.source(ListSource("a bigint, b bigint", []), name="in")
    first = rows.key_by("a").process(hg.Count(emit="rows"), name="first")
    first.key_by("b").process(hg.Count(), name="second").to_memory("out")
    program = compile_flow(flow.graph())

    assert held_levels(program, EpochFacts(0)) == set()
    assert held_levels(program, EpochFacts(0, instances={"second": (0,)})) == {2}
    assert held_levels(program, EpochFacts(0, instances={"first": (0,)})) == {1}


def test_time_in_such_levels_is_no_demand_for_slots():
    engine = EngineFacts(job_ms=1_000.0, levels_ms={0: 0.0, 1: 100.0, 2: 900.0})
    before = EpochFacts(0, slots=2, rows=100, engine=engine)
    after = EpochFacts(1, rows=100, now_ms=1_000)

    free, held = (load_between(before, after, 0.0, 2, levels) for levels in ((), {2}))

    assert free is not None and held is not None
    assert free.demand == pytest.approx(2.0)
    assert held.demand == pytest.approx(2 * 0.1 / 0.25)
