"""How long the optimizer takes, by the number of operators: under a second for a hundred, linear.

Chains of operators with costs drawn at random. Every size is timed several times and the least
counts: other work on the machine only adds to it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from headgate.planner.tuning.cost_model import EngineCosts, FlowModel, Step, Stream
from headgate.planner.tuning.epochs import EpochModel
from headgate.planner.tuning.tuned import tune_epochs

OPERATORS = (25, 50, 100, 200)
_TIMES = 5
_COSTS = EngineCosts(
    20e-6, 16e-9, task_s=0.02, epoch_s=0.1, message_bytes_max=8 << 20, level_s=0.03
)


def optimize_times(
    optimizer: Callable[[EpochModel], object] | None = None,
    operators: tuple[int, ...] = OPERATORS,
    *,
    cores: int = 12,
    seed: int = 7,
) -> dict[str, float]:
    """Seconds by the number of operators."""
    run = tune_epochs if optimizer is None else optimizer
    return {str(n): _least_s(run, chain_of(n, cores=cores, seed=seed)) for n in operators}


def chain_of(operators: int, *, cores: int, seed: int) -> EpochModel:
    """A source and so many operators in a row; every third one begins a new level."""
    draw = np.random.default_rng((seed, operators))
    names = ["source", *(f"op_{i}" for i in range(operators))]
    ppt = np.exp(draw.uniform(np.log(1e-8), np.log(1e-5), operators))
    steps = (
        Step("source", 1e-7, source_rate=1e6, at_source=True),
        *(Step(name, float(p)) for name, p in zip(names[1:], ppt, strict=True)),
    )
    streams = tuple(
        Stream(
            names[i],
            names[i + 1],
            row_bytes=float(draw.integers(20, 400)),
            sends=i % 3 == 0,
            between_slots=i % 3 == 0 and i > 0,
            remote_share=1.0 if i % 3 == 0 else 0.0,
        )
        for i in range(operators)
    )
    levels = sum(stream.sends for stream in streams)
    return EpochModel(FlowModel(steps, streams), _COSTS, levels, cores, source_tasks=2)


def _least_s(optimizer: Callable[[EpochModel], object], model: EpochModel) -> float:
    taken = []
    for _ in range(_TIMES):
        started = time.perf_counter()
        optimizer(model)
        taken.append(time.perf_counter() - started)
    return min(taken)
