"""What rows cost on their way through a flow, in the terms of Sax et al. 2013, and on an engine.

A producer creates a row, the row waits for its batch, is shipped (a message costs n, a byte s),
queues at the consumer and is processed there (ppt, the pure processing time). Rows that stay in
their slot are not shipped; the paper has none of these. Times are seconds, rates rows per second.

What the engine charges is fitted from *probes*: jobs with the flow's own exchange, of so many
levels, slots, messages and bytes. The time of a probe is a sum of five charges, none negative:

    epoch_s + level_s x rounds of tasks + task_s x tasks / cores
            + message_s x messages / slots at work + byte_s x bytes / slots at work

Starting and ending a task keeps more than its own slot busy (scheduler, executor, Python worker),
so its cost is shared by all cores; what a slot does with messages is its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter

import numpy as np

from headgate.errors import DeclarationError

PAPER_MESSAGE_BYTES_MAX = 64 << 10  # B_max of the paper's engine; ours has its own
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


@dataclass(frozen=True)
class Step:
    """An operator's costs. A source has a rate, and a degree of parallelism that the user sets.

    The ppt of a source is what reading a row takes; it counts where reading takes a core from
    others (`epochs`), not where a source ships while it waits for its next row.

    The last five are for engines that run in epochs: `wait_s` of the ppt needs no core;
    `instance_s` is what every instance takes in an epoch, however few its rows; `instances` is how
    many it has where that is not to be chosen; `everywhere`: every slot has one, whatever is
    chosen; `ordered`: it puts out nothing before it has all its rows.
    """

    name: str
    ppt_s: float = 0.0
    source_rate: float | None = None
    source_dop: int = 1
    at_source: bool = False  # it runs in source tasks, before the first exchange
    wait_s: float = 0.0
    instance_s: float = 0.0
    instances: int | None = None
    everywhere: bool = False
    ordered: bool = False

    @property
    def is_source(self) -> bool:
        return self.source_rate is not None

    @property
    def in_source_tasks(self) -> bool:
        return self.is_source or self.at_source


@dataclass(frozen=True)
class Stream:
    """An edge: rows on it per row that the producer takes in, and bytes of a row (t)."""

    producer: str
    consumer: str
    rows_per_row: float = 1.0
    row_bytes: float = 100.0
    remote_share: float = 1.0  # of its rows leave their slot
    sends: bool = True  # batch tuples; else rows stay inside a task
    between_slots: bool = False  # from one slot to another: the fewer slots, the more rows stay

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

    def __post_init__(self) -> None:
        names = {step.name for step in self.steps}
        fed = {s.consumer for s in self.streams}
        strange = sorted(({s.producer for s in self.streams} | fed) - names)
        idle = [s.name for s in self.steps if not s.is_source and s.name not in fed]
        wrong = None
        if len(names) < len(self.steps):
            wrong = "two steps of one name"
        elif strange:
            wrong = f"a stream names {', '.join(strange)}, which is no step"
        elif idle:
            wrong = f"{', '.join(idle)} get no rows; give a source_rate, or a stream to them"
        elif any(s.is_source and s.name in fed for s in self.steps):
            wrong = "a stream leads into a source"
        if wrong:
            raise DeclarationError(f"no model of a flow: {wrong}")
        _ = self.order  # refuse a cycle at once

    @cached_property
    def order(self) -> tuple[str, ...]:
        """Names of the steps, producers before consumers."""
        producers = {name: [s.producer for s in into] for name, into in self.inputs.items()}
        try:
            return tuple(TopologicalSorter(producers).static_order())
        except CycleError:
            raise DeclarationError("no model of a flow: it feeds back into itself") from None

    @cached_property
    def step(self) -> dict[str, Step]:
        return {step.name: step for step in self.steps}

    @cached_property
    def outputs(self) -> dict[str, tuple[Stream, ...]]:
        return {n: tuple(s for s in self.streams if s.producer == n) for n in self.step}

    @cached_property
    def inputs(self) -> dict[str, tuple[Stream, ...]]:
        return {n: tuple(s for s in self.streams if s.consumer == n) for n in self.step}

    @cached_property
    def rate_in(self) -> dict[str, float]:
        """Rows per second into each step if nothing held the sources back."""
        rates: dict[str, float] = {}
        for name in self.order:
            given = self.step[name].source_rate
            fed = sum(rates[s.producer] * s.rows_per_row for s in self.inputs[name])
            rates[name] = fed if given is None else given
        return rates

    @property
    def source_rate(self) -> float:
        return sum(s.source_rate for s in self.steps if s.source_rate is not None)


def rows_of(costs: EngineCosts, stream: Stream, batch_rows: float) -> float:
    """Rows of a batch on this stream: as asked, within B_max."""
    return min(max(1.0, batch_rows), costs.batch_rows_max(stream.row_bytes))


@dataclass(frozen=True)
class Probe:
    """One job: its size, the cores that shared it, and its median seconds."""

    levels: int
    slots: int
    cores: int
    messages: int
    bytes: int
    seconds: float

    @property
    def charges(self) -> tuple[float, float, float, float, float]:
        """How often each of the five costs is charged."""
        rounds, share = self.levels + 1.0, min(self.slots, self.cores)
        tasks = rounds * self.slots / self.cores
        return 1.0, rounds, tasks, self.messages / share, self.bytes / share


@dataclass(frozen=True)
class Calibration:
    """The costs, the probes they come from, and how far off they are (median share)."""

    costs: EngineCosts
    probes: tuple[Probe, ...]
    error: float
    engine: str = ""


def same_engine(one: str, other: str, elastic: bool = False) -> bool:
    """Were costs measured on such an engine? Costs that do not say where are trusted.

    `elastic`: cores come and go, and say nothing about the engine.

    Examples:
        >>> same_engine("Spark 4.1.0, local, 2 cores", "Spark 4.1.0, local, 8 cores")
        False
        >>> same_engine("Spark 4.1.0, spark, 2 cores", "Spark 4.1.0, spark, 8 cores", elastic=True)
        True
    """
    if elastic:
        one, other = one.rpartition(",")[0], other.rpartition(",")[0]
    return one in ("", other)


def fit(probes: Sequence[Probe], message_bytes_max: int, engine: str = "") -> Calibration:
    """The five costs that explain the probes best."""
    if len(probes) < 5:
        raise DeclarationError(f"{len(probes)} probes cannot tell five costs apart; make more")
    seconds = np.array([probe.seconds for probe in probes])
    if not (seconds > 0).all():
        raise DeclarationError("a probe that took no time tells nothing; repeat it")
    from scipy.optimize import nnls  # late: only who calibrates needs it

    # Large probes must not drown small ones: errors count in shares of the probe's own time.
    scaled = np.array([probe.charges for probe in probes]) / seconds[:, None]
    unit = scaled.max(axis=0)
    unit[unit == 0] = 1.0
    found = nnls(scaled / unit, np.ones(len(probes)))[0] / unit
    epoch_s, level_s, task_s, message_s, byte_s = found.tolist()
    costs = EngineCosts(message_s, byte_s, task_s, epoch_s, message_bytes_max, level_s)
    off = np.abs(scaled @ found - 1.0)
    return Calibration(costs, tuple(probes), float(np.median(off)), engine)
