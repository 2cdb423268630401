"""The manager, message by message: nothing is said before it is saved, nothing done too early."""

from __future__ import annotations

import random
from typing import Any

import pytest

from headgate_lab.simulator.manager import Manager, Phase
from headgate_lab.simulator.message import (
    AckReconf,
    Boot,
    Done,
    GetMetrics,
    Hello,
    Lost,
    Part,
    Propagate,
    ReconfigurationDue,
    Reconnect,
    Restore,
    Restored,
    Resume,
    Resumed,
    Save,
    Send,
    SendMetrics,
    SendReconf,
    SnapshotDue,
    SnapshotPart,
    TakeSnapshot,
    Welcome,
)
from headgate_lab.simulator.record import Record, Snapshot
from headgate_lab.simulator.shape import MANAGER, Wiring, draw_shape
from headgate_lab.simulator.workload import SeededPlanner, first_plan

WIRING = Wiring(draw_shape("bridge", random.Random(3)))
EVERYONE = WIRING.instances
PLAN = first_plan(WIRING)
EMPTY = Part(0, {}, PLAN.routers, 0, 0, ())
RECORD = Record(PLAN, PLAN, Snapshot(0, PLAN, dict.fromkeys(EVERYONE, EMPTY)))


def make(record: Record = RECORD) -> Manager:
    return Manager(WIRING, record, SeededPlanner(random.Random(5)))


def all_say(manager: Manager, message: Any) -> list[Any]:
    """Every instance says the same; the answer to the last, after silence to the others."""
    for instance in EVERYONE[:-1]:
        assert manager.on(instance, message) == []
    return manager.on(EVERYONE[-1], message)


def kinds(instructions: list[Any]) -> list[str]:
    """Names of the instructions, sends by message, runs of equal ones as one."""
    names = [type(i.message if isinstance(i, Send) else i).__name__ for i in instructions]
    return [n for n, before in zip(names, [None, *names]) if n != before]


def installing() -> Manager:
    manager = make()
    manager.on(MANAGER, ReconfigurationDue())
    all_say(manager, SendMetrics(1, {}))
    return manager


def test_the_six_steps() -> None:
    manager = make()

    asked = manager.on(MANAGER, ReconfigurationDue())
    assert asked == [Send(to, GetMetrics(1)) for to in EVERYONE]
    offered = all_say(manager, SendMetrics(1, {}))
    assert kinds(offered) == ["Save", "SendReconf"]
    assert offered[0].record.target.id == 1
    begun = all_say(manager, AckReconf(1))
    assert begun == [Send(to, Propagate(1)) for to in WIRING.roots]
    ended = all_say(manager, Done(1))
    assert kinds(ended) == ["Save"]
    assert ended[0].record.base is ended[0].record.target
    assert manager.phase is Phase.IDLE


def test_send_and_receive_lists_of_siblings_mirror_each_other() -> None:
    manager = make()
    manager.on(MANAGER, ReconfigurationDue())
    offered = all_say(manager, SendMetrics(1, {}))[1:]
    lists = {i.to: i.message.handover for i in offered}

    for address, mine in lists.items():
        for slot, units in mine.send.items():
            assert lists[WIRING.siblings[address.operator][slot]].receive[address.slot] == units


def test_a_second_plan_waits_for_the_end_of_the_first() -> None:
    manager = installing()

    assert manager.on(MANAGER, ReconfigurationDue()) == []
    all_say(manager, AckReconf(1))
    assert kinds(all_say(manager, Done(1))) == ["Save", "GetMetrics"]


def test_a_snapshot_waits_for_the_end_of_a_plan_and_a_plan_for_the_end_of_a_snapshot() -> None:
    manager = installing()

    assert manager.on(MANAGER, SnapshotDue()) == []
    all_say(manager, AckReconf(1))
    assert kinds(all_say(manager, Done(1))) == ["Save", "TakeSnapshot"]
    assert manager.on(MANAGER, ReconfigurationDue()) == []
    finished = all_say(manager, SnapshotPart(1, EMPTY))
    assert kinds(finished) == ["Save", "GetMetrics"]
    assert finished[0].record.snapshot.plan.id == 1


