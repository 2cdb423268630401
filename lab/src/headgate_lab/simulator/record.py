"""What the manager keeps on stable storage: all that must survive it.

A plan is saved as `target` before any instance hears of it, and becomes `base` when every instance
has finished it. So after a crash `target != base` says: this plan may be installed here and there;
finish it. The record is replaced as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from headgate_lab.simulator.message import Part
from headgate_lab.simulator.plan import Plan
from headgate_lab.simulator.shape import Address


class Snapshot(NamedTuple):
    """A complete snapshot of the stream, and the plan that held everywhere when it was taken."""

    number: int
    plan: Plan
    parts: Mapping[Address, Part]


class Record(NamedTuple):
    """The manager's memory on disk."""

    base: Plan
    target: Plan
    snapshot: Snapshot
    begun: int = 0  # number of the last snapshot that was begun, complete or not
    generation: int = 0  # grows with every recovery; instances talk only within one
    connection: int = 0  # grows with every start and every recovery of the manager's channels
    resumed: bool = True  # False while a recovery is under way
