"""Compiled: pick one of the slots that a row may go to. Loaded late, for numba takes a while.

The first candidate of a key is its owner, so what is processed there needs no merging; the others
follow from the key's hash. Loads are the sender's own counts (Nasir et al. 2015, "The power of both
choices": local estimates suffice). Loops are over rows in order and counts go on from call to call,
so where chunks end makes no difference. Rows that come to a slot that does not own their key are
folded there, and the owner gets a partial.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numba import njit

from headgate.arrays import I32, I64, U64
from headgate.routing.route import Choose, Route, Shares, Spread
from headgate.routing.space_saving import HeadKeys, choices_needed

_STEP = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio
_M3 = np.uint64(0xBF58476D1CE4E5B9)
_M4 = np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31 = np.uint64(30), np.uint64(27), np.uint64(31)
_OFFSET = 0xD1B54A32D192ED03
_MASK = (1 << 64) - 1


@njit(cache=True)
def least_loaded(h, owner, choices, loads):  # type: ignore[no-untyped-def]
    """A slot per row; counts it in `loads`. `choices[i]`: candidates of row i, the owner first.

    As many as there are slots, or more, means any slot. Ties: the earlier candidate. The second
    candidate differs from the owner; later ones may fall together, as independent hashes do.
    """
    slots = len(loads)
    targets = np.empty(len(h), np.int32)
    for i in range(len(h)):
        home = np.int64(owner[i])
        best = home
        if choices[i] >= slots:
            for j in range(1, slots):
                s = home + j
                if s >= slots:
                    s -= slots
                if loads[s] < loads[best]:
                    best = s
        else:
            for j in range(1, choices[i]):
                x = h[i] + np.uint64(j) * _STEP  # then as `hashing.mix`
                x ^= x >> _S30
                x *= _M3
                x ^= x >> _S27
                x *= _M4
                x ^= x >> _S31
                s = home + 1 + np.int64(x % np.uint64(slots - 1))
                if s >= slots:
                    s -= slots
                if loads[s] < loads[best]:
                    best = s
        loads[best] += 1
        targets[i] = best
    return targets


@njit(cache=True)
def deal(at, starts, slots, upto, turn, offset, targets):  # type: ignore[no-untyped-def]
    """Overwrite the targets of rows of spread keys; `turn` counts each key's rows so far.

    A low-discrepancy sequence deals them out: every run of a key's rows is cut in the given shares,
    give or take a few rows, whatever else the task sends.
    """
    for i in range(len(at)):
        k = at[i]
        if k < 0:
            continue
        turn[k] += np.uint64(1)
        x = turn[k] * _STEP + offset
        j = starts[k]
        last = starts[k + 1] - 1
        while j < last and x >= upto[j]:
            j += 1
        targets[i] = slots[j]


class Chooser:
    """Gives the rows of an edge their slots, in one task.

    `Choose("pkg")`, partial key grouping: every key has two candidates. "d_choices", "w_choices"
    (Nasir et al. 2016): frequent keys have d of them, or all slots. `Shares`: rows of a key in the
    spread are dealt out by it; a frequent key that it lacks was not hot when it was made, and goes
    anywhere until a spread has it.
    """

    def __init__(self, route: Route, producer: int) -> None:
        # Instances go by their places among the operator's slots: others are no candidates.
        self._slots = np.array(route.slots or range(route.table.slots), np.int32)
        self._everywhere = not route.slots
        self._loads = np.zeros(len(self._slots), np.int64)
        self._head = HeadKeys(len(self._slots))
        self._dispatch = route.dispatch
        self._judged, self._choices = self._head.h, len(self._slots)
        self._spread = Spread()
        if isinstance(route.dispatch, Shares):
            spread = route.dispatch.spread
            if route.slots:  # a spread made for other instances must not send rows elsewhere
                spread = spread.within(route.slots)
            self._spread = replace(spread, slots=self._places(spread.slots))
        self._turn = np.zeros(len(self._spread), np.uint64)
        self._offset = np.uint64(producer * _OFFSET & _MASK)  # tasks begin at different places

    def choose(self, h: U64, owner: I32) -> I32:
        """The slot of every row; `owner` is what the routing table says."""
        home = self._places(owner)
        if self._dispatch == Choose("pkg"):
            return self._slots[self._least_loaded(h, home, np.full(len(h), 2, np.int64))]
        targets = np.empty(len(h), np.int32)
        for part in self._head.stretches(h):
            if isinstance(self._dispatch, Shares):
                targets[part] = self._dealt(h[part], home[part])
            else:
                choices = np.where(self._head.holds(h[part]), self._head_choices(), 2)
                targets[part] = self._least_loaded(h[part], home[part], choices)
        return self._slots[targets]

    def _places(self, slots: I32) -> I32:
        if self._everywhere:
            return slots
        return np.searchsorted(self._slots, slots).astype(np.int32)

    def _head_choices(self) -> int:
        """How many slots a frequent key may use, recomputed when the head changes."""
        if self._judged is not self._head.h and self._dispatch == Choose("d_choices"):
            self._judged = self._head.h
            self._choices = choices_needed(self._head.frequency, len(self._loads))
        return self._choices

    def _dealt(self, h: U64, home: I32) -> I32:
        spread, dealt = self._spread, home.copy()
        at = spread.find(h)
        deal(at, spread.starts, spread.slots, spread.upto, self._turn, self._offset, dealt)
        new = self._head.holds(h) & (at < 0)
        return self._least_loaded(h, dealt, np.where(new, len(self._loads), 1))

    def _least_loaded(self, h: U64, home: I32, choices: I64) -> I32:
        targets: I32 = least_loaded(h, home, choices, self._loads)
        return targets