def test_parts_of_a_snapshot_that_was_given_up_are_ignored() -> None:
    manager = make()
    begun = manager.on(MANAGER, SnapshotDue())
    assert begun[1:] == [Send(to, TakeSnapshot(1)) for to in WIRING.roots]

    again = make(begun[0].record)
    again.on(MANAGER, Boot())
    all_say(again, Welcome())
    assert all_say(again, SnapshotPart(1, EMPTY)) == []
    assert again.on(MANAGER, SnapshotDue())[1].message == TakeSnapshot(2)


def test_a_restarted_manager_offers_the_saved_plan_again() -> None:
    saved = installing().record
    again = make(saved)

    booted = again.on(MANAGER, Boot())
    assert kinds(booted) == ["Save", "Reconnect", "Hello"]
    assert booted[1] == Reconnect(saved.connection + 1)
    offered = all_say(again, Welcome())
    assert kinds(offered) == ["SendReconf"]
    assert {i.message.plan for i in offered} == {1}


def test_it_ends_a_plan_that_some_had_finished_before_it_was_restarted() -> None:
    again = make(installing().record)
    again.on(MANAGER, Boot())
    all_say(again, Welcome())
    for instance in EVERYONE[:-1]:
        again.on(instance, AckReconf(1))
        again.on(instance, Done(1))

    assert kinds(again.on(EVERYONE[-1], AckReconf(1))) == ["Propagate"]
    assert kinds(again.on(EVERYONE[-1], Done(1))) == ["Save"]


def test_a_crash_before_the_plan_is_saved_leaves_nothing_to_finish() -> None:
    manager = make()
    manager.on(MANAGER, ReconfigurationDue())
    again = make(RECORD)
    again.on(MANAGER, Boot())

    assert all_say(again, Welcome()) == []
    assert again.phase is Phase.IDLE


def test_a_lost_instance_brings_everybody_back_under_a_new_generation() -> None:
    manager = installing()

    out = manager.on(MANAGER, Lost(EVERYONE[2]))
    assert kinds(out) == ["Save", "Reconnect", "Restore"]
    assert (out[0].record.generation, out[0].record.resumed) == (1, False)
    assert kinds(all_say(manager, Restored(1))) == ["Resume"]
    resumed = all_say(manager, Resumed(1))
    assert kinds(resumed) == ["Save", "SendReconf"]  # the plan that was under way, once more
    assert resumed[0].record.resumed


def test_after_a_recovery_plans_since_the_snapshot_are_installed_as_one() -> None:
    manager = installing()
    all_say(manager, AckReconf(1))
    all_say(manager, Done(1))
    manager.on(MANAGER, ReconfigurationDue())
    all_say(manager, SendMetrics(2, {}))
    manager.on(MANAGER, Lost(EVERYONE[0]))
    all_say(manager, Restored(1))
    offered = all_say(manager, Resumed(1))[1:]

    assert manager.record.base.id == 0
    assert {i.message.plan for i in offered} == {2}


@pytest.mark.parametrize("answers", [0, 1])
def test_a_manager_that_dies_in_a_recovery_begins_it_anew(answers: int) -> None:
    manager = make()
    manager.on(MANAGER, Lost(EVERYONE[0]))
    if answers:
        all_say(manager, Restored(1))
    again = make(manager.record)

    out = again.on(MANAGER, Boot())
    assert kinds(out) == ["Save", "Reconnect", "Restore"]
    assert again.record.generation == 2


def test_whatever_comes_at_the_wrong_time_is_ignored() -> None:
    manager = make()

    for message in (
        SendMetrics(1, {}),
        AckReconf(1),
        Restored(0),
        Resumed(0),
        Welcome(),
        SnapshotPart(0, EMPTY),
    ):
        assert manager.on(EVERYONE[0], message) == []


def test_every_message_type_used_here_is_one_the_instances_know() -> None:
    from headgate_lab.simulator.instance import HANDLERS

    assert {GetMetrics, Hello, Propagate, Restore, Resume, SendReconf, TakeSnapshot} <= set(
        HANDLERS
    )
    assert Save not in HANDLERS
