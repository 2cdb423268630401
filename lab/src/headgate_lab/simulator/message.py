"""What processes say to each other, and what a state machine asks its host to do.

The first six are the paper's (Caneill et al. 2016, Algorithm 1). `Done` is ours: the paper's
manager never learns that a reconfiguration has ended, and so could not start another. The third
group is the engine's own recovery. Instructions come back from a machine as a list and are
carried out in order; a crash may cut the list short.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from headgate_lab.simulator.shape import Address

if TYPE_CHECKING:
    from headgate_lab.simulator.plan import Handover, Router, Unit
    from headgate_lab.simulator.record import Record

# --- the stream ---------------------------------------------------------------------------------


class Data(NamedTuple):
    """A tuple on its way: `trail` is where it has been, `number` counts what its sender emitted."""

    id: int
    trail: str
    keys: Mapping[str, int]
    number: int


# --- the paper's protocol -----------------------------------------------------------------------


class GetMetrics(NamedTuple):
    """Step 1, manager to every instance."""

    plan: int


class SendMetrics(NamedTuple):
    """Step 2: how often a key here led to a key of a consumer."""

    plan: int
    pairs: Mapping[tuple[str, int, str, int], int]


class SendReconf(NamedTuple):
    """Step 3: new routers, and the units to send and to receive."""

    plan: int
    routers: Mapping[str, Router]
    handover: Handover


class AckReconf(NamedTuple):
    """Step 4."""

    plan: int


class Propagate(NamedTuple):
    """Step 5, manager to roots, then predecessor to successor: what follows is newly routed."""

    plan: int


class Migrate(NamedTuple):
    """Step 6, between instances of one operator: the state of these units is now yours."""

    plan: int
    units: frozenset[Unit]
    states: Mapping[int, int]


class Done(NamedTuple):
    """The instance has switched, given, got and propagated everything of this plan."""

    plan: int


# --- the engine's recovery ----------------------------------------------------------------------


class Hello(NamedTuple):
    """A manager has started: whatever was sent to the one before is lost."""


class Welcome(NamedTuple):
    """Answer to `Hello`: from now on I send to you."""


class TakeSnapshot(NamedTuple):
    """Manager to roots."""

    snapshot: int


class Marker(NamedTuple):
    """Separates what is in a snapshot from what is not, on one channel."""

    snapshot: int


class Part(NamedTuple):
    """What one instance adds to a snapshot; `inflight` was sent to it before and not yet used."""

    version: int
    counts: Mapping[int, int]
    routers: Mapping[str, Router]
    offset: int
    emitted: int
    inflight: tuple[tuple[Address, Data], ...]


class SnapshotPart(NamedTuple):
    """An instance's part is complete."""

    snapshot: int
    part: Part


class Restore(NamedTuple):
    """Forget everything and be as you were; from now on only this generation counts."""

    generation: int
    part: Part


class Restored(NamedTuple):
    """Answer to `Restore`."""

    generation: int


class Resume(NamedTuple):
    """Everybody is restored: go on."""

    generation: int


class Resumed(NamedTuple):
    """Answer to `Resume`."""

    generation: int


# --- what happens to a process without a message ------------------------------------------------


class Emit(NamedTuple):
    """A source's next tuple is there."""


class Boot(NamedTuple):
    """The manager starts, from what is on stable storage."""


class ReconfigurationDue(NamedTuple):
    """The period is over."""


class SnapshotDue(NamedTuple):
    """Time for a snapshot."""


class Lost(NamedTuple):
    """The failure detector tells the manager of a crash."""

    instance: Address


# --- instructions -------------------------------------------------------------------------------


class Send(NamedTuple):
    """Over the reliable channel between the two."""

    to: Address
    message: Any


class Apply(NamedTuple):
    """The tuple has been counted (or passed on, by a stateless operator: key 0)."""

    data: Data
    key: int
    sender: Address


class Hold(NamedTuple):
    """The tuple came before the state of its key and waits."""

    data: Data
    key: int


class Cut(NamedTuple):
    """The instance's state as of now is in this snapshot."""

    snapshot: int


class Save(NamedTuple):
    """Write to stable storage, atomically, before anything that follows in the list."""

    record: Record


class Reconnect(NamedTuple):
    """Open new connections under this number and forget the old ones."""

    number: int


Instruction = Send | Apply | Hold | Cut | Save | Reconnect
