"""Which slots operators get, when a change pays, and what is left alone."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.commit.facts import EngineFacts, EpochFacts, StateSize
from headgate.control.instance_advisor import SETTLED, InstanceAdvisor
from headgate.control.tuning_history import Experience
from headgate.planner.tuning.cost_model import EngineCosts, FlowModel, Step, Stream
from headgate.planner.tuning.epochs import EpochModel, EpochSettings

FLOW = FlowModel(
    (
        Step("in", source_rate=1.0, at_source=True),
        Step("a", 1e-3, wait_s=1e-3),
        Step("b", 1e-5),
    ),
    (Stream("in", "a", 1, 10), Stream("a", "b", 1, 10, between_slots=True)),
)
MODEL = EpochModel(
    FLOW, EngineCosts(0.0, 1e-8, task_s=0.1, epoch_s=0.1), 2, 4, cpus=2, slots_seen=4
)


def epoch(number: int = 0, slots: int = 4, **facts: Any) -> EpochFacts:
    engine = EngineFacts(job_ms=1.0, hosts=facts.pop("hosts", ()))
    return EpochFacts(number, slots=slots, engine=engine, **facts)


def settings(slots: int = 4, **instances: int) -> EpochSettings:
    return EpochSettings(slots, 1_000, {}, instances)


def advisor() -> InstanceAdvisor:
    return InstanceAdvisor(Experience())


def test_fewer_tasks_pay():
    asked = advisor().ask(MODEL, epoch(), settings(b=1), 1_000)

    assert asked is not None
    assert list(asked.slots) == ["b"] and len(asked.slots["b"]) == 1
    assert "instances of b 1: epochs of 1,000 rows are expected to take" in asked.why


def test_what_saves_little_is_not_worth_a_move():
    assert advisor().ask(MODEL, epoch(), settings(b=1), 100_000) is None


def test_state_must_be_paid_back():
    state = {"b": {slot: StateSize(1, 10 << 30) for slot in range(4)}}

    assert advisor().ask(MODEL, epoch(state=state), settings(b=1), 1_000) is None


def test_slots_that_an_operator_has_it_keeps():
    has = {"a": (0, 2), "b": (1,)}

    asked = advisor().placed(MODEL, epoch(instances=has), settings(a=3, b=1))

    assert set(asked) == {"a"} and {0, 2} < set(asked["a"]) and len(asked["a"]) == 3


def test_instances_are_spread_over_hosts():
    hosts = ("x", "x", "y", "y")

    asked = advisor().placed(MODEL, epoch(hosts=hosts), settings(a=2, b=1))

    assert {hosts[slot] for slot in asked["a"]} == {"x", "y"}


def test_for_other_slots_only_operators_that_are_not_everywhere_are_named():
    asked = advisor().placed(MODEL, epoch(slots=2), settings(slots=8, a=8, b=2))

    assert set(asked) == {"b"} and len(asked["b"]) == 2


def test_what_did_not_change_belongs_to_somebody_else():
    watching = advisor()
    assert watching.ask(MODEL, epoch(), settings(b=1), 1_000) is not None

    notes = [watching.observe(epoch(n)) for n in range(1, SETTLED + 3)]

    assert [note for note in notes if note] == [
        "instances of b did not change; they are left alone"
    ]
    assert watching.given == {"b": 4}


def test_what_came_is_not_asked_for_again_while_it_comes():
    watching = advisor()
    asked = watching.ask(MODEL, epoch(), settings(b=1), 1_000)
    assert asked is not None
    assert watching.ask(MODEL, epoch(1), settings(b=1), 1_000) is None

    came = epoch(2, instances=dict(asked.slots))

    assert watching.observe(came) == "" and watching.given == {}
    assert watching.ask(MODEL, came, settings(b=1), 1_000) is None  # nothing is gained by it


def test_other_slots_end_the_waiting():
    watching = advisor()
    watching.ask(MODEL, epoch(), settings(b=1), 1_000)

    assert [watching.observe(epoch(n, slots=2)) for n in range(1, 6)] == [""] * 5
    assert watching.given == {}


@pytest.mark.parametrize("given", [{"b": 4}, {"b": 1}])
def test_given_numbers_are_never_asked_for(given):
    watching = advisor()
    watching.given |= given

    assert "b" not in watching.placed(MODEL, epoch(), settings(b=1))
