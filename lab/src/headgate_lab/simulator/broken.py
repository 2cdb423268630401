"""Protocols with one mistake each: they show that the simulator can fail.

Every entry leaves out one thing that the protocol, the channels or the recovery rest on, and every
one is caught within a few hundred seeds (`tests/lab/simulator/test_protocol_seeds.py`). `VARIANTS`
are other ways to do it that look risky and hold.
"""

from __future__ import annotations

from typing import Any

from headgate_lab.simulator.channel import Endpoint, Frame, Link
from headgate_lab.simulator.cluster import Parts
from headgate_lab.simulator.instance import Instance
from headgate_lab.simulator.manager import Manager, Phase
from headgate_lab.simulator.message import (
    AckReconf,
    Data,
    Done,
    Instruction,
    Marker,
    Migrate,
    Propagate,
    Save,
    Send,
    SendMetrics,
    SendReconf,
    SnapshotDue,
    SnapshotPart,
)
from headgate_lab.simulator.plan import Unit
from headgate_lab.simulator.record import Snapshot
from headgate_lab.simulator.shape import MANAGER, Address

# --- the protocol -------------------------------------------------------------------------------


class NoBuffering(Instance):
    """Counts an early tuple at once, on a state that is not there."""

    def _hold(self, sender: Address, data: Data, key: int, unit: Unit) -> list[Instruction]:
        return self._apply(sender, data)


class DropsEarly(Instance):
    """Throws an early tuple away."""

    def _hold(self, sender: Address, data: Data, key: int, unit: Unit) -> list[Instruction]:
        return []


class NeverDrains(Instance):
    """Holds early tuples and forgets them when the state comes."""

    def _migrate(self, sender: Address, message: Migrate) -> list[Instruction]:
        for unit in message.units:
            self.early.pop(unit, None)
        return super()._migrate(sender, message)


class ForgetsReceiveList(Instance):
    """Does not know which states are on their way to it."""

    def _accept(self, message: SendReconf) -> None:
        super()._accept(message)
        self.missing = set()


class MigratesEarly(Instance):
    """Gives its state away at the first PROPAGATE and not at the last."""

    def _propagate(self, sender: Address, message: Propagate) -> list[Instruction]:
        self.heard |= self.awaited_propagates
        return super()._propagate(sender, message)


class KeepsState(Instance):
    """Sends a copy of the state and keeps the original."""

    def _switch(self) -> list[Instruction]:
        kept = dict(self.counts)
        out = super()._switch()
        self.counts = kept
        return out


class KeepsRouter(Instance):
    """Propagates without having changed its routing table."""

    def _switch(self) -> list[Instruction]:
        old = self.routers
        out = super()._switch()
        self.routers = old
        return out


class ForgetsPropagate(Instance):
    """Switches when it is told to, and says nothing to those behind it."""

    def _finish_if_complete(self) -> list[Instruction]:
        return [
            instruction
            for instruction in super()._finish_if_complete()
            if not (isinstance(instruction, Send) and isinstance(instruction.message, Propagate))
        ]


class OutOfOrder(Manager):
    """Tells every instance to propagate, in no order."""

    def _ack(self, sender: Address, message: AckReconf) -> list[Instruction]:
        out = super()._ack(sender, message)
        return self._tell(Propagate(message.plan)) if out else []


class ListensToManager(Instance):
    """Goes along with `OutOfOrder`."""

    def _propagate(self, sender: Address, message: Propagate) -> list[Instruction]:
        if sender is MANAGER:
            self.heard |= self.awaited_propagates
        return super()._propagate(sender, message)


class Impatient(Manager):
    """Begins to propagate with the first ACK_RECONF and not with the last."""

    def _ack(self, sender: Address, message: AckReconf) -> list[Instruction]:
        self.answered = set(self.everyone)
        return super()._ack(sender, message)


class Overlapping(Manager):
    """Takes a plan for installed when half of the instances say so, and begins the next."""

    def _done(self, sender: Address, message: Done) -> list[Instruction]:
        if len(self.done) > len(self.everyone) / 2:
            self.done = set(self.everyone)
        return super()._done(sender, message)


# --- durability and recovery --------------------------------------------------------------------


class NotDurable(Manager):
    """Saves a plan after having sent it."""

    def _metrics(self, sender: Address, message: SendMetrics) -> list[Instruction]:
        out = super()._metrics(sender, message)
        return sorted(out, key=lambda instruction: isinstance(instruction, Save))


