"""Flows drawn at random, to see how well their throughput and latency are predicted.

One to four operators in a row, each behind an exchange of its own: stateless behind a shuffle, or a
count behind a key. Each takes its time for a row by waiting, as for a service, or by computing. The
last one may be followed by a tiny global count. Rows have a payload of up to 400 bytes that travels
all the way. Every flow follows from its seed and number alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.operator import Count
from headgate.topology.stream import Stream
from headgate_lab.bench.spending import Passing, Spends, TimedCount
from headgate_lab.bench.tune_flows import BenchFlow

OPERATORS_MAX = 4
WAIT_S = (10e-6, 200e-6)  # a row's, drawn evenly on a logarithmic scale
TURNS = (3, 300)  # of computing, some 8 ns each
PAYLOAD_BYTES_MAX = 400
KEYS = (50, 20_000)


@dataclass(frozen=True)
class Step:
    """`keys` 0: stateless behind a shuffle; else a count behind a key of so many values."""

    name: str
    spends: Spends
    keys: int = 0


@dataclass(frozen=True)
class Drawn:
    """A flow's shape; `total`: a global count at the end."""

    number: int
    steps: tuple[Step, ...]
    payload_bytes: int
    total: bool

    @property
    def row_s(self) -> float:
        """What a row takes in all operators together, roughly."""
        return sum(step.spends.row_s for step in self.steps)

    @property
    def keyed(self) -> tuple[Step, ...]:
        return tuple(step for step in self.steps if step.keys)


def draw(number: int, seed: int) -> Drawn:
    """The shape of a flow."""
    dice = np.random.default_rng((seed, number))
    steps = []
    for place in range(int(dice.integers(1, OPERATORS_MAX + 1))):
        waits, keyed = dice.random() < 0.5, dice.random() < 0.7
        spends = (
            Spends(wait_s=float(_even(dice, WAIT_S)))
            if waits
            else Spends(turns=round(_even(dice, TURNS)))
        )
        steps.append(Step(f"op_{place}", spends, round(_even(dice, KEYS)) if keyed else 0))
    payload = int(dice.integers(0, PAYLOAD_BYTES_MAX + 1))
    return Drawn(number, tuple(steps), payload, bool(dice.random() < 0.5))


def flow_of(drawn: Drawn, seed: int) -> BenchFlow:
    """The flow, with rows to feed it."""
    schema = _schema(drawn)

    def make(rows: int, epoch: int) -> pa.Table:
        dice = np.random.default_rng((seed, drawn.number, epoch))
        columns = [pa.array(dice.integers(step.keys, size=rows)) for step in drawn.keyed]
        text = pa.array([b"x" * drawn.payload_bytes] * rows, pa.binary())
        return pa.table([*columns, text], schema=schema)

    def attach(stream: Stream) -> None:
        for step in drawn.steps:
            if step.keys:
                stream = stream.key_by(_key(step), grouping="hash").process(
                    TimedCount(emit="rows", spends=step.spends), name=step.name
                )
            else:
                stream = stream.shuffle().map(Passing(step.spends), schema, name=step.name)
        if drawn.total:
            stream.filter(_few, name="few").globally(grouping="hash").process(Count(), name="total")
        stream.filter(_few, name="last").to_table("seen")

    return BenchFlow(f"random-{drawn.number}", schema, make, attach)


def _schema(drawn: Drawn) -> pa.Schema:
    keys = [pa.field(_key(step), pa.int64()) for step in drawn.keyed]
    return pa.schema([*keys, pa.field("payload", pa.binary())])


def _key(step: Step) -> str:
    return f"{step.name}_key"


def _few(batch: pa.RecordBatch) -> Any:
    """One row in a hundred; it reads the payload, which therefore has to come along."""
    first = np.arange(batch.num_rows) % 100 == 0
    return pa.array(first & np.asarray(batch.column("payload").is_valid()))


def _even(dice: np.random.Generator, limits: tuple[float, float]) -> float:
    """Evenly on a logarithmic scale."""
    return float(np.exp(dice.uniform(*np.log(limits))))
