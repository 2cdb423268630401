"""The manager of a flow, as a state machine: a message in, a list of instructions out.

It runs the paper's reconfiguration (Caneill et al. 2016, Algorithm 1), takes snapshots, and after
the crash of an instance brings all back to the last snapshot. One thing at a time: no snapshot
while a plan is being installed, so every snapshot holds one routing version.

Whatever it must not forget is saved before it is acted upon (`record`). A manager that starts
again therefore repeats: an unfinished recovery from its beginning, under a new generation, an
unfinished plan from SEND_RECONF on, which instances answer as often as they are asked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

from headgate_lab.simulator.message import (
    AckReconf,
    Boot,
    Done,
    GetMetrics,
    Hello,
    Instruction,
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
from headgate_lab.simulator.plan import NO_HANDOVER, Plan, Router, handovers
from headgate_lab.simulator.record import Record, Snapshot
from headgate_lab.simulator.shape import Address, Wiring

Pairs = Mapping[tuple[str, int, str, int], int]
Planner = Callable[[Mapping[str, Router], Pairs], Mapping[str, Router]]
Handler = Callable[[Address, Any], list[Instruction]]


class Phase(Enum):
    """What the manager is waiting for, if anything."""

    IDLE = "idle"
    WELCOMES = "welcomes"
    METRICS = "metrics"
    ACKS = "acks"
    DONES = "dones"
    PARTS = "parts"
    RESTORED = "restored"
    RESUMED = "resumed"


class Manager:
    """One process; whatever is not in `record` is lost when it crashes."""

    def __init__(self, wiring: Wiring, record: Record, planner: Planner) -> None:
        self.wiring = wiring
        self.everyone = frozenset(wiring.instances)
        self.record = record
        self.planner = planner
        self.phase = Phase.IDLE
        self.answered: set[Address] = set()
        self.done: set[Address] = set()
        self.pairs: Counter[tuple[str, int, str, int]] = Counter()
        self.parts: dict[Address, Part] = {}
        self.plan_due = self.snapshot_due = False

    def on(self, sender: Address, message: Any) -> list[Instruction]:
        """What to do about a message."""
        handler: Handler = getattr(self, HANDLERS[type(message)])
        return handler(sender, message)

    def _boot(self, sender: Address, message: Boot) -> list[Instruction]:
        if not self.record.resumed:
            return self._recover()
        saved = self._save(connection=self.record.connection + 1)
        self._await(Phase.WELCOMES)
        return [*saved, Reconnect(self.record.connection), *self._tell(Hello())]

    def _welcome(self, sender: Address, message: Welcome) -> list[Instruction]:
        if self.phase is not Phase.WELCOMES or not self._heard_all(sender):
            return []
        return self._next()

    def _next(self) -> list[Instruction]:
        """Take up what is left to do; an unfinished plan comes first."""
        self.phase = Phase.IDLE
        if self.record.target.id != self.record.base.id:
            return self._offer()
        if self.plan_due:
            self.plan_due = False
            return self._ask()
        if self.snapshot_due:
            self.snapshot_due = False
            return self._begin_snapshot()
        return []

    def _plan_due(self, sender: Address, message: ReconfigurationDue) -> list[Instruction]:
        self.plan_due = True
        return self._next() if self.phase is Phase.IDLE else []

    def _snapshot_due(self, sender: Address, message: SnapshotDue) -> list[Instruction]:
        self.snapshot_due = True
        return self._next() if self.phase is Phase.IDLE else []

    # --- reconfiguration ------------------------------------------------------------------------

    def _ask(self) -> list[Instruction]:
        """Step 1: GET_METRICS."""
        self._await(Phase.METRICS)
        self.pairs.clear()
        return self._tell(GetMetrics(self.record.target.id + 1))

    def _metrics(self, sender: Address, message: SendMetrics) -> list[Instruction]:
        """Step 2: with all statistics in, make a plan and save it."""
        if self.phase is not Phase.METRICS:
            return []
        self.pairs.update(message.pairs)
        if not self._heard_all(sender):
            return []
        target = self.record.target
        plan = Plan(target.id + 1, self.planner(target.routers, self.pairs))
        return [*self._save(target=plan), *self._offer()]

    def _offer(self) -> list[Instruction]:
        """Step 3: SEND_RECONF, with what changes between the plan that holds and the new one."""
        self._await(Phase.ACKS)
        self.done = set()
        base, target = self.record.base.routers, self.record.target
        lists = {
            name: handovers(base[name], new)
            for name, new in target.routers.items()
            if new is not base[name]
        }
        out: list[Instruction] = []
        for to in self.wiring.instances:
            mine = lists[to.operator][to.slot] if to.operator in lists else NO_HANDOVER
            out.append(Send(to, SendReconf(target.id, target.routers, mine)))
        return out

    def _ack(self, sender: Address, message: AckReconf) -> list[Instruction]:
        """Steps 4 and 5: when everybody knows the plan, the roots may begin."""
        if self.phase is not Phase.ACKS or not self._heard_all(sender):
            return []
        self._await(Phase.DONES)
        return [Send(to, Propagate(message.plan)) for to in self.wiring.roots]

    def _done(self, sender: Address, message: Done) -> list[Instruction]:
        """The plan holds everywhere: the next may come."""
        self.done.add(sender)
        if self.phase is not Phase.DONES or self.done != self.everyone:
            return []
        return [*self._save(base=self.record.target), *self._next()]

    # --- snapshots and recovery -----------------------------------------------------------------

    def _begin_snapshot(self) -> list[Instruction]:
        self._await(Phase.PARTS)
        self.parts = {}
        saved = self._save(begun=self.record.begun + 1)
        return [*saved, *(Send(to, TakeSnapshot(self.record.begun)) for to in self.wiring.roots)]

    def _part(self, sender: Address, message: SnapshotPart) -> list[Instruction]:
        if self.phase is not Phase.PARTS or message.snapshot != self.record.begun:
            return []
        self.parts[sender] = message.part
        if not self._heard_all(sender):
            return []
        whole = Snapshot(message.snapshot, self.record.base, dict(self.parts))
        return [*self._save(snapshot=whole), *self._next()]

    def _lost(self, sender: Address, message: Lost) -> list[Instruction]:
        return self._recover()

    def _recover(self) -> list[Instruction]:
        """Everybody back to the last snapshot; a plan since then will be installed anew."""
        record, snapshot = self.record, self.record.snapshot
        saved = self._save(
            generation=record.generation + 1,
            connection=record.connection + 1,
            resumed=False,
            base=snapshot.plan,
        )
        self._await(Phase.RESTORED)
        return [
            *saved,
            Reconnect(self.record.connection),
            *(
                Send(to, Restore(self.record.generation, snapshot.parts[to]))
                for to in self.wiring.instances
            ),
        ]

    def _restored(self, sender: Address, message: Restored) -> list[Instruction]:
        if self.phase is not Phase.RESTORED or not self._heard_all(sender):
            return []
        self._await(Phase.RESUMED)
        return self._tell(Resume(self.record.generation))

    def _resumed(self, sender: Address, message: Resumed) -> list[Instruction]:
        if self.phase is not Phase.RESUMED or not self._heard_all(sender):
            return []
        return [*self._save(resumed=True), *self._next()]

    # --- small tools ----------------------------------------------------------------------------

    def _await(self, phase: Phase) -> None:
        self.phase = phase
        self.answered = set()

    def _heard_all(self, sender: Address) -> bool:
        self.answered.add(sender)
        return self.answered == self.everyone

    def _tell(self, message: Any) -> list[Instruction]:
        return [Send(to, message) for to in self.wiring.instances]

    def _save(self, **changes: Any) -> list[Instruction]:
        self.record = self.record._replace(**changes)
        return [Save(self.record)]


HANDLERS: dict[type[Any], str] = {
    AckReconf: "_ack",
    Boot: "_boot",
    Done: "_done",
    Lost: "_lost",
    ReconfigurationDue: "_plan_due",
    Restored: "_restored",
    Resumed: "_resumed",
    SendMetrics: "_metrics",
    SnapshotDue: "_snapshot_due",
    SnapshotPart: "_part",
    Welcome: "_welcome",
}
