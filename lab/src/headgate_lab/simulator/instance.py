"""One instance of an operator, as a state machine: a message in, a list of instructions out.

It knows no network and no clock. It never refuses a tuple: a tuple is counted at once unless the
state of its key is still on its way here, in which case it is held until the state arrives
(Caneill et al. 2016, section 3.4 and Algorithm 1).

Relied upon: channels between two instances deliver in order, without loss and without repetition
(`channel` sees to that), and no PROPAGATE is sent before every instance has its SEND_RECONF.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

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
    Instruction,
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
from headgate_lab.simulator.plan import Router, Unit
from headgate_lab.simulator.shape import MANAGER, Address, Wiring

Handler = Callable[[Address, Any], list[Instruction]]
BLANK = -1


class Instance:
    """Counts tuples per key, routes them on, takes part in reconfigurations and snapshots."""

    version: int  # the plan that is installed here
    counts: dict[int, int]
    routers: Mapping[str, Router]
    offset: int  # how far a source has read
    emitted: int
    pairs: Counter[tuple[str, int, str, int]]
    pending: SendReconf | None  # the plan that is being installed
    switched: bool  # its routers are in use
    heard: set[Address]  # who has propagated it
    missing: set[Unit]  # whose state is still to come
    early: dict[Unit, list[tuple[Address, Data]]]  # the tuples that came before it
    snapshot: int
    part: Part
    recording: set[Address]  # channels whose tuples belong to the snapshot, until their marker
    recorded: list[tuple[Address, Data]]
    backlog: list[tuple[Address, Any]]  # what came between being restored and resuming

    def __init__(self, address: Address, wiring: Wiring, log: Sequence[Data] = ()) -> None:
        self.address = address
        self.operator = address.operator
        self.stateful = wiring.operator[address.operator].stateful
        self.siblings = wiring.siblings[address.operator]
        self.outputs = wiring.outputs[address.operator]
        self.predecessors = wiring.predecessors[address]
        self.successors = wiring.successors[address]
        self.awaited_propagates = self.predecessors or frozenset((MANAGER,))
        self.log = log  # what a source has to read; durable, and not the instance's own
        self.generation = BLANK
        self.running = False
        self._become(Part(0, {}, {}, 0, 0, ()))

    def on(self, sender: Address, message: Any) -> list[Instruction]:
        """What to do about a message."""
        kind = type(message)
        if self.running or kind is Restore or kind is Resume:
            handler: Handler = getattr(self, HANDLERS[kind])
            return handler(sender, message)
        if self.generation != BLANK and kind is not Emit:
            self.backlog.append((sender, message))
        return []

    # --- the stream -----------------------------------------------------------------------------

    def _emit(self, sender: Address, message: Emit) -> list[Instruction]:
        """A source reads its next tuple. Nothing that goes on elsewhere ever stops it."""
        if self.offset == len(self.log):
            return []
        data = self.log[self.offset]
        self.offset += 1
        return self._apply(sender, data)

    def _data(self, sender: Address, data: Data) -> list[Instruction]:
        if sender in self.recording:
            self.recorded.append((sender, data))
        if self.missing:
            assert self.pending is not None
            key = data.keys[self.operator]
            unit = self.pending.handover.units.of(key)
            if unit in self.missing:
                return self._hold(sender, data, key, unit)
        return self._apply(sender, data)

    def _hold(self, sender: Address, data: Data, key: int, unit: Unit) -> list[Instruction]:
        self.early.setdefault(unit, []).append((sender, data))
        return [Hold(data, key)]

    def _apply(self, sender: Address, data: Data) -> list[Instruction]:
        key = 0
        keys = data.keys
        if self.stateful:
            key = keys[self.operator]
            self.counts[key] = self.counts.get(key, 0) + 1
        out: list[Instruction] = [Apply(data, key, sender)]
        number = self.emitted
        self.emitted = number + 1
        onward = Data(data.id, data.trail + self.operator, keys, number)
        for consumer, grouping, instances in self.outputs:
            if grouping == "fields":
                index = self.routers[consumer].slot(keys[consumer])
                if self.stateful:
                    self.pairs[self.operator, key, consumer, keys[consumer]] += 1
            else:
                index = number if grouping == "shuffle" else self.address.slot
                index %= len(instances)
            out.append(Send(instances[index], onward))
        return out

    # --- reconfiguration ------------------------------------------------------------------------

    def _get_metrics(self, sender: Address, message: GetMetrics) -> list[Instruction]:
        return [Send(MANAGER, SendMetrics(message.plan, dict(self.pairs)))]

    def _send_reconf(self, sender: Address, message: SendReconf) -> list[Instruction]:
        """Remember it and say so; a manager that was restarted may say it again."""
        out: list[Instruction] = [Send(MANAGER, AckReconf(message.plan))]
        if message.plan <= self.version:
            return [*out, Send(MANAGER, Done(message.plan))]
        if self.pending is None:
            self._accept(message)
        return out

    def _accept(self, message: SendReconf) -> None:
        self.pending = message
        self.missing = {u for units in message.handover.receive.values() for u in units}

    def _propagate(self, sender: Address, message: Propagate) -> list[Instruction]:
        """Wait for all predecessors: then no tuple that was routed the old way is under way."""
        if self.pending is None or message.plan != self.pending.plan or self.switched:
            return []
        self.heard.add(sender)
        return self._switch() if self.heard >= self.awaited_propagates else []

    def _switch(self) -> list[Instruction]:
        """Route by the new tables, and give away the state of what is no longer ours."""
        assert self.pending is not None
        handover = self.pending.handover
        self.switched = True
        self.routers = self.pending.routers
        self.pairs.clear()
        out: list[Instruction] = []
        for receiver, units in handover.send.items():
            leaving = [key for key in self.counts if handover.units.of(key) in units]
            states = {key: self.counts.pop(key) for key in leaving}
            out.append(Send(self.siblings[receiver], Migrate(self.pending.plan, units, states)))
        return out + self._finish_if_complete()

    def _migrate(self, sender: Address, message: Migrate) -> list[Instruction]:
        """The state is here: count what has been waiting for it, in the order it came."""
        self.counts.update(message.states)
        self.missing -= message.units
        out: list[Instruction] = []
        for unit in sorted(message.units):
            for origin, data in self.early.pop(unit, ()):
                out += self._apply(origin, data)
        return out + self._finish_if_complete()

    def _finish_if_complete(self) -> list[Instruction]:
        if self.pending is None or not self.switched or self.missing:
            return []
        plan = self.version = self.pending.plan
        self.pending, self.switched = None, False
        self.heard.clear()
        out: list[Instruction] = [Send(to, Propagate(plan)) for to in self.successors]
        return [*out, Send(MANAGER, Done(plan))]

    def _hello(self, sender: Address, message: Hello) -> list[Instruction]:
        return [Send(MANAGER, Welcome())]

    # --- snapshots and recovery -----------------------------------------------------------------

    def _take_snapshot(self, sender: Address, message: TakeSnapshot) -> list[Instruction]:
        return self._marker(sender, Marker(message.snapshot))

    def _marker(self, sender: Address, message: Marker) -> list[Instruction]:
        """Chandy and Lamport 1985: the first marker fixes the state, the others close channels."""
        out: list[Instruction] = []
        if message.snapshot > self.snapshot:
            self.snapshot = message.snapshot
            self.part = Part(
                self.version, dict(self.counts), self.routers, self.offset, self.emitted, ()
            )
            self.recorded = []
            self.recording = set(self.predecessors)
            out.append(Cut(message.snapshot))
            out += [Send(to, message) for to in self.successors]
        if message.snapshot == self.snapshot:
            self.recording.discard(sender)
            if not self.recording:
                part = self.part._replace(inflight=tuple(self.recorded))
                out.append(Send(MANAGER, SnapshotPart(self.snapshot, part)))
        return out

    def _restore(self, sender: Address, message: Restore) -> list[Instruction]:
        self.generation = message.generation
        self.running = False
        self._become(message.part)
        return [Reconnect(self.generation), Send(MANAGER, Restored(self.generation))]

    def _become(self, part: Part) -> None:
        """The state in full; nothing else survives in an instance."""
        self.version, self.counts, self.routers = part.version, dict(part.counts), part.routers
        self.offset, self.emitted = part.offset, part.emitted
        self.backlog = list(part.inflight)
        self.pairs = Counter()
        self.pending, self.switched = None, False
        self.heard, self.missing, self.early = set(), set(), {}
        self.snapshot, self.part = 0, part
        self.recording, self.recorded = set(), []

    def _resume(self, sender: Address, message: Resume) -> list[Instruction]:
        """Go on, first with what was in the channels when the snapshot was taken."""
        if self.generation != message.generation:
            return []
        out: list[Instruction] = [Send(MANAGER, Resumed(message.generation))]
        self.running = True
        waiting, self.backlog = self.backlog, []
        for origin, waited in waiting:
            out += self.on(origin, waited)
        return out


HANDLERS: dict[type[Any], str] = {
    Data: "_data",
    Emit: "_emit",
    GetMetrics: "_get_metrics",
    Hello: "_hello",
    Marker: "_marker",
    Migrate: "_migrate",
    Propagate: "_propagate",
    Restore: "_restore",
    Resume: "_resume",
    SendReconf: "_send_reconf",
    TakeSnapshot: "_take_snapshot",
}
