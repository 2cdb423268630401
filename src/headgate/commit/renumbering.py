"""Slots get other numbers between two epochs, so that any of them may leave a flow.

Slots are numbered without gaps. Where others than the last ones leave, those that stay take the
free numbers first (`headgate.planner.leaving.new_order`): what is committed is read again under the
new numbers, tables, files of state, and what waits alike. Nothing moves by that. What is left then
is the ordinary change to fewer slots.

Invariant: the manifest on storage says which numbers hold, until that of the next epoch has the new
ones. So a crash in between finds the old ones, and nothing has been lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from headgate.arrays import I32, I64
from headgate.commit.instances import Instances
from headgate.commit.manifest import Manifest

T = TypeVar("T")


@dataclass(frozen=True)
class Resize:
    """So many slots from the next epoch on, why, the slots of operators in them, and who leaves."""

    slots: int
    why: str = ""
    instances: Instances = field(default_factory=dict)
    gone: tuple[int, ...] = ()

    def leaving(self, slots: int) -> tuple[int, ...] | None:
        """Who leaves of so many; None: the last ones, or who is `gone` was said of other slots."""
        fits = len({*self.gone}) == slots - self.slots and max(self.gone, default=0) < slots
        return tuple(sorted(self.gone)) if self.gone and fits else None


def names_in(order: I64) -> I32:
    """The new number of every slot; entry i of `order` becomes slot i."""
    names = np.empty(len(order), np.int32)
    names[order] = np.arange(len(order), dtype=np.int32)
    return names


def renumbered(last: Manifest, order: I64) -> Manifest:
    """The same epoch under the new numbers, but for its tables, which `TablesInUse` has."""
    name = {old: new for new, old in enumerate(order.tolist())}
    record = last.record
    if record is not None:
        state = {op: _by_slot(by, name) for op, by in record.state.items()}
        record = replace(record, state=state)
    return replace(
        last,
        chains={table: _by_slot(by, name) for table, by in last.chains.items()},
        due={
            op: {str(name.get(int(slot), int(slot))): at for slot, at in by.items()}
            for op, by in last.due.items()
        },
        instances=instances_in(last.instances, order),
        record=record,
    )


def instances_in(instances: Instances, order: I64) -> dict[str, tuple[int, ...]]:
    """The slots of operators under their new numbers."""
    names = names_in(order)
    return {op: tuple(sorted(names[list(own)].tolist())) for op, own in instances.items()}


def in_order(values: Sequence[Any], order: I64) -> tuple[Any, ...]:
    """A value per slot, under the new numbers."""
    return tuple(values[slot] for slot in order.tolist())


def _by_slot(values: Mapping[int, T], name: Mapping[int, int]) -> dict[int, T]:
    return dict(sorted((name.get(slot, slot), value) for slot, value in values.items()))
