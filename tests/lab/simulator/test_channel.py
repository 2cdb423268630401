"""A channel delivers everything, once, in order, over a network that does none of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headgate_lab.simulator.channel import Endpoint
from headgate_lab.simulator.shape import MANAGER, Address

A, B = Address("A", 0), Address("B", 0)


@given(messages=st.integers(1, 8), data=st.data())
def test_whatever_the_network_does_messages_come_once_and_in_order(
    messages: int, data: st.DataObject
) -> None:
    sender, receiver = Endpoint(A, 0), Endpoint(B, 0)
    wire = [sender.send(B, number) for number in range(messages)]
    received: list[int] = []
    for now in range(200):
        for frame in data.draw(st.permutations(wire)) if now < 3 else wire:
            copies = data.draw(st.sampled_from([0, 1, 1, 2])) if now < 3 else 1
            for _ in range(copies):
                received += receiver.receive(frame) or []
                if now >= 3 or data.draw(st.booleans()):
                    sender.acked(B, 0, receiver.links[A].next_in, at=now)
        wire = list(sender.overdue(B, now))
        if not wire:
            break

    assert received == list(range(messages))
    assert not sender.overdue(B, 200)


def test_an_acknowledgement_counts_from_when_it_arrives() -> None:
    sender = Endpoint(A, 0)
    frames = [sender.send(B, "x"), sender.send(B, "y")]
    sender.acked(B, 0, 1, at=7.0)

    assert list(sender.overdue(B, 6.0)) == frames
    assert list(sender.overdue(B, 7.0)) == frames[1:]


def test_an_answer_acknowledges_the_question() -> None:
    sender, receiver = Endpoint(A, 0), Endpoint(B, 0)
    receiver.receive(sender.send(B, "question"))
    sender.receive(receiver.send(A, "answer"))

    assert not sender.overdue(B, 0.0)


def test_frames_of_another_generation_are_dropped_without_an_acknowledgement() -> None:
    old, new = Endpoint(A, 1), Endpoint(B, 2)

    assert new.receive(old.send(B, "late")) is None
    assert old.receive(new.send(A, "not yet mine")) is None


def test_after_reconnecting_both_begin_anew() -> None:
    sender, receiver = Endpoint(A, 1), Endpoint(B, 1)
    receiver.receive(sender.send(B, "before"))
    lost = sender.send(B, "lost")
    for end in (sender, receiver):
        end.reconnect(2)

    assert receiver.receive(sender.send(B, "after")) == ["after"]
    assert receiver.receive(lost) is None


def test_an_instance_follows_the_managers_newest_connection_only() -> None:
    instance, first, second = Endpoint(A), Endpoint(MANAGER, 4), Endpoint(MANAGER, 5)

    assert instance.receive(first.send(A, "hello")) == ["hello"]
    assert instance.receive(second.send(A, "hello again")) == ["hello again"]
    assert instance.receive(first.send(A, "from the grave")) is None
    assert second.receive(instance.send(MANAGER, "welcome")) == ["welcome"]


def test_a_new_life_does_not_take_up_a_connection_in_the_middle() -> None:
    manager, first_life, second_life = Endpoint(MANAGER, 3), Endpoint(A), Endpoint(A)
    first_life.receive(manager.send(A, "restore"))

    assert second_life.receive(manager.send(A, "resume")) == []
