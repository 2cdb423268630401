"""How a task picks the slots of rows whose keys may be processed in several: one chooser per edge.

A chooser is a function of the rows of its edge in order, and of the plan: it keeps counts from
chunk to chunk, starts from nothing with every task, and does not notice where a chunk ends. Rows
that it sends to a slot that does not own their key are processed there as rows that are away.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from headgate.routing.choices import I32, deal, least_loaded, two_choices
from headgate.routing.hashing import U64
from headgate.routing.spread import Spread
from headgate.sketch.head import HeadKeys, choices_needed
from headgate.topology.graph import KeyGrouping

_OFFSET = 0xD1B54A32D192ED03
_MASK = (1 << 64) - 1


class Chooser(Protocol):
    """Gives each row a slot; `owner` is what the routing table says."""

    def choose(self, h: U64, owner: I32) -> I32: ...


class TwoChoices:
    """Partial key grouping (Nasir et al. 2015): every key has two slots."""

    def __init__(self, slots: int) -> None:
        self._loads = np.zeros(slots, np.int64)

    def choose(self, h: U64, owner: I32) -> I32:
        return two_choices(h, owner, self._loads)


class HeadChoices:
    """D-Choices and W-Choices (Nasir et al. 2016): frequent keys have d slots, or all of them.

    All other keys have `tail` slots, two as published.
    """

    def __init__(self, slots: int, *, every_slot: bool, tail: int = 2) -> None:
        self._loads = np.zeros(slots, np.int64)
        self._head = HeadKeys(slots)
        self._every_slot, self._tail = every_slot, tail
        self._judged = self._head.h
        self._choices = slots

    def choose(self, h: U64, owner: I32) -> I32:
        targets = np.empty(len(h), np.int32)
        for part in self._head.stretches(h):
            if self._judged is not self._head.h and not self._every_slot:
                self._judged = self._head.h
                self._choices = choices_needed(self._head.frequency, len(self._loads))
            choices = np.where(self._head.holds(h[part]), self._choices, self._tail)
            targets[part] = least_loaded(h[part], owner[part], choices, self._loads)
        return targets


class Shares:
    """Split units: keys of a spread go to its slots in its shares, all others to their owner."""

    def __init__(self, spread: Spread, producer: int) -> None:
        self._spread = spread
        self._turn = np.zeros(len(spread), np.uint64)
        self._offset = np.uint64(producer * _OFFSET & _MASK)  # tasks begin at different places

    def choose(self, h: U64, owner: I32) -> I32:
        if not len(self._spread):
            return owner
        spread, targets = self._spread, owner.copy()
        deal(
            spread.find(h),
            spread.starts,
            spread.slots,
            spread.upto,
            self._turn,
            self._offset,
            targets,
        )
        return targets


def make_chooser(
    grouping: KeyGrouping, slots: int, producer: int, spread: Spread | None
) -> Chooser:
    """The chooser of an edge in one task.

    A split grouping that has no spread yet, since nothing was counted, sends frequent keys to any
    slot, as W-Choices does, and all others to their owner.
    """
    if grouping == "pkg":
        return TwoChoices(slots)
    if grouping == "d_choices":
        return HeadChoices(slots, every_slot=False)
    if grouping == "w_choices":
        return HeadChoices(slots, every_slot=True)
    assert grouping == "split", grouping
    if spread is None:
        return HeadChoices(slots, every_slot=True, tail=1)
    return Shares(spread, producer)
