"""Operators that take a given time for every row, by waiting or by computing.

Waiting is what a call to a service does: it needs no core, so any number of instances wait at once.
Computing needs one, so more instances than cores gain nothing.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.operator import Count, Output
from headgate.operator.rows import EpochClock, KeyedRows
from headgate.state.session import StateSession

TURN_S = 8e-9  # of computing, on the machine where it was tried


@dataclass(frozen=True)
class Spends:
    """What is done for a row: waiting so long, or computing so many turns."""

    wait_s: float = 0.0
    turns: int = 0

    @property
    def row_s(self) -> float:
        """Roughly; what turns take depends on the machine."""
        return self.wait_s + self.turns * TURN_S

    def on(self, rows: int) -> None:
        if self.wait_s:
            time.sleep(rows * self.wait_s)
        values = np.linspace(0.0, 1.0, rows)
        for _ in range(self.turns):
            values = np.sin(values)


@dataclass(frozen=True)
class Passing:
    """A stateless step that takes its time."""

    spends: Spends

    def __call__(self, batch: pa.RecordBatch) -> dict[str, Any]:
        self.spends.on(batch.num_rows)
        return {name: batch.column(name) for name in batch.schema.names}


@dataclass(frozen=True)
class TimedCount(Count):
    """A count that takes its time."""

    spends: Spends = field(default=Spends(), kw_only=True)

    def process(self, rows: KeyedRows, state: StateSession, clock: EpochClock) -> Output:
        self.spends.on(len(rows))
        return super().process(rows, state, clock)
