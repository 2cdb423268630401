"""One route per operator and epoch: who owns a key, and where a row of it is processed.

There is one rule. A row may be folded in a slot that does not own its key; what the rows of a key
have come to there, a partial, then goes to the owner. A *dispatch* says which rows that are:

- `ToOwner`: none; every row goes to the owner of its key.
- `Here`: all; a row is folded in the task that has it.
- `HereUnlessPinned`: rows of keys without a pin. Those of a source, which is in no slot, go to the
  slot that owns their next key, if the row shows that key already (`stops`).
- `Choose`: rows go to the least loaded of a few slots that their key may use.
- `Shares`: rows of the keys in a spread are dealt out in given shares.

Who owns a key never depends on the dispatch, so neither do migration and recovery.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from headgate.errors import UnknownSlot
from headgate.routing.spread import Spread
from headgate.routing.table import RoutingTable

Candidates = Literal["pkg", "d_choices", "w_choices"]


class Stop(NamedTuple):
    """A keyed operator that a row will come to later, and the columns of its key."""

    operator: str
    key: tuple[str, ...]


@dataclass(frozen=True)
class ToOwner:
    """Rows go to the owner of their key."""


@dataclass(frozen=True)
class Here:
    """Rows are folded where they are, whoever owns their key."""


@dataclass(frozen=True)
class HereUnlessPinned:
    """Rows of keys without a pin are folded where they are.

    `stops` holds, by edge, what source rows of it will come to later, next stops first.
    """

    stops: Mapping[int, tuple[Stop, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Choose:
    """Rows go to the least loaded of the slots that their key may use."""

    candidates: Candidates


@dataclass(frozen=True)
class Shares:
    """Rows of the keys of a spread are dealt out by it; frequent keys it lacks go anywhere."""

    spread: Spread = field(default_factory=Spread)


Dispatch = ToOwner | Here | HereUnlessPinned | Choose | Shares
TO_OWNER = ToOwner()


def last_fold(dispatch: Dispatch, home: int) -> int | None:
    """The last level in which rows are folded away from home; None: they never are.

    `home` is the level in which rows are with the owners of their keys if they go there.
    """
    match dispatch:
        case ToOwner():
            return None
        case Here():
            return home - 1
        case HereUnlessPinned(stops):
            return max(home - 1, 1 if stops else 0)
        case Choose() | Shares():
            return home


def end_level(dispatch: Dispatch, home: int) -> int:
    """The level in which an operator has all of its epoch: its rows, and partials of the others."""
    folded = last_fold(dispatch, home)
    return home if folded is None else max(home, folded + 1)


@dataclass(frozen=True)
class Route:
    """How one operator's rows find their slots in one epoch.

    `slots` are those that have an instance of the operator, in ascending order; none: all have.
    """

    table: RoutingTable
    dispatch: Dispatch = TO_OWNER
    slots: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.slots:
            return
        used = np.union1d(self.table.bucket_slots, self.table.pinned_slots)
        strangers = np.setdiff1d(used, self.slots)
        if len(strangers):
            raise UnknownSlot(
                f"a route names slot {strangers[0]} as an owner, but its operator has instances "
                f"in slots {', '.join(map(str, self.slots))} only",
                slot=int(strangers[0]),
                slots=self.table.slots,
            )
