"""One instance, message by message."""

from __future__ import annotations

from typing import Any

import numpy as np

from headgate.routing.table import hash_table
from headgate_lab.simulator.instance import Instance
from headgate_lab.simulator.message import (
    AckReconf,
    Apply,
    Cut,
    Data,
    Done,
    Emit,
    GetMetrics,
    Hello,
    Hold,
    Marker,
    Migrate,
    Part,
    Propagate,
    Reconnect,
    Restore,
    Restored,
    Resume,
    Resumed,
    Send,
    SendMetrics,
    SendReconf,
    SnapshotPart,
    TakeSnapshot,
    Welcome,
)
from headgate_lab.simulator.plan import NO_HANDOVER, Plan, Router, handovers, key_hashes
from headgate_lab.simulator.shape import MANAGER, Edge, Operator, Shape, Wiring

KEYS = key_hashes(8)
FIELDS = (Edge("S", "fields"),)
WIRING = Wiring(
    Shape(
        "test",
        (
            Operator("S", 2, False, ()),
            Operator("A", 2, True, FIELDS),
            Operator("B", 2, True, (Edge("A", "fields"),)),
        ),
    )
)
S0, S1 = WIRING.siblings["S"]
A0, A1 = WIRING.siblings["A"]
B0, B1 = WIRING.siblings["B"]
TABLE = hash_table(2, 8)
OLD = Plan(0, dict.fromkeys("AB", Router(TABLE, KEYS)))
# the first key that hashing puts on A0, and a plan that moves it, and nothing else, to A1
KEY = next(key for key in KEYS.tolist() if OLD.routers["A"].slot(key) == 0)
OTHER = next(key for key in KEYS.tolist() if key != KEY and OLD.routers["A"].slot(key) == 0)
MOVED = TABLE.pin_hashes(np.array([KEY], np.uint64), np.array([1], np.int32))
NEW = Plan(1, {"A": Router(MOVED, KEYS), "B": OLD.routers["B"]})
LISTS = handovers(OLD.routers["A"], NEW.routers["A"])


def started(address: Any = A0, **part: Any) -> Instance:
    instance = Instance(address, WIRING)
    whole = Part(0, {}, OLD.routers, 0, 0, ())._replace(**part)
    instance.on(MANAGER, Restore(0, whole))
    instance.on(MANAGER, Resume(0))
    return instance


def row(number: int, key: int = KEY) -> Data:
    return Data(number, "S", {"A": key, "B": key}, number)


def reconf(address: Any) -> SendReconf:
    lists = LISTS[address.slot] if address.operator == "A" else NO_HANDOVER
    return SendReconf(1, NEW.routers, lists)


def test_a_tuple_is_counted_and_sent_to_the_owner_of_its_next_key() -> None:
    instance = started()

    applied, sent = instance.on(S0, row(5))

    assert applied == Apply(row(5), KEY, S0)
    assert sent == Send(B0, Data(5, "SA", row(5).keys, 0))
    assert instance.counts == {KEY: 1}


def test_a_source_reads_its_log_to_the_end() -> None:
    source = Instance(S0, WIRING, [row(0)])
    source.on(MANAGER, Restore(0, Part(0, {}, OLD.routers, 0, 0, ())))
    source.on(MANAGER, Resume(0))

    assert [type(i) for i in source.on(S0, Emit())] == [Apply, Send]
    assert source.on(S0, Emit()) == []


def test_metrics_tell_which_key_led_to_which() -> None:
    instance = started()
    instance.on(S0, row(1))
    instance.on(S1, row(2))

    assert instance.on(MANAGER, GetMetrics(1)) == [
        Send(MANAGER, SendMetrics(1, {("A", KEY, "B", KEY): 2}))
    ]


def test_a_reconfiguration_changes_nothing_until_all_predecessors_have_propagated() -> None:
    instance = started(counts={KEY: 3, OTHER: 4})

    assert instance.on(MANAGER, reconf(A0)) == [Send(MANAGER, AckReconf(1))]
    assert instance.on(S0, Propagate(1)) == []
    assert instance.on(S1, row(7))[0] == Apply(row(7), KEY, S1)  # routed before S1 switched
    out = instance.on(S1, Propagate(1))

    assert out == [
        Send(A1, Migrate(1, frozenset({("pin", KEY)}), {KEY: 4})),
        Send(B0, Propagate(1)),
        Send(B1, Propagate(1)),
        Send(MANAGER, Done(1)),
    ]
    assert instance.counts == {OTHER: 4}
    assert instance.version == 1


