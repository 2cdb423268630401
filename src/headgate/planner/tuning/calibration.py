"""Fit what the engine charges from probes of known size.

A probe is one job with the flow's own exchange: so many levels and slots, so many messages, so many
bytes. Its time is a sum of five charges, each not negative:

    epoch_s + level_s x rounds of tasks + task_s x tasks / cores
            + message_s x messages / slots at work + byte_s x bytes / slots at work

Starting and ending a task keeps more than its own slot busy (scheduler, executor, Python worker),
so its cost is shared by all cores; what a slot does with messages is its own. Large probes must
not drown small ones, so errors count in shares of the probe's own time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from headgate.errors import DeclarationError
from headgate.planner.tuning.cost_model import EngineCosts


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
        """What the five costs are multiplied with."""
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

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Calibration:
        return cls(
            EngineCosts.from_json(told["costs"]),
            tuple(Probe(**probe) for probe in told["probes"]),
            float(told["error"]),
            str(told.get("engine", "")),
        )


def same_engine(one: str, other: str, elastic: bool = False) -> bool:
    """Were costs measured on such an engine? Costs that do not say where are taken at their word.

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
    charges = np.array([probe.charges for probe in probes])
    if not (seconds > 0).all():
        raise DeclarationError("a probe that took no time tells nothing; repeat it")
    from scipy.optimize import nnls  # late: only who calibrates needs it

    scaled = charges / seconds[:, None]
    unit = scaled.max(axis=0)
    unit[unit == 0] = 1.0
    found, _ = nnls(scaled / unit, np.ones(len(probes)))
    epoch_s, level_s, task_s, message_s, byte_s = (float(v) for v in found / unit)
    off = np.abs(charges @ (found / unit) / seconds - 1.0)
    costs = EngineCosts(message_s, byte_s, task_s, epoch_s, message_bytes_max, level_s)
    return Calibration(costs, tuple(probes), float(np.median(off)), engine)
