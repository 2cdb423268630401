"""How a cost-aware shuffle estimates and schedules; inert, part of an edge's grouping."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headgate.errors import DeclarationError

Schedule = Literal["batch", "online"]


@dataclass(frozen=True)
class CostOptions:
    """Settings of one cost-aware edge.

    `schedule`: "batch" places what takes long first, over all rows of a task's window; "online"
    places row after row, as Rivetti et al. 2016 do. `epsilon` and `delta` give the sketches their
    size: a value's frequency is over by more than epsilon of all rows with probability delta.
    """

    schedule: Schedule = "batch"
    epsilon: float = 0.0005
    delta: float = 0.05

    def __post_init__(self) -> None:
        if self.schedule not in ("batch", "online"):
            raise DeclarationError(f"schedule={self.schedule!r}; choose 'batch' or 'online'")
        if not (1e-6 <= self.epsilon < 1 and 1e-6 <= self.delta < 1):
            raise DeclarationError(
                f"epsilon={self.epsilon}, delta={self.delta}; both lie between 0.000001 and 1"
            )
