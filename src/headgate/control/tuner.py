"""Tune a flow while it runs: what its epochs say in; slots, instances, rows and batches out.

After every epoch the tuner works out the demand from rows, time and an epoch's fixed cost, and the
rescaler decides about slots. Every `RETUNE_EPOCHS` it measures the whole flow again, and asks the
optimizer what it would choose now. Where rows wait, any number of slots is busy: there the
optimizer decides, and the rescaler stands still. Instances of every operator follow where they pay
(`instance_advisor`), and batches where they differ clearly. Rows per epoch are a limit, and a limit
is felt only where rows wait, so only there are sources given another one, which restarts Spark's
query.

A latency target is held against what is measured (p95), as far as rows do not wait: the model's
latencies are taken for as much too short, or too long, as those of the epochs were.

Under a constant load all this comes to rest: the tuner remembers what it tried (`tuning_history`).
Pure but for its memory; the caller carries out what it says.

What was measured and chosen is kept in the checkpoint (`tuning.json`). Advice, not truth: where the
file is missing or damaged, the flow is measured again.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median

from headgate.commit.facts import EpochFacts, TuningFacts
from headgate.commit.facts_json import from_json, to_json
from headgate.control.demand import held_levels, load_between
from headgate.control.instance_advisor import InstanceAdvisor
from headgate.control.measured_flow import Measured, instances_of, measure_flow
from headgate.control.pace import Pace, measured_p95_s, pace_of
from headgate.control.settings import Scaling
from headgate.control.tuning_history import EpochSizeAdvisor, Experience, ScalingHistory
from headgate.errors import DeclarationError
from headgate.planner.tuning.cost_model import Calibration, EngineCosts, FlowModel
from headgate.planner.tuning.epochs import EpochModel, EpochSettings
from headgate.planner.tuning.explained import TunedEpochs, explain
from headgate.planner.tuning.rescaler import RescaleOptions, Rescaler, Wanted
from headgate.planner.tuning.tuned import Choice, Goal, choose
from headgate.slot.program import Program
from headgate.state.digest import DamagedFile, seal, unseal
from headgate.state.storage import Storage

TUNING_FILE = "tuning.json"
RETUNE_EPOCHS = 16  # enough epochs for a median, few enough to follow a changing load
CLEARLY = 0.2  # settings that differ by less than this share are the same
PAYS = 0.1  # more rows per second, or less latency, that other slots must promise
GROWTH = 8  # times the rows of the epochs that were measured: beyond that the model is a guess
SETTLED = 3  # epochs with other slots than those asked for, while nobody changes them
TWICE = 2  # times the rows: batches that differ by less are the same
LATE = (0.5, 4.0)  # what measured latency may be of predicted one, and still be believed


class Tuner:
    """Watches one run of a flow.

    Args:
        cores: Of the start; every epoch says how many there are.
        scaling: Limits within which slots may change; None: they stay.
        latency_s: Target for the 95th percentile of a row's latency.
        elastic: Executors come and go with the slots.
        limits: Rows per epoch may change, as sources take a limit.
        rows_per_epoch: The limit that sources have.
        interval_s: The trigger's interval, if it has one.
        all_there: The run ends with the rows there were when it began.
        instances: How many instances operators have may change, unless they were declared with one.
        batches: Streams whose batches may change; `batch_rows` are those they have.
    """

    def __init__(
        self,
        program: Program,
        costs: EngineCosts,
        *,
        cores: int,
        slots: int,
        scaling: Scaling | None = None,
        latency_s: float | None = None,
        elastic: bool = False,
        limits: bool = False,
        rows_per_epoch: int | None = None,
        interval_s: float = 0.0,
        all_there: bool = False,
        instances: bool = False,
        batches: Collection[str] = (),
        batch_rows: Mapping[str, int] | None = None,
    ) -> None:
        if latency_s is not None and not latency_s > 0:
            raise DeclarationError(f"latency_s={latency_s}; give a latency above zero")
        max_slots = cores if scaling is None else scaling.most
        self._program, self._costs, self._cores = program, costs, cores
        self._latency_s, self._elastic, self._interval_s = latency_s, elastic, interval_s
        self._min_slots = self._least = 1 if scaling is None else scaling.min_slots
        options = RescaleOptions(most=max_slots)
        self._rescaler = None if scaling is None else Rescaler(slots, options)
        self._history, self._experience = ScalingHistory(max_slots), Experience()
        self._instances = InstanceAdvisor(self._experience)
        self._chooses_instances, self._batches = instances, frozenset(batches)
        self._batch_rows = dict(batch_rows or {})
        self._sizes = EpochSizeAdvisor(rows_per_epoch, latency_s) if limits else None
        self._pace_of = partial(pace_of, interval=interval_s > 0, all_there=all_there)
        self._epochs: deque[EpochFacts] = deque(maxlen=2 * RETUNE_EPOCHS)
        self._same_limit: deque[EpochFacts] = deque(maxlen=4 * RETUNE_EPOCHS)
        self._found: Measured | None = None
        self._best: EpochSettings | None = None
        self._chosen: EpochSettings | None = None  # for a later start
        self._rows_wait = False
        self._held = False  # there is a backlog, and the optimizer has chosen the slots for it
        self._epochs_since = self._epochs_astray = 0
        self._grown_at = -RETUNE_EPOCHS
        self._asked_from: int | None = None

    def observe(self, epoch: EpochFacts, *, changing: bool = False) -> TuningFacts | None:
        """What to change after an epoch that is committed; None: nothing.

        `changing`: somebody is at work on another number of slots.
        """
        if epoch.engine.job_ms is None or epoch.attempts > 1:
            return None
        if self._epochs and not _same_places(self._epochs[-1], epoch):
            self._epochs_since = 0  # the epochs behind a move say how it went
        self._epochs.append(epoch)
        self._same_limit.append(epoch)
        note = self._settle(epoch, changing) or self._instances.observe(epoch)
        wanted = self._rescale(epoch)
        nothing = TuningFacts(epoch.epoch)
        if wanted is not None:
            advice = replace(nothing, slots=wanted.count, why=wanted.why)
        else:
            advice = self._retune(nothing, changing)
        advice = replace(advice, note=note or advice.note)
        return None if advice == nothing else advice

    # --- inside ----------------------------------------------------------------------------
    def _settle(self, epoch: EpochFacts, changing: bool) -> str:
        """Slots that are not those decided on: a change that is under way, failed, or foreign."""
        slots, rescaler = epoch.slots, self._rescaler
        if rescaler is None or changing or slots == rescaler.instances:
            self._epochs_astray = 0
            return ""
        self._epochs_astray += 1
        if self._epochs_astray < SETTLED:
            return ""
        wanted, self._epochs_astray = rescaler.instances, 0
        rescaler.moved(slots)
        self._held = False
        if slots != self._asked_from:
            return f"others have changed the slots to {slots}; going on from there"
        self._history.record_refusal(slots, epoch.epoch)
        return f"{wanted} slots did not come; going on from {slots}"

    def _rescale(self, epoch: EpochFacts) -> Wanted | None:
        """What the demand asks for."""
        rescaler, slots = self._rescaler, epoch.slots
        if rescaler is None or slots != rescaler.instances or len(self._same_limit) < 2:
            return None  # a decision is under way, or the epochs have just got another limit
        before = self._same_limit[-2]
        moved = not _same_places(before, epoch) or before.moving_ms
        if moved or epoch.epoch != before.epoch + 1:
            return None  # an epoch that moves state says nothing about the next ones
        cores = self._cores_of(before)
        if self._found is not None:
            fixed_s = self._found.job_fixed_s(slots, instances_of(before))
        else:  # until the flow is measured, what the calibration says
            levels = self._program.levels
            full = frozenset(range(1, levels + 1))
            bare = EpochModel(FlowModel((), ()), self._costs, levels, cores, full_levels=full)
            fixed_s = bare.fixed_s(slots)
        load = load_between(before, epoch, fixed_s, cores, held_levels(self._program, before))
        if load is None:
            return None
        self._history.rates.append(load.rate)
        most = self._history.most(epoch.epoch)
        least = min(most, max(self._least, self._history.least))
        rescaler.limit(*((slots, slots) if self._held else (least, most)))
        wanted = rescaler.observe(load)
        if wanted is None:
            return None
        if wanted.count > slots:
            # Slots that are all busy do not show how many more it takes: if so soon again, double.
            since, self._grown_at = epoch.epoch - self._grown_at, epoch.epoch
            twice = min(2 * slots, rescaler.options.most)
            if since < RETUNE_EPOCHS and twice > wanted.count:
                why = f"{wanted.why}, {since} epochs after the last time; so twice as many"
                wanted = Wanted(twice, why)
        return self._move(slots, wanted)

    def _cores_of(self, epoch: EpochFacts) -> int:
        return self._cores if epoch.engine.cores is None else epoch.engine.cores

    def _retune(self, advice: TuningFacts, changing: bool) -> TuningFacts:
        """Measure the flow again if it is time, and see what the optimizer would choose."""
        self._epochs_since += 1
        if self._epochs_since < RETUNE_EPOCHS:
            return advice
        self._epochs_since = 0
        found, pace = self._measure()
        if found is None or not (self._rows_wait or found.arriving_per_s > 0):
            return advice  # an idle stream, or epochs too short for the clock: nobody knows
        model, last = found.model, self._epochs[-1]
        recent = [e.rows for e in [*self._epochs][-RETUNE_EPOCHS:] if e.rows]
        typical = round(median(recent or [1]))
        now = EpochSettings(last.slots, typical, {}, instances_of(last) or model.alike(last.slots))
        if found.rows_per_s > 0:
            self._experience.record(now, found.rows, found.rows / found.rows_per_s)
        free = Goal(
            rate=None if self._rows_wait else found.arriving_per_s,
            latency_s=self._target_s(found, now),
            max_slots=self._history.most(last.epoch),
            rows_max=GROWTH * typical,
            per_operator=self._chooses_instances,
        )
        felt = free if self._sizes is not None else replace(free, rows_max=typical)
        best = self._expected(model, felt)
        stays = replace(felt, slots=last.slots, instances=now.instances)
        staying = self._expected(model, stays)
        wanted = self._other_slots(pace, best, staying)
        if wanted is not None:
            chosen, advice = best, replace(advice, slots=wanted.count, why=wanted.why)
        else:
            chosen = staying
        if self._chooses_instances and not changing:
            advice, chosen = self._other_instances(advice, model, felt, chosen, typical)
        if self._sizes is not None and self._rows_wait:
            rows, note = self._sizes.ask(model, typical, chosen.settings, chosen.prediction)
            advice = replace(advice, note=note)
            if rows is not None:
                advice = replace(advice, rows_per_epoch=rows.count, why_rows=rows.why)
                self._same_limit.clear()
        advice = self._other_batches(advice, chosen.settings)
        return replace(advice, settings=self._worth_saving(model, free, felt, best))

    def _worth_saving(
        self, model: EpochModel, free: Goal, felt: Goal, best: Choice
    ) -> TunedEpochs | None:
        """What a later start should begin with, if it is not what was told last."""
        if self._best is not None and _alike(self._best, best.settings):
            return None
        self._best = best.settings
        tuned = best if felt == free else self._expected(model, free)
        if self._chosen is not None and _alike(self._chosen, tuned.settings):
            return None
        self._chosen = tuned.settings
        return explain(model, tuned.settings, tuned.prediction, tuned.why)

    def _measure(self) -> tuple[Measured | None, Pace]:
        """Costs and pace of the last epochs; no costs of an idle stream."""
        epochs, last = list(self._epochs), self._epochs[-1]
        slots, cores = last.slots, self._cores_of(last)
        if self._elastic and cores < slots:
            self._history.record_refusal(cores, last.epoch)
        limit = None if self._sizes is None else self._sizes.limit
        pace = self._pace_of(self._same_limit, limit=limit)
        measure = partial(measure_flow, self._program, epochs, self._costs, cores)
        given, follow = self._instances.given, self._elastic and cores >= slots
        try:
            found = measure(elastic=follow, given=given, every_s=self._interval_s)
        except DeclarationError:
            return None, pace
        if pace.rows_wait is not None:
            self._rows_wait = pace.rows_wait
        self._found = found
        return found, pace

    def _expected(self, model: EpochModel, goal: Goal) -> Choice:
        """What is best, and what to expect of it after all that was tried."""
        found = choose(model, goal)
        factor = self._experience.factor(model, found.settings)
        return replace(found, prediction=found.prediction.slower(factor))

    def _target_s(self, found: Measured, now: EpochSettings) -> float | None:
        """The latency to go for by the model, which is as far off as it was for these epochs."""
        if self._latency_s is None or self._rows_wait:
            return self._latency_s
        measured_s = measured_p95_s([*self._epochs][-RETUNE_EPOCHS:])
        rows = max(1, round(found.model.steady_rows(now, found.arriving_per_s)))
        predicted_s = found.model.predict(replace(now, rows_per_epoch=rows)).latency_p95_s
        if measured_s is None or predicted_s <= 0:
            return self._latency_s
        low, high = LATE
        return self._latency_s / min(max(measured_s / predicted_s, low), high)

    def _other_slots(self, pace: Pace, best: Choice, staying: Choice) -> Wanted | None:
        """Where rows wait, the optimizer's slots, and those stay; else what a latency needs."""
        now, slots = staying.settings.slots, max(best.settings.slots, self._min_slots)
        if self._rescaler is None or self._rescaler.instances != now:
            return None
        self._held = self._rows_wait and pace.is_busy
        self._least = self._min_slots
        if not self._held:
            return self._in_time(best, staying)
        rate, stays = best.prediction.rows_per_s, staying.prediction.rows_per_s
        if slots == now or rate <= (1 + PAYS) * stays:
            return None
        why = f"rows wait; {rate:,.0f} rows/s of them are expected with {slots} slots, with {now} "
        return self._move(now, Wanted(slots, f"{why}{stays:,.0f}"))

    def _in_time(self, best: Choice, staying: Choice) -> Wanted | None:
        """More slots if these are too late; and never fewer than the latency takes."""
        now, slots = staying.settings.slots, best.settings.slots
        if self._latency_s is None:
            return None
        sooner, late = best.prediction.latency_p95_s, staying.prediction.latency_p95_s
        self._least = max(self._min_slots, min(now, slots))
        in_time = staying.in_time or late <= (1 + PAYS) * self._latency_s  # nearly is no reason
        if slots <= now or in_time or sooner > (1 - PAYS) * late:
            return None
        self._least = slots
        why = f"rows are expected to take {sooner:.2g} s with {slots} slots, with {now} {late:.2g}"
        return self._move(now, Wanted(slots, f"{why} s"))

    def _other_instances(
        self, advice: TuningFacts, model: EpochModel, goal: Goal, chosen: Choice, rows: int
    ) -> tuple[TuningFacts, Choice]:
        """Those of other slots come with them; in the slots there are, if they pay."""
        last = self._epochs[-1]
        if advice.slots is not None:
            if advice.slots == chosen.settings.slots:
                placed = self._instances.placed(model, last, chosen.settings)
                advice = replace(advice, instances=placed or None)
            return advice, chosen
        here = self._expected(model, replace(goal, slots=last.slots, instances=None))
        asked = self._instances.ask(model, last, here.settings, rows)
        if asked is None:
            return advice, chosen
        return replace(advice, instances=asked.slots, why_instances=asked.why), here

    def _other_batches(self, advice: TuningFacts, settings: EpochSettings) -> TuningFacts:
        """Batches that differ clearly from those chosen last, or that none were chosen for yet."""
        wanted = {s: rows for s, rows in settings.batch_rows.items() if s in self._batches}
        before = self._batch_rows
        apart = [
            not before.get(s, 0) <= TWICE * rows or not rows <= TWICE * before.get(s, 0)
            for s, rows in wanted.items()
        ]
        if not any(apart):
            return advice
        self._batch_rows = wanted
        return replace(advice, batch_rows=wanted)

    def _move(self, now: int, wanted: Wanted) -> Wanted:
        assert self._rescaler is not None
        self._asked_from = now
        if wanted.count > now:
            self._history.record_too_few(now)
        self._rescaler.moved(wanted.count)
        return wanted


