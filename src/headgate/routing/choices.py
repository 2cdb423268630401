"""Pick one of the slots that a row's key may use: the least loaded, or by given shares.

The first candidate of a key is its owner, so what is processed there needs no merging; the others
follow from the key's hash. Loads are the sender's own counts (Nasir et al. 2015, "The power of both
choices": local estimates suffice). Shares are dealt by a low-discrepancy sequence: every run of a
key's rows is cut in these shares but for a few rows, whatever else the task sends. Loops are over
rows in order and counts go on from call to call, so where chunks end makes no difference.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from headgate.routing.hashing import I64, U64

I32 = npt.NDArray[np.int32]

_STEP = np.uint64(0x9E3779B97F4A7C15)
_M3 = np.uint64(0xBF58476D1CE4E5B9)
_M4 = np.uint64(0x94D049BB133111EB)
_GOLDEN = _STEP  # 2^64 over the golden ratio
_S30, _S27, _S31 = np.uint64(30), np.uint64(27), np.uint64(31)


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
                x = h[i] + np.uint64(j) * _STEP
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


def two_choices(h: U64, owner: I32, loads: I64) -> I32:
    """Partial key grouping: the owner or one other slot, whichever got fewer rows so far."""
    targets: I32 = least_loaded(h, owner, np.full(len(h), 2, np.int64), loads)
    return targets


@njit(cache=True)
def deal(at, starts, slots, upto, turn, offset, targets):  # type: ignore[no-untyped-def]
    """Overwrite the targets of rows of spread keys; `turn` counts each key's rows so far."""
    for i in range(len(at)):
        k = at[i]
        if k < 0:
            continue
        turn[k] += np.uint64(1)
        x = turn[k] * _GOLDEN + offset
        j = starts[k]
        last = starts[k + 1] - 1
        while j < last and x >= upto[j]:
            j += 1
        targets[i] = slots[j]
