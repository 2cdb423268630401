"""The trace of a run, a line per event, in the paper's words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from headgate_lab.simulator.faults import Crash
from headgate_lab.simulator.message import Data, Lost, Migrate, Restore, SendReconf, SnapshotPart
from headgate_lab.simulator.shape import Address


class Event(NamedTuple):
    """A message reaches a process, or a process crashes."""

    time: float
    sender: Address
    receiver: Address
    message: Any

    def __str__(self) -> str:
        if isinstance(self.message, Crash):
            where = f"{self.receiver} crashes"
        elif self.sender is self.receiver:
            where = f"{self.receiver}"
        else:
            where = f"{self.sender} -> {self.receiver}"
        said = told(self.message)
        if isinstance(self.message, Data) and self.receiver.operator in self.message.keys:
            said += f", key {short(self.message.keys[self.receiver.operator])}"
        return f"{self.time:8.1f}  {where:16}  {said}"

    def concerns(self, tuple_id: int | None, operator: str | None) -> bool:
        """Is this about a certain tuple, or protocol at a certain operator?"""
        if isinstance(self.message, Data):
            return self.message.id == tuple_id
        if isinstance(self.message, Crash | Lost):
            return True
        return operator in (None, self.sender.operator, self.receiver.operator)


def told(message: Any) -> str:
    """What a message says, in one line.

    Examples:
        >>> from headgate_lab.simulator.message import Propagate
        >>> told(Propagate(3))
        'PROPAGATE plan=3'
    """
    teller = _TELLERS.get(type(message))
    if teller is not None:
        return teller(message)
    words = "".join(f"_{c}" if c.isupper() else c for c in type(message).__name__)
    facts = [
        f"{name}={value}"
        for name, value in zip(message._fields, message, strict=True)
        if isinstance(value, int)
    ]
    return " ".join([words[1:].upper(), *facts])


def short(key: int) -> str:
    """The first digits of a key's hash: enough to tell a dozen keys apart."""
    return f"{key:016x}"[:6]


def _crash(crash: Crash) -> str:
    return f"over {crash.kind}, after {crash.after} instructions, for {crash.downtime:.0f}"


def _data(data: Data) -> str:
    return f"tuple {data.id} by way of {data.trail or 'the log'}"


def _reconf(message: SendReconf) -> str:
    send = {to: len(units) for to, units in message.handover.send.items()}
    receive = {of: len(units) for of, units in message.handover.receive.items()}
    return f"SEND_RECONF plan={message.plan} units to send {send}, to receive {receive}"


def _migrate(message: Migrate) -> str:
    states = {short(key): count for key, count in message.states.items()}
    return f"MIGRATE plan={message.plan} units={len(message.units)} states={states}"


def _part(message: SnapshotPart) -> str:
    inflight = len(message.part.inflight)
    return f"SNAPSHOT_PART snapshot={message.snapshot} with {inflight} tuples of the channels"


def _restore(message: Restore) -> str:
    return f"RESTORE generation={message.generation} plan={message.part.version}"


_TELLERS: dict[type[Any], Callable[[Any], str]] = {
    Crash: _crash,
    Data: _data,
    Lost: lambda message: f"LOST {message.instance}",
    Migrate: _migrate,
    Restore: _restore,
    SendReconf: _reconf,
    SnapshotPart: _part,
}
