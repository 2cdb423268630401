"""A flow on an engine, simulated: a tuner's decisions change the epochs that it sees next.

Epochs run one after the other. Each takes the rows that wait, or as many as the source's limit lets
it, and lasts as long as its fixed cost and its rows on the slots there are, both with seeded noise.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from headgate.commit.facts import EdgeFacts, EngineFacts, EpochFacts, TriggerFacts, TuningFacts
from headgate.control.tuner import Tuner


@dataclass(frozen=True)
class Source:
    """Rows per second (None: there is no end of them), and what limits an epoch.

    `told`: what the tuner asks for is done. `reports`: it is known what was left waiting.
    `file_rows`: rows come in files of so many, and an epoch waits for the first of them.
    """

    rate: float | None = None
    limit: int | None = None
    told: bool = False
    reports: bool = False
    noise: float = 0.0
    file_rows: int = 1


@dataclass(frozen=True)
class Engine:
    """`slot_s` and `source_s` of a core for a row; `cores` or, if elastic, a core per slot.

    `slots_had`: more slots than these never come. `every_s`: the trigger's interval.
    """

    slot_s: float = 1.38e-3
    source_s: float = 1e-6
    fixed_s: float = 0.3
    slot_fixed_s: float = 0.0
    beside_s: float = 0.02
    cores: int = 8
    elastic: bool = False
    slots_had: int = 1 << 16
    every_s: float = 0.0
    noise: float = 0.05
    tells_trigger: bool = True


@dataclass
class Lived:
    """What happened: changes as (epoch, "slots" or "rows", number), and how the flow fared."""

    changes: list[tuple[int, str, int]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    starts_s: list[float] = field(default_factory=list)
    jobs_s: list[float] = field(default_factory=list)
    waiting: list[float] = field(default_factory=list)

    def rests_after(self, epoch: int) -> bool:
        return all(change[0] < epoch for change in self.changes)

    def rows_per_s(self, last: int = 100) -> float:
        """What the last epochs got through."""
        seconds = self.starts_s[-1] - self.starts_s[-1 - last]
        return sum(self.rows[-1 - last : -1]) / seconds


def live(
    tuner: Tuner,
    source: Source,
    engine: Engine,
    *,
    slots: int = 2,
    epochs: int = 800,
    seed: int = 1,
) -> Lived:
    """So many epochs; a change of slots or rows comes with the epoch after it was asked for."""
    rng = np.random.default_rng(seed)
    lived, limit = Lived(), source.limit
    now = last_trigger = 0.0
    waiting = float(limit or 1_000)
    left_waiting = False
    for epoch in range(epochs):
        if source.rate is not None and waiting < source.file_rows:
            now += (source.file_rows - waiting) / source.rate
            waiting = float(source.file_rows)
        there = waiting if source.rate is not None else np.inf
        rows = int(there if limit is None else min(there, limit))
        rows -= rows % source.file_rows
        if source.rate is not None:
            waiting = max(0.0, waiting - rows)
        cores = max(engine.cores, slots) if engine.elastic else engine.cores
        fixed = (engine.fixed_s + engine.slot_fixed_s * slots) * np.exp(rng.normal(0, engine.noise))
        in_source = rows * engine.source_s
        in_slots = rows * engine.slot_s / min(slots, cores) * np.exp(rng.normal(0, engine.noise))
        job = fixed + in_source + in_slots
        facts = replace(
            _facts(epoch, slots, rows, engine),
            now_ms=1e3 * now,
            engine=EngineFacts(
                plan_ms=0.0,
                job_ms=1e3 * job,
                levels_ms={0: 1e3 * in_source, 1: 1e3 * in_slots},
                task_ms={0: 1e3 * in_source, 1: 1e3 * rows * engine.slot_s},
                cores=cores,
            ),
            trigger=TriggerFacts(
                1e3 * last_trigger if engine.tells_trigger and epoch else None,
                left_waiting if source.reports and epoch else None,
            ),
        )
        left_waiting = source.rate is None or waiting >= 1
        lived.slots.append(slots)
        lived.rows.append(rows)
        lived.starts_s.append(now)
        lived.jobs_s.append(job)
        lived.waiting.append(waiting)
        advice = tuner.observe(facts)
        last_trigger = job + engine.beside_s
        passed = max(last_trigger, engine.every_s)
        now += passed
        if source.rate is not None:
            waiting += source.rate * passed * np.exp(rng.normal(0, source.noise))
        slots, limit = _obey(advice, epoch, lived, engine, source, slots, limit)
    return lived


def _obey(
    advice: TuningFacts | None,
    epoch: int,
    lived: Lived,
    engine: Engine,
    source: Source,
    slots: int,
    limit: int | None,
) -> tuple[int, int | None]:
    if advice is None:
        return slots, limit
    if advice.note:
        lived.notes.append(advice.note)
    if advice.slots is not None:
        lived.changes.append((epoch, "slots", advice.slots))
        if advice.slots <= engine.slots_had:
            slots = advice.slots
    if advice.rows_per_epoch is not None:
        lived.changes.append((epoch, "rows", advice.rows_per_epoch))
        limit = advice.rows_per_epoch if source.told else limit
    return slots, limit


def _facts(epoch: int, slots: int, rows: int, engine: Engine) -> EpochFacts:
    return EpochFacts(
        epoch=epoch,
        slots=slots,
        rows=rows,
        source_rows={"in": rows},
        sink_rows={"out": 10},
        operator_rows={"in": rows, "op": rows},
        operator_ms={
            "in": (1e3 * rows * engine.source_s,),
            "op": (1e3 * rows * engine.slot_s / slots,) * slots,
        },
        edges={"in->op": EdgeFacts(remote_rows=rows, remote_bytes=8 * rows)},
    )
