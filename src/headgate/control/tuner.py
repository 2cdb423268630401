"""Tune a flow while it runs: what its epochs say in, slots and rows per epoch out.

After every epoch the demand is worked out from rows, time and the calibrated fixed cost, and the
rescaler decides about slots. Every `RETUNE_EPOCHS` the whole flow is measured again and the
optimizer says what it would choose now. Pure but for its memory; who calls it carries out what it
says.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headgate.control.measured_flow import measure_flow
from headgate.errors import DeclarationError
from headgate.planner.tuning.cost_model import EngineCosts, FlowModel
from headgate.planner.tuning.epochs import EpochModel, TunedEpochs, tune_epochs
from headgate.planner.tuning.rescaler import Load, Rescale, RescaleOptions, Rescaler
from headgate.slot.program import Program

RETUNE_EPOCHS = 16
CLEARLY = 0.2  # settings that differ by less than this share are the same


@dataclass(frozen=True)
class Advice:
    """What to do after an epoch: other slots, or settings worth saving; None means neither."""

    rescale: Rescale | None = None
    tuned: TunedEpochs | None = None

    def facts(self) -> dict[str, Any]:
        """For the journal."""
        told: dict[str, Any] = {}
        if self.rescale is not None:
            told |= {"slots": self.rescale.instances, "why": self.rescale.why}
        if self.tuned is not None:
            told["settings"] = self.tuned.to_json()
        return told


class Tuner:
    """Watches one run of a flow; `slots_max` is what the cluster can be made to have."""

    def __init__(
        self,
        program: Program,
        costs: EngineCosts,
        *,
        cores: int,
        slots: int,
        slots_max: int,
        latency_s: float | None = None,
        rescales: bool = True,
    ) -> None:
        self._program, self._costs, self._cores = program, costs, cores
        self._latency_s, self._slots_max = latency_s, slots_max
        bare = FlowModel((), ())
        self._fixed = EpochModel(bare, costs, program.levels, cores).fixed_s
        options = RescaleOptions(most=max(slots_max, slots))
        self._rescaler = Rescaler(slots, options) if rescales else None
        self._records: deque[Mapping[str, Any]] = deque(maxlen=2 * RETUNE_EPOCHS)
        self._chosen: TunedEpochs | None = None
        self._since = 0

    def observe(self, record: Mapping[str, Any]) -> Advice | None:
        """Take in the record of an epoch that is committed."""
        if "job_ms" not in record or record.get("attempts", 1) > 1:
            return None
        before = self._records[-1] if self._records else None
        self._records.append(record)
        advice = Advice(self._rescale(before, record), self._retune())
        return advice if advice.rescale is not None or advice.tuned is not None else None

    def _rescale(
        self, before: Mapping[str, Any] | None, record: Mapping[str, Any]
    ) -> Rescale | None:
        if self._rescaler is None or before is None or before["slots"] != record["slots"]:
            return None  # an epoch that moves state says nothing about the next ones
        if record["slots"] != self._rescaler.instances:
            return None  # a decision is under way
        load = self.load_between(before, record)
        return None if load is None else self._rescaler.observe(load)

    def load_between(self, before: Mapping[str, Any], record: Mapping[str, Any]) -> Load | None:
        """Rows of an epoch against the time until the next one began, and what a row cost."""
        seconds = (record["now_ms"] - before["now_ms"]) / 1e3
        rows, slots = before["rows"], before["slots"]
        if seconds <= 0 or rows == 0:
            return Load(0.0, 0.0) if seconds > 0 else None
        spent = (before["job_ms"] + before.get("plan_ms", 0.0)) / 1e3
        work = max(0.0, spent - self._fixed(slots)) * min(slots, self._cores)
        return Load(rows / seconds, work / rows)

    def _retune(self) -> TunedEpochs | None:
        self._since += 1
        if self._since < RETUNE_EPOCHS:
            return None
        self._since = 0
        try:
            found = measure_flow(self._program, list(self._records), self._costs, self._cores)
        except DeclarationError:
            return None  # an idle stream
        tuned = tune_epochs(
            found.model,
            rate=found.rows_per_s,
            latency_s=self._latency_s,
            slots_max=self._slots_max,
        )
        if self._chosen is not None and _alike(self._chosen, tuned):
            return None
        self._chosen = tuned
        return tuned


def _alike(one: TunedEpochs, other: TunedEpochs) -> bool:
    few, many = sorted((one.settings.rows_per_epoch, other.settings.rows_per_epoch))
    return one.settings.slots == other.settings.slots and few >= (1 - CLEARLY) * many
