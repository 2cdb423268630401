"""Pick one of several slots that a row's key may use. Rows that come to a slot that does not own
their key are folded there, and the owner gets a partial.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import numpy as np

from headgate.routing.choices import I32, deal, least_loaded, two_choices
from headgate.routing.hashing import U64
from headgate.routing.route import Choose, Route, Shares
from headgate.routing.spread import Spread
from headgate.sketch.head import HeadKeys, choices_needed

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

    All other keys have two.
    """

    def __init__(self, slots: int, *, every_slot: bool) -> None:
        self._loads = np.zeros(slots, np.int64)
        self._head = HeadKeys(slots)
        self._every_slot = every_slot
        self._judged = self._head.h
        self._choices = slots

    def choose(self, h: U64, owner: I32) -> I32:
        targets = np.empty(len(h), np.int32)
        for part in self._head.stretches(h):
            if self._judged is not self._head.h and not self._every_slot:
                self._judged = self._head.h
                self._choices = choices_needed(self._head.frequency, len(self._loads))
            choices = np.where(self._head.holds(h[part]), self._choices, 2)
            targets[part] = least_loaded(h[part], owner[part], choices, self._loads)
        return targets


class DealtOut:
    """Split units: keys of a spread go to its slots in its shares, most others to their owner.

    A frequent key that the spread does not have is new: it was not hot when that was made. Its
    rows go to any slot, as with W-Choices, until a spread has it.
    """

    def __init__(self, slots: int, spread: Spread, producer: int) -> None:
        self._spread = spread
        self._turn = np.zeros(len(spread), np.uint64)
        self._offset = np.uint64(producer * _OFFSET & _MASK)  # tasks begin at different places
        self._loads = np.zeros(slots, np.int64)
        self._head = HeadKeys(slots)

    def choose(self, h: U64, owner: I32) -> I32:
        spread, slots = self._spread, len(self._loads)
        targets = np.empty(len(h), np.int32)
        for part in self._head.stretches(h):
            keys, dealt = h[part], owner[part].astype(np.int32)
            at = spread.find(keys)
            deal(at, spread.starts, spread.slots, spread.upto, self._turn, self._offset, dealt)
            new = self._head.holds(keys) & (at < 0)
            targets[part] = least_loaded(keys, dealt, np.where(new, slots, 1), self._loads)
        return targets


class Within:
    """A chooser among the operator's own slots, which it knows by their places among them."""

    def __init__(self, slots: tuple[int, ...], chooser: Chooser) -> None:
        self._slots, self._chooser = np.array(slots, np.int32), chooser

    def choose(self, h: U64, owner: I32) -> I32:
        places = np.searchsorted(self._slots, owner).astype(np.int32)
        return self._slots[self._chooser.choose(h, places)]


def make_chooser(route: Route, producer: int) -> Chooser:
    """The chooser of an edge in one task.

    A spread that is empty, since nothing was counted, makes every frequent key a new one.
    """
    slots, dispatch = len(route.slots) or route.table.slots, route.dispatch
    chooser: Chooser
    match dispatch:
        case Choose("pkg"):
            chooser = TwoChoices(slots)
        case Choose(candidates):
            chooser = HeadChoices(slots, every_slot=candidates == "w_choices")
        case Shares(spread):
            if route.slots:
                places = np.searchsorted(route.slots, spread.slots).astype(np.int32)
                spread = replace(spread, slots=places)
            chooser = DealtOut(slots, spread, producer)
        case _:
            raise AssertionError(f"rows of {dispatch} have one slot")
    return Within(route.slots, chooser) if route.slots else chooser
