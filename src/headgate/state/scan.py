"""Rows of a state table found by a number that they hold, without an index.

The whole column is compared, a piece at a time that stays in the cache, so that a table of millions
of rows costs milliseconds. What was found is read only where it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from headgate.arrays import I64
from headgate.state.layout import Positions
from headgate.state.rows import StateRows

_PIECE = 1 << 15


@dataclass(frozen=True)
class Scan:
    """The numbers of rows that were found, in no order; it holds until the state is changed."""

    values: I64
    pos: Positions
    read: Callable[[Positions], StateRows]

    def rows(self, index: Positions) -> StateRows:
        """The whole rows of some of them, in file order."""
        return self.read(self.pos[index])


def positions_within(data: I64, spans: Sequence[tuple[int, int]]) -> Positions:
    """Where the numbers are that one of the spans holds, each from a number to below another."""
    found = [np.zeros(0, np.int64)]
    for first in range(0, len(data), _PIECE):
        piece = data[first : first + _PIECE]
        hit = np.zeros(len(piece), np.bool_)
        for low, high in spans:
            hit |= (piece - low).view(np.uint64) < np.uint64(max(0, high - low))
        found.append(np.flatnonzero(hit) + first)
    return np.concatenate(found)