class ForgetsPlan(Manager):
    """Believes after a recovery that the newest plan is still installed."""

    def _recover(self) -> list[Instruction]:
        out = super()._recover()
        return [*out, *self._save(base=self.record.target)]


class SnapshotsAnytime(Manager):
    """Takes snapshots while a plan is being installed."""

    def _snapshot_due(self, sender: Address, message: SnapshotDue) -> list[Instruction]:
        if not self._installing():
            return super()._snapshot_due(sender, message)
        phase, answered = self.phase, self.answered
        out = self._begin_snapshot()
        self.phase, self.answered = phase, answered
        return out

    def _part(self, sender: Address, message: SnapshotPart) -> list[Instruction]:
        if not self._installing() or message.snapshot != self.record.begun:
            return super()._part(sender, message)
        self.parts[sender] = message.part
        if len(self.parts) < len(self.everyone):
            return []
        return self._save(snapshot=Snapshot(message.snapshot, self.record.base, dict(self.parts)))

    def _installing(self) -> bool:
        return self.phase in (Phase.ACKS, Phase.DONES)


class LosesInflight(Instance):
    """Leaves out of a snapshot what is in the channels."""

    def _marker(self, sender: Address, message: Marker) -> list[Instruction]:
        self.recorded = []
        return super()._marker(sender, message)


# --- channels -----------------------------------------------------------------------------------


class Unordered(Endpoint):
    """Removes repetitions, and delivers in the order of arrival."""

    def _in_order(self, link: Link, frame: Frame) -> list[Any]:
        if frame.seq < link.next_in or frame.seq in link.early:
            return []
        link.early[frame.seq] = None
        while link.next_in in link.early:
            del link.early[link.next_in]
            link.next_in += 1
        return [frame.message]


class Overtaking(Endpoint):
    """Keeps tuples in order, and lets PROPAGATE overtake them."""

    def _in_order(self, link: Link, frame: Frame) -> list[Any]:
        ready = super()._in_order(link, frame)
        if frame.seq not in link.early or not isinstance(frame.message, Propagate):
            return ready
        link.early[frame.seq] = Marker(0)  # takes its place, and means nothing
        return [*ready, frame.message]


class Repeating(Endpoint):
    """Delivers a frame as often as it arrives."""

    def _in_order(self, link: Link, frame: Frame) -> list[Any]:
        if frame.seq < link.next_in:
            return [frame.message]
        return super()._in_order(link, frame)


class Unfenced(Endpoint):
    """Takes frames of a generation that is over."""

    def receive(self, frame: Frame) -> list[Any] | None:
        link = self.link(frame.sender)
        if MANAGER not in (frame.sender, self.address) and frame.number < link.number:
            return [frame.message]
        return super().receive(frame)


# --- another way that holds ---------------------------------------------------------------------


class EagerPropagate(ForgetsPropagate):
    """Propagates as soon as it has switched, while the states it will receive are under way.

    Algorithm 1 waits for them. It need not: once the new table is in use, no tuple follows that
    was routed by the old one, whether or not this instance still holds some back.
    """

    def _switch(self) -> list[Instruction]:
        assert self.pending is not None
        onward = Propagate(self.pending.plan)
        return [*(Send(to, onward) for to in self.successors), *super()._switch()]


BROKEN: dict[str, Parts] = {
    "no-buffering": Parts(instance=NoBuffering),
    "drops-early": Parts(instance=DropsEarly),
    "never-drains": Parts(instance=NeverDrains),
    "forgets-receive-list": Parts(instance=ForgetsReceiveList),
    "migrates-early": Parts(instance=MigratesEarly),
    "keeps-state": Parts(instance=KeepsState),
    "keeps-router": Parts(instance=KeepsRouter),
    "forgets-propagate": Parts(instance=ForgetsPropagate),
    "out-of-order": Parts(instance=ListensToManager, manager=OutOfOrder),
    "impatient": Parts(manager=Impatient),
    "overlapping": Parts(manager=Overlapping),
    "not-durable": Parts(manager=NotDurable),
    "forgets-plan": Parts(manager=ForgetsPlan),
    "snapshots-anytime": Parts(manager=SnapshotsAnytime),
    "loses-inflight": Parts(instance=LosesInflight),
    "unordered": Parts(endpoint=Unordered),
    "overtaking": Parts(endpoint=Overtaking),
    "repeating": Parts(endpoint=Repeating),
    "unfenced": Parts(endpoint=Unfenced),
}
VARIANTS: dict[str, Parts] = {"eager-propagate": Parts(instance=EagerPropagate)}
