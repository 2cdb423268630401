"""What rows cost on their way through a flow, in the terms of Sax et al. 2013.

A row is created by a producer, waits for its batch, is shipped (a message costs n, a byte s),
queues at the consumer and is processed there (ppt, the pure processing time). An instance ships
what it makes, one after the other with its processing, so a row that comes in keeps it busy for

    ppt + sum over its outputs of rows_per_row x (n / batch + t x s)

Everything here follows from that line. Sources fetch while they ship: in it their ppt is 0, and
their rate is given. Rows that stay in their slot are not shipped; the paper has none of these.
Times are seconds, rates rows per second.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from headgate.errors import DeclarationError

PAPER_MESSAGE_BYTES_MAX = 64 << 10
ROUNDING = 1e-9  # what sums of measured times may be off by; less than any row costs


@dataclass(frozen=True)
class EngineCosts:
    """What the engine charges: n (`message_s`), s (`byte_s`), and B_max in bytes.

    Only an engine that runs in epochs has the others: `epoch_s`, an epoch without anything in it,
    `level_s` each round of tasks, and `task_s` each task, which takes a core's time.
    """

    message_s: float
    byte_s: float
    task_s: float = 0.0
    epoch_s: float = 0.0
    message_bytes_max: int = PAPER_MESSAGE_BYTES_MAX
    level_s: float = 0.0

    def __post_init__(self) -> None:
        times = (self.message_s, self.byte_s, self.task_s, self.epoch_s, self.level_s)
        if not all(math.isfinite(t) and t >= 0 for t in times) or self.message_bytes_max < 1:
            raise DeclarationError(f"costs must be finite and not negative: {self}")

    def batch_rows_max(self, row_bytes: float) -> int:
        """B_max in rows of this size; a row larger than a message travels alone."""
        return max(1, int(self.message_bytes_max / max(row_bytes, 1.0)))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> EngineCosts:
        return cls(**{name: told[name] for name in cls.__dataclass_fields__ if name in told})


@dataclass(frozen=True)
class Step:
    """An operator as the model sees it. A source has a rate, and a dop that is the user's.

    The ppt of a source is what reading a row takes; it counts where reading takes a core from
    others (`epochs`), not where a source ships while it waits for its next row.
    """

    name: str
    ppt_s: float = 0.0
    source_rate: float | None = None
    source_dop: int = 1

    @property
    def is_source(self) -> bool:
        return self.source_rate is not None


@dataclass(frozen=True)
class Stream:
    """An edge: rows on it per row that the producer takes in, and bytes of a row (t).

    `remote_share` of the rows leave their slot.
    """

    producer: str
    consumer: str
    rows_per_row: float = 1.0
    row_bytes: float = 100.0
    remote_share: float = 1.0

    @property
    def name(self) -> str:
        return f"{self.producer}->{self.consumer}"

    @property
    def shipped_per_row(self) -> float:
        return self.rows_per_row * self.remote_share


@dataclass(frozen=True)
class FlowModel:
    """Steps and streams of an acyclic flow; every step but a source has an input."""

    steps: tuple[Step, ...]
    streams: tuple[Stream, ...]
    order: tuple[str, ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        names = [step.name for step in self.steps]
        ends = {s.producer for s in self.streams} | {s.consumer for s in self.streams}
        fed = {s.consumer for s in self.streams}
        wrong = None
        if len(set(names)) < len(names):
            wrong = "two steps of one name"
        elif ends - set(names):
            wrong = f"a stream names {', '.join(sorted(ends - set(names)))}, which is no step"
        elif idle := [s.name for s in self.steps if not s.is_source and s.name not in fed]:
            wrong = f"{', '.join(idle)} get no rows; give a source_rate, or a stream to them"
        elif any(s.is_source and s.name in fed for s in self.steps):
            wrong = "a stream leads into a source"
        if wrong:
            raise DeclarationError(f"no model of a flow: {wrong}")
        object.__setattr__(self, "order", self._topological_order())

    @cached_property
    def step(self) -> dict[str, Step]:
        return {step.name: step for step in self.steps}

    @cached_property
    def outputs(self) -> dict[str, tuple[Stream, ...]]:
        return self._streams_by("producer")

    @cached_property
    def inputs(self) -> dict[str, tuple[Stream, ...]]:
        return self._streams_by("consumer")

    @cached_property
    def rate_in(self) -> dict[str, float]:
        """Rows per second into each step if nothing held the sources back."""
        rates: dict[str, float] = {}
        for name in self.order:
            given = self.step[name].source_rate
            rates[name] = (
                sum(rates[s.producer] * s.rows_per_row for s in self.inputs[name])
                if given is None
                else given
            )
        return rates

    @property
    def source_rate(self) -> float:
        return sum(s.source_rate for s in self.steps if s.source_rate is not None)

    def _streams_by(self, end: str) -> dict[str, tuple[Stream, ...]]:
        found: dict[str, list[Stream]] = {step.name: [] for step in self.steps}
        for stream in self.streams:
            found[getattr(stream, end)].append(stream)
        return {name: tuple(streams) for name, streams in found.items()}

    def _topological_order(self) -> tuple[str, ...]:
        waiting = {name: len(streams) for name, streams in self.inputs.items()}
        order = [name for name, count in waiting.items() if count == 0]
        for name in order:  # grows while it is walked
            for stream in self.outputs[name]:
                waiting[stream.consumer] -= 1
                if waiting[stream.consumer] == 0:
                    order.append(stream.consumer)
        if len(order) < len(self.steps):
            raise DeclarationError("no model of a flow: it feeds back into itself")
        return tuple(order)


def rows_of(costs: EngineCosts, stream: Stream, batch_rows: float) -> float:
    """Rows of a batch on this stream: as asked, within B_max."""
    return min(max(1.0, batch_rows), costs.batch_rows_max(stream.row_bytes))
