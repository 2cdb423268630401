"""Planning beside the epochs: one decision at a time, never in the stream's way."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from headgate.commit.facts import EpochFacts, OutcomeFacts, PlanFacts, TuningFacts
from headgate.commit.planning import Decision, Observed, Planning
from headgate.routing.route import TO_OWNER
from headgate.routing.table import RoutingTable, hash_table
from waiting import PATIENCE_S

TABLES = {"op": hash_table(2)}


class Thinker:
    """Answers with what it saw; waits if it is told to, fails if it is told to."""

    statistics_bytes = 4096
    born_local: frozenset[str] = frozenset()

    def __init__(self, before: Callable[[], None] = lambda: None) -> None:
        self.before = before
        self.seen: list[list[int]] = []

    def step(self, observed: Sequence[Observed], tables: Mapping[str, RoutingTable]) -> Decision:
        self.before()
        self.seen.append([o.facts.epoch for o in observed])
        return Decision(plan=PlanFacts(why=f"saw {self.seen[-1]}"))


def epoch(number: int) -> Observed:
    return Observed(EpochFacts(number), ())


def test_between_epochs_a_decision_is_ready_at_once_and_taken_once() -> None:
    planning = Planning(Thinker(), beside=False)

    assert planning.take(2) is None
    planning.observe(epoch(0), TABLES)
    first = planning.take(2)

    assert first is not None and first.plan == PlanFacts(why="saw [0]")
    assert planning.take(2) is None


def test_the_stream_does_not_wait_and_nothing_seen_meanwhile_is_lost() -> None:
    go_on, begun = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        assert go_on.wait(PATIENCE_S)

    planning = Planning(Thinker(wait))
    planning.observe(epoch(0), TABLES)
    assert begun.wait(PATIENCE_S)
    planning.observe(epoch(1), TABLES)
    planning.observe(epoch(2), TABLES)

    assert planning.take(2) is None
    go_on.set()
    assert eventually(planning).plan == PlanFacts(why="saw [0]")
    planning.observe(epoch(3), TABLES)
    assert eventually(planning).plan == PlanFacts(why="saw [1, 2, 3]")
    planning.close()


@pytest.mark.parametrize("beside", [True, False])
def test_a_planner_that_fails_changes_nothing_and_is_told(beside: bool) -> None:
    def fail() -> None:
        raise ValueError("no idea")

    planning = Planning(Thinker(fail), beside=beside)
    planning.observe(epoch(0), TABLES)

    decision = eventually(planning)
    assert decision.tables == {}
    assert decision.plan == PlanFacts(failed="ValueError: no idea")
    planning.close()


def test_a_decision_made_for_other_slots_is_void_but_told() -> None:
    class Mover(Thinker):
        def step(self, observed: Any, tables: Any) -> Decision:
            plan, outcome = PlanFacts(why="moved"), OutcomeFacts(error=0)
            dispatch = {"op": TO_OWNER}
            return Decision(
                tables,
                plan,
                outcome,
                slots=7,
                dispatch=dispatch,
                tuning=TuningFacts(0, rows_per_epoch=9),
            )

    planning = Planning(Mover(), beside=False)
    planning.observe(epoch(0), TABLES)

    decision = planning.take(3)
    assert decision is not None
    assert (dict(decision.tables), decision.slots, decision.dispatch) == ({}, None, None)
    assert decision.outcome == OutcomeFacts(error=0)
    assert decision.tuning is not None and decision.tuning.rows_per_epoch == 9, (
        "sources are told whatever the slots"
    )
    assert decision.plan == PlanFacts(why="moved", overtaken="made for 2 slots, there are 3 now")


def eventually(planning: Planning) -> Decision:
    """The decision under way, when it is done; waits for the thread and not for time."""
    under_way: Any = planning._under_way
    assert under_way is not None
    under_way.exception(PATIENCE_S)
    decision = planning.take(2)
    assert decision is not None
    return decision


def test_what_is_prepared_is_done_before_the_first_decision() -> None:
    order: list[str] = []
    decided = threading.Event()
    planning = Planning(Thinker(before=lambda: (order.append("decided"), decided.set())[0]))

    planning.prepare(lambda: order.append("prepared"))
    planning.observe(epoch(0), TABLES)

    assert decided.wait(PATIENCE_S)
    assert order == ["prepared", "decided"]
    planning.close()