def test_an_early_tuple_waits_for_its_state_and_no_other_does() -> None:
    receiver = started(A1)
    receiver.on(MANAGER, reconf(A1))

    assert receiver.on(S0, row(1)) == [Hold(row(1), KEY)]
    assert receiver.on(S0, row(2)) == [Hold(row(2), KEY)]
    assert receiver.on(S0, row(3, OTHER))[0] == Apply(row(3, OTHER), OTHER, S0)

    out = receiver.on(A0, Migrate(1, frozenset({("pin", KEY)}), {KEY: 9}))
    assert [i for i in out if isinstance(i, Apply)] == [
        Apply(row(1), KEY, S0),
        Apply(row(2), KEY, S0),
    ]
    assert receiver.counts[KEY] == 11
    assert not receiver.early and not receiver.missing


def test_it_does_not_propagate_before_its_states_have_come() -> None:
    receiver = started(A1)
    receiver.on(MANAGER, reconf(A1))
    receiver.on(S0, Propagate(1))

    assert receiver.on(S1, Propagate(1)) == []
    assert receiver.version == 0
    assert receiver.on(A0, Migrate(1, frozenset({("pin", KEY)}), {})) == [
        Send(B0, Propagate(1)),
        Send(B1, Propagate(1)),
        Send(MANAGER, Done(1)),
    ]


def test_what_the_manager_says_again_is_answered_again_and_does_nothing() -> None:
    instance = started(counts={KEY: 3})
    instance.on(MANAGER, reconf(A0))
    instance.on(S0, Propagate(1))

    assert instance.on(MANAGER, reconf(A0)) == [Send(MANAGER, AckReconf(1))]
    instance.on(S1, Propagate(1))
    assert instance.on(MANAGER, reconf(A0)) == [
        Send(MANAGER, AckReconf(1)),
        Send(MANAGER, Done(1)),
    ]
    assert instance.on(MANAGER, Hello()) == [Send(MANAGER, Welcome())]


def test_a_root_takes_its_propagate_from_the_manager_once() -> None:
    source = started(S0)
    source.on(MANAGER, reconf(S0))

    assert Send(A1, Propagate(1)) in source.on(MANAGER, Propagate(1))
    assert source.routers is NEW.routers
    assert source.on(MANAGER, Propagate(1)) == []


def test_a_snapshot_holds_the_state_at_the_first_marker_and_the_channels_up_to_theirs() -> None:
    instance = started(counts={KEY: 1})

    assert instance.on(S0, Marker(1)) == [Cut(1), Send(B0, Marker(1)), Send(B1, Marker(1))]
    instance.on(S1, row(4))  # sent before S1's marker: in the channel
    instance.on(S0, row(5))  # sent after S0's marker: not in the snapshot
    (told,) = instance.on(S1, Marker(1))

    assert isinstance(told, Send) and isinstance(told.message, SnapshotPart)
    part = told.message.part
    assert (part.counts, part.inflight) == ({KEY: 1}, ((S1, row(4)),))
    assert instance.counts == {KEY: 3}


def test_a_newer_snapshot_takes_the_place_of_one_that_was_given_up() -> None:
    instance = started()
    instance.on(S0, Marker(1))

    assert instance.on(S0, Marker(2))[0] == Cut(2)
    assert instance.on(S1, Marker(1)) == []
    assert [type(i.message) for i in instance.on(S1, Marker(2))] == [SnapshotPart]


def test_a_root_is_done_with_its_part_at_once() -> None:
    out = started(S0).on(MANAGER, TakeSnapshot(1))

    assert out[0] == Cut(1)
    assert isinstance(out[-1].message, SnapshotPart)


def test_a_blank_instance_hears_nothing_but_restore() -> None:
    instance = Instance(A0, WIRING)

    for sender, message in ((S0, row(1)), (MANAGER, reconf(A0)), (MANAGER, Hello())):
        assert instance.on(sender, message) == []
    assert not instance.counts and not instance.backlog


def test_a_restored_instance_waits_and_then_begins_with_what_was_in_the_channels() -> None:
    instance = started(counts={KEY: 50})
    part = Part(0, {KEY: 1}, OLD.routers, 0, 0, ((S0, row(1)),))

    assert instance.on(MANAGER, Restore(3, part)) == [Reconnect(3), Send(MANAGER, Restored(3))]
    assert instance.on(S0, row(2)) == []
    assert instance.on(MANAGER, Resume(2)) == []
    out = instance.on(MANAGER, Resume(3))

    assert out[0] == Send(MANAGER, Resumed(3))
    assert [i.data.id for i in out if isinstance(i, Apply)] == [1, 2]
    assert instance.counts == {KEY: 3}
