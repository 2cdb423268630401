"""Processes, their channels and the network between them; carries out what the machines ask.

A crash takes a process with all its memory and channels. A manager starts again from stable
storage. An instance starts again blank and waits to be restored; a failure detector tells the
manager some time later, and again whenever a manager starts and finds it still true.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headgate_lab.simulator.channel import NEVER_CONNECTED, Endpoint, Frame
from headgate_lab.simulator.faults import Crash, Faults
from headgate_lab.simulator.instance import BLANK, Instance
from headgate_lab.simulator.manager import Manager, Phase, Planner
from headgate_lab.simulator.message import (
    Apply,
    Boot,
    Cut,
    Data,
    Emit,
    Hold,
    Instruction,
    Lost,
    Migrate,
    Part,
    ReconfigurationDue,
    Reconnect,
    Restore,
    Resume,
    Save,
    Send,
)
from headgate_lab.simulator.network import Network
from headgate_lab.simulator.oracle import Oracle
from headgate_lab.simulator.plan import Plan
from headgate_lab.simulator.record import Record, Snapshot
from headgate_lab.simulator.shape import MANAGER, Address, Wiring

PATIENCE = 60.0  # before a frame is sent again
PATIENCE_MAX = 500.0
DETECTION = 15.0  # until a crash is noticed, about
PERIOD = 50.0  # after which a manager that was started again makes a plan
GAP = 6.0  # between two tuples of a source, on average
SOUND_PARTS = (Instance, Manager, Endpoint)


@dataclass(frozen=True)
class Parts:
    """What processes are made of; `broken` puts faulty ones in."""

    instance: type[Instance] = Instance
    manager: type[Manager] = Manager
    endpoint: type[Endpoint] = Endpoint

    @property
    def mistake(self) -> str:
        """What is wrong, in a sentence; nothing if all parts are sound."""
        odd = [p for p in (self.manager, self.instance, self.endpoint) if p not in SOUND_PARTS]
        return (odd[0].__doc__ or "").partition("\n")[0] if odd else ""


Line = tuple[float, Address, Address, Any]  # of the trace; made into an Event when asked for


class Process:
    """A machine and its channels, for one life."""

    __slots__ = ("address", "alive", "endpoint", "machine")

    def __init__(self, address: Address, machine: Any, endpoint: Endpoint) -> None:
        self.address, self.machine, self.endpoint = address, machine, endpoint
        self.alive = True


class Cluster:
    """The whole simulated world but the dice."""

    def __init__(
        self,
        wiring: Wiring,
        logs: Mapping[Address, Sequence[Data]],
        plan: Plan,
        make_planner: Callable[[], Planner],
        faults: Faults,
        rng: random.Random,
        parts: Parts,
        trace: deque[Line],
    ) -> None:
        self.wiring, self.logs, self.make_planner, self.parts = wiring, logs, make_planner, parts
        self.faults, self.rng, self.trace = faults, rng, trace
        self.network = Network(rng, faults.weather)
        self.sent: Counter[type[Any]] = Counter()
        self.crashes: Counter[str] = Counter()
        self.repeated = self.fenced = 0
        blank = Part(0, {}, plan.routers, 0, 0, ())
        start = Snapshot(0, plan, dict.fromkeys(wiring.instances, blank))
        self.record = Record(plan, plan, start)
        self.oracle = Oracle(wiring.shape, logs, self.record)
        self.ticking: set[Address] = set()
        self.processes: dict[Address, Process] = {}
        for address in wiring.instances:
            machine = parts.instance(address, wiring, logs.get(address, ()))
            machine.on(MANAGER, Restore(0, blank))
            machine.on(MANAGER, Resume(0))
            self.processes[address] = Process(address, machine, parts.endpoint(address, 0))
        self.processes[MANAGER] = self._manager(connection=0)
        for source in wiring.sources:
            self.tick_later(source)

    @property
    def instances(self) -> list[Instance]:
        """Those that are alive."""
        return [self.processes[a].machine for a in self.wiring.instances if self.processes[a].alive]

    @property
    def idle(self) -> bool:
        manager = self.processes[MANAGER]
        return manager.alive and manager.machine.phase is Phase.IDLE

    # --- messages -------------------------------------------------------------------------------

    def deliver(self, process: Process, sender: Address, message: Any) -> None:
        """A message reaches a machine: do what it asks, unless it dies over it."""
        kind = type(message)
        self.trace.append((self.network.now, sender, process.address, message))
        moved = kind is Migrate
        if moved:
            self.oracle.migrated(sender, process.machine.generation, process.address)
        instructions: list[Instruction] = process.machine.on(sender, message)
        crash = self.faults.strikes(kind, len(instructions))
        if crash is not None:
            instructions = instructions[: crash.after]
        for instruction in instructions:
            if type(instruction) is Send:
                self._send(process, instruction.to, instruction.message)
                moved = moved or type(instruction.message) is Migrate
            elif type(instruction) is Apply:
                self.oracle.applied(process.address, process.machine.generation, instruction)
            else:
                self._carry_out(process, instruction)
        if crash is not None:
            self.crash(process, crash)
        elif kind is Resume:
            self.tick_later(process.address)
        if moved or crash is not None:
            self.oracle.check_holders(self.instances)

    def tell(self, address: Address, message: Any) -> None:
        """Something happens to a process; what it misses while dead it is told later."""
        process = self.processes[address]
        if process.alive:
            self.deliver(process, address, message)
        elif address is MANAGER:
            self.network.after(40.0, self.tell, address, message)

    def arrive(self, process: Process, frame: Frame) -> None:
        if not process.alive:
            return
        sender, receiver, number = frame[:3]
        messages = process.endpoint.receive(frame)
        if messages is None:
            self.fenced += 1
            return
        if (arrival := self.network.arrival(receiver, sender)) is not None:
            upto = process.endpoint.links[sender].next_in
            self.processes[sender].endpoint.acked(receiver, number, upto, arrival)
        for message in messages:
            if process.alive:
                self.deliver(process, sender, message)

    def repeat(self, process: Process, peer: Address, number: int) -> None:
        """Send again what was not acknowledged, ever more patiently."""
        link = process.endpoint.links.get(peer)
        if not process.alive or link is None or link.number != number:
            return
        overdue = process.endpoint.overdue(peer, self.network.now)
        if not overdue:
            link.patience = 0.0
            return
        for frame in overdue:
            self.repeated += 1
            self.network.post(process.address, peer, self.arrive, self.processes[peer], frame)
        link.patience = min(link.patience * 2, PATIENCE_MAX)
        self.network.after(link.patience, self.repeat, process, peer, number)

    # --- instructions ---------------------------------------------------------------------------

    def _send(self, process: Process, to: Address, message: Any) -> None:
        self.sent[type(message)] += 1
        if type(message) is Migrate:
            self.oracle.migrates(process.address, process.machine.generation, to, message)
        endpoint = process.endpoint
        frame = endpoint.send(to, message)
        self.network.post(process.address, to, self.arrive, self.processes[to], frame)
        link = endpoint.links[to]
        if not link.patience:
            link.patience = PATIENCE
            self.network.after(PATIENCE, self.repeat, process, to, link.number)

    def _carry_out(self, process: Process, instruction: Instruction) -> None:
        generation = getattr(process.machine, "generation", BLANK)
        match instruction:
            case Hold():
                self.oracle.held(process.address, generation, instruction)
            case Cut():
                self.oracle.cut(process.address, generation, instruction)
            case Save(record):
                resumes = record.resumed and not self.record.resumed
                self.record = record
                self.oracle.saved(record)
                if resumes:
                    self.oracle.check_holders(self.instances)
            case Reconnect(number):
                process.endpoint.reconnect(number)
            case _:
                raise AssertionError(instruction)

    # --- sources and crashes --------------------------------------------------------------------

    def tick_later(self, source: Address) -> None:
        if source in self.logs and source not in self.ticking:
            self.ticking.add(source)
            self.network.after(2 * GAP * self.rng.random(), self.tick, source)

    def tick(self, source: Address) -> None:
        """A source reads on, whatever happens elsewhere, until its log ends or it is not there."""
        self.ticking.discard(source)
        process = self.processes[source]
        if not process.alive or not process.machine.running:
            return
        self.deliver(process, source, Emit())
        if process.alive and process.machine.offset < len(self.logs[source]):
            self.tick_later(source)

    def crash(self, process: Process, crash: Crash) -> None:
        address = process.address
        self.trace.append((self.network.now, address, address, crash))
        process.alive = False
        self.crashes[crash.kind] += 1
        if address is MANAGER:
            self.network.after(crash.downtime, self.start_manager)
        else:
            self.network.after(crash.downtime, self.start_instance, address)
            self.network.after(DETECTION * (0.2 + self.rng.random()), self.detect, address)

    def _manager(self, connection: int = NEVER_CONNECTED) -> Process:
        machine = self.parts.manager(self.wiring, self.record, self.make_planner())
        return Process(MANAGER, machine, self.parts.endpoint(MANAGER, connection))

    def start_manager(self) -> None:
        process = self.processes[MANAGER] = self._manager()
        for address in self.wiring.instances:
            self.network.after(DETECTION * self.rng.random(), self.detect, address)
        self.network.after(0.0, self.deliver, process, MANAGER, Boot())
        self.network.after(PERIOD, self.tell, MANAGER, ReconfigurationDue())

    def start_instance(self, address: Address) -> None:
        machine = self.parts.instance(address, self.wiring, self.logs.get(address, ()))
        self.processes[address] = Process(address, machine, self.parts.endpoint(address))

    def detect(self, address: Address) -> None:
        """The failure detector looks at an instance, and tells the manager if it has lost all."""
        process = self.processes[address]
        if not process.alive or process.machine.generation == BLANK:
            self.tell(MANAGER, Lost(address))