def _alike(one: EpochSettings, other: EpochSettings) -> bool:
    few, many = sorted((one.rows_per_epoch, other.rows_per_epoch))
    same = one.slots == other.slots and one.instances == other.instances
    return same and few >= (1 - CLEARLY) * many


def _same_places(one: EpochFacts, other: EpochFacts) -> bool:
    return one.slots == other.slots and one.instances == other.instances


@dataclass(frozen=True)
class SavedTuning:
    """The engine's costs, and the settings if the flow has been measured."""

    calibration: Calibration
    tuned: TunedEpochs | None = None


def save_tuning(storage: Storage, saved: SavedTuning) -> None:
    storage.write(TUNING_FILE, seal(to_json(saved), indent=2))


def load_tuning(storage: Storage, *, plain: bool = False) -> SavedTuning | None:
    """What is saved there, if it is whole; a `plain` file is the user's own and has no digest."""
    try:
        data = storage.read(TUNING_FILE)
        return from_json(SavedTuning, json.loads(data) if plain else unseal(data))
    except (OSError, DamagedFile, KeyError, TypeError, ValueError, AttributeError):
        return None


def read_calibration(path: Path) -> Calibration:
    """The file of `headgate calibrate`, or that of `headgate tune`."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return from_json(Calibration, found.get("calibration", found))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
        raise DeclarationError(
            f"calibration={str(path)!r} holds no costs ({problem}); make it with: "
            f"headgate calibrate --out {path}"
        ) from problem
