"""Tune a flow while it runs: what its epochs say in, slots and rows per epoch out.

After every epoch the demand is worked out from rows, time and the calibrated fixed cost, and the
rescaler decides about slots. Every `RETUNE_EPOCHS` the whole flow is measured again and the
optimizer says what it would choose now. A backlog keeps any number of slots busy, so there its
word counts: slots that would not pay are not asked for, and other slots that would, are. Other
rows per epoch need a restart of Spark's query, so
they are asked for only where they change something: a stream with a backlog, whose epochs are as
large as the source lets them be, or epochs too large for the latency that was asked for. Pure but
for its memory; who calls it carries out what it says.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from headgate.control.epoch_pace import FULL
from headgate.control.measured_flow import Measured, measure_flow
from headgate.errors import DeclarationError
from headgate.planner.tuning.cost_model import EngineCosts, FlowModel
from headgate.planner.tuning.epoch_model import EpochModel
from headgate.planner.tuning.epochs import TunedEpochs, tune_epochs
from headgate.planner.tuning.rescaler import Load, Rescale, RescaleOptions, Rescaler
from headgate.slot.program import Program

RETUNE_EPOCHS = 16
CLEARLY = 0.2  # settings that differ by less than this share are the same
PAYS = 0.1  # more rows per second that other slots must promise a backlog
GROWTH = 8  # times the rows of the epochs that were measured: beyond that the model is a guess
LEFT_LEAST = 0.25  # of the time, for slots: what source tasks may take of it at most in the demand


@dataclass(frozen=True)
class EpochRows:
    """Rows per epoch that are worth a restart of the query, and why."""

    rows: int
    why: str


@dataclass(frozen=True)
class Advice:
    """What to do after an epoch: other slots, other rows per epoch, settings worth saving."""

    rescale: Rescale | None = None
    tuned: TunedEpochs | None = None
    epoch_rows: EpochRows | None = None

    def __bool__(self) -> bool:
        return any(part is not None for part in (self.rescale, self.tuned, self.epoch_rows))

    def facts(self) -> dict[str, Any]:
        """For the journal."""
        told: dict[str, Any] = {}
        if self.rescale is not None:
            told |= {"slots": self.rescale.instances, "why": self.rescale.why}
        if self.tuned is not None:
            told["settings"] = self.tuned.to_json()
        if self.epoch_rows is not None:
            told |= {"rows_per_epoch": self.epoch_rows.rows, "why_rows": self.epoch_rows.why}
        return told


class Tuner:
    """Watches one run of a flow; `slots_max` is what the cluster can be made to have.

    `rescales`: slots may be changed. `limits`: rows per epoch may, as sources can be told;
    `rows_per_epoch` is what they were told last.
    """

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
        limits: bool = False,
        rows_per_epoch: int | None = None,
    ) -> None:
        self._program, self._costs, self._cores = program, costs, cores
        self._latency_s, self._slots_max, self._limits = latency_s, slots_max, limits
        bare = FlowModel((), ())
        self._fixed = EpochModel(bare, costs, program.levels, cores).fixed_s
        options = RescaleOptions(most=max(slots_max, slots))
        self._rescaler = Rescaler(slots, options) if rescales else None
        self._records: deque[Mapping[str, Any]] = deque(maxlen=2 * RETUNE_EPOCHS)
        self._chosen: TunedEpochs | None = None
        self._told_rows = rows_per_epoch
        self._since = 0

    def observe(self, record: Mapping[str, Any]) -> Advice | None:
        """Take in the record of an epoch that is committed."""
        if "job_ms" not in record or record.get("attempts", 1) > 1:
            return None
        before = self._records[-1] if self._records else None
        self._records.append(record)
        rescale = self._rescale(before, record)
        advice = self._retune()
        return replace(advice, rescale=rescale or advice.rescale) or None

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
        """Rows of an epoch against the time until the next one began, and what a row cost.

        Slots have the time that source tasks leave: these run first, whatever the slots, and if
        they are what fills an epoch, more slots are no help.
        """
        seconds = (record["now_ms"] - before["now_ms"]) / 1e3
        rows, slots = before["rows"], before["slots"]
        if seconds <= 0 or rows == 0:
            return Load(0.0, 0.0) if seconds > 0 else None
        spent = (before["job_ms"] + before.get("plan_ms", 0.0)) / 1e3
        on_rows = max(0.0, spent - self._fixed(slots))
        in_slots = _share_of_slots(before.get("levels_ms", {}))
        left = max(LEFT_LEAST, 1.0 - on_rows * (1.0 - in_slots) / seconds)
        work = on_rows * in_slots * min(slots, self._cores)
        return Load(rows / seconds, work / rows / left)

    def _retune(self) -> Advice:
        self._since += 1
        if self._since < RETUNE_EPOCHS:
            return Advice()
        self._since = 0
        try:
            found = measure_flow(self._program, list(self._records), self._costs, self._cores)
        except DeclarationError:
            return Advice()  # an idle stream
        choose = partial(
            tune_epochs,
            found.model,
            rate=None if found.backlog else found.arriving_per_s,
            latency_s=self._latency_s,
            slots_max=self._slots_max,
            rows_max=GROWTH * found.epoch_rows,
        )
        tuned, now = choose(), self._records[-1]["slots"]
        staying = tuned if tuned.settings.slots == now else choose(slots=now)
        rescale = self._other_slots(found, tuned, staying)
        asked = self._epoch_rows(found, staying if rescale is None else tuned)
        if self._chosen is not None and _alike(self._chosen, tuned):
            return Advice(rescale, None, asked)
        self._chosen = tuned
        return Advice(rescale, tuned, asked)

    def _other_slots(
        self, found: Measured, tuned: TunedEpochs, staying: TunedEpochs
    ) -> Rescale | None:
        """For a backlog, the optimizer's slots; the rescaler is not to undo them."""
        if self._rescaler is None or self._rescaler.instances != staying.settings.slots:
            return None
        slots, rate = tuned.settings.slots, tuned.prediction.rows_per_s
        if not found.backlog:
            self._rescaler.limit(self._slots_max)
            return None
        if rate <= (1 + PAYS) * staying.prediction.rows_per_s:
            self._rescaler.limit(staying.settings.slots)
            return None
        self._rescaler.limit(slots)
        self._rescaler.moved(slots)
        why = f"{rate:,.0f} rows/s of the backlog are expected with {slots} slots, with "
        return Rescale(slots, f"{why}{staying.settings.slots} {staying.prediction.rows_per_s:,.0f}")

    def _epoch_rows(self, found: Measured, tuned: TunedEpochs) -> EpochRows | None:
        """Another limit for the slots there are, if it would make itself felt."""
        wanted, typical = tuned.settings.rows_per_epoch, found.epoch_rows
        smaller = wanted < (1 - CLEARLY) * typical
        larger = typical < (1 - CLEARLY) * wanted
        limited = found.backlog and typical >= FULL * (self._told_rows or 0)
        late = self._latency_s is not None and smaller
        if not self._limits or not (late or (limited and (smaller or larger))):
            return None
        self._told_rows = wanted
        seen = "all as large as the source allows" if limited else "as they come"
        told = tuned.prediction
        why = f"epochs have {typical:,} rows, {seen}; with {wanted:,} one takes "
        why += f"{told.epoch_s:.2g} s, and {told.rows_per_s:,.0f} rows/s get through"
        return EpochRows(wanted, why)


def _alike(one: TunedEpochs, other: TunedEpochs) -> bool:
    few, many = sorted((one.settings.rows_per_epoch, other.settings.rows_per_epoch))
    return one.settings.slots == other.settings.slots and few >= (1 - CLEARLY) * many


def _share_of_slots(levels_ms: Mapping[str, float]) -> float:
    """The part of an epoch's time that its slots take, by the longest task of each level."""
    total = sum(levels_ms.values())
    return 1.0 - levels_ms.get("0", 0.0) / total if total > 0 else 1.0
