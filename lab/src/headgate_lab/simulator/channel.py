"""Reliable channels in order, over a network that loses, doubles and reorders.

The protocol rests on one property of a channel: what is sent before PROPAGATE arrives before it.
Storm and TCP give it; here it is made, from sequence numbers, reassembly at the receiver, and
frames that are sent again until they are acknowledged. There is one channel per ordered pair of
processes; between different channels there is no order at all.

A channel belongs to a connection, which has a number. Between instances it is the generation:
frames of another generation are dropped, so nothing from before a recovery is ever seen after it.
The manager opens its own connections; an instance follows the newest one it hears of. A frame is
sent to the process that lives at the address at that moment, and never reaches a later one. Since
every frame also acknowledges, who has seen an answer does not repeat the question: so a process
that died after having answered is not asked again in its next life.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from headgate_lab.simulator.shape import MANAGER, Address

NEVER_CONNECTED = -1


class Frame(NamedTuple):
    """A message with its place in a channel, and an acknowledgement of the other direction."""

    sender: Address
    receiver: Address
    number: int
    seq: int
    upto: int
    message: Any


class Link:
    """Both directions between this process and one peer."""

    __slots__ = ("acked", "acks", "early", "next_in", "next_out", "number", "patience", "unacked")

    def __init__(self, number: int) -> None:
        self.number = number
        self.next_out = 0
        self.unacked: deque[Frame] = deque()
        self.acked = 0  # all frames below have arrived
        self.acks: list[tuple[float, int]] = []  # when each arrives, and what it acknowledges
        self.next_in = 0
        self.early: dict[int, Any] = {}
        self.patience = 0.0  # until the next repetition; 0 when no timer runs


class Endpoint:
    """All channels of one process; lost with it."""

    def __init__(self, address: Address, number: int = NEVER_CONNECTED) -> None:
        self.address = address
        self.number = number
        self.links: dict[Address, Link] = {}

    def link(self, peer: Address) -> Link:
        found = self.links.get(peer)
        if found is None:
            found = self.links[peer] = Link(self.number)
        return found

    def reconnect(self, number: int) -> None:
        """New connections with everybody but the manager, who opens his own."""
        self.number = number
        self.links = {peer: link for peer, link in self.links.items() if peer is MANAGER}

    def send(self, peer: Address, message: Any) -> Frame:
        link = self.links.get(peer) or self.link(peer)
        seq = link.next_out
        link.next_out = seq + 1
        frame = Frame(self.address, peer, link.number, seq, link.next_in, message)
        link.unacked.append(frame)
        return frame

    def receive(self, frame: Frame) -> list[Any] | None:
        """Messages that are now in order; None if the frame is of another connection."""
        link = self.links.get(frame.sender) or self.link(frame.sender)
        if frame.number != link.number:
            if frame.sender is not MANAGER or frame.number < link.number:
                return None
            link = self.links[MANAGER] = Link(frame.number)
        if frame.upto > link.acked:
            link.acked = frame.upto
        return self._in_order(link, frame)

    def _in_order(self, link: Link, frame: Frame) -> list[Any]:
        seq = frame.seq
        if seq != link.next_in:
            if seq > link.next_in:
                link.early[seq] = frame.message
            return []
        ready = [frame.message]
        seq += 1
        while link.early and seq in link.early:
            ready.append(link.early.pop(seq))
            seq += 1
        link.next_in = seq
        return ready

    def acked(self, peer: Address, number: int, upto: int, at: float) -> None:
        """At that time it will be known that all frames below `upto` have arrived.

        Acknowledgements are looked at when the timer goes off, so they need no event of their own.
        """
        link = self.links.get(peer)
        if link is not None and link.number == number:
            link.acks.append((at, upto))

    def overdue(self, peer: Address, now: float) -> Sequence[Frame]:
        """What has not been acknowledged by now, oldest first.

        An acknowledgement is for all frames before it, so one makes up for many that were lost.
        """
        link = self.links[peer]
        for at, upto in link.acks:
            if at <= now and upto > link.acked:
                link.acked = upto
        link.acks = [ack for ack in link.acks if ack[0] > now]
        while link.unacked and link.unacked[0].seq < link.acked:
            link.unacked.popleft()
        return link.unacked
