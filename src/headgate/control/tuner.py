"""Tune a flow while it runs: what its epochs say in, slots and rows per epoch out.

After every epoch the tuner works out the demand from rows, time and an epoch's fixed cost, and the
rescaler decides about slots. Every `RETUNE_EPOCHS` it measures the whole flow again, and asks the
optimizer what it would choose now. Where rows wait, any number of slots is busy: there the
optimizer decides, and the rescaler stands still. Rows per epoch are a limit, and a limit is felt
only where rows wait, so only there are sources given another one, which restarts Spark's query.

Under a constant load all this comes to rest: the tuner remembers what it tried, and does not repeat
a limit that changed nothing. Pure but for its memory; the caller carries out what it says.

What was measured and chosen is kept in the checkpoint (`tuning.json`). Advice, not truth: where the
file is missing or damaged, the flow is measured again.
"""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median

from headgate.commit.facts import EpochFacts, TuningFacts
from headgate.commit.facts_json import from_json, to_json
from headgate.control.measured_flow import Measured, Pace, load_between, measure_flow, pace_of
from headgate.control.settings import Scaling
from headgate.errors import DeclarationError
from headgate.planner.tuning.cost_model import Calibration, EngineCosts, FlowModel
from headgate.planner.tuning.epochs import EpochModel, EpochSettings, TunedEpochs, tune_epochs
from headgate.planner.tuning.rescaler import RescaleOptions, Rescaler, Wanted
from headgate.slot.program import Program
from headgate.state.digest import DamagedFile, seal, unseal
from headgate.state.storage import Storage

TUNING_FILE = "tuning.json"
RETUNE_EPOCHS = 16  # enough epochs for a median, few enough to follow a changing load
CLEARLY = 0.2  # settings that differ by less than this share are the same
PAYS = 0.1  # more rows per second, or less latency, that other slots must promise
GROWTH = 8  # times the rows of the epochs that were measured: beyond that the model is a guess
SETTLED = 3  # epochs with other slots than those asked for, while nobody changes them

ROWS_PAY = 0.03  # more rows per second that larger epochs must promise
SAME = 0.8  # epochs that have this share of another's rows are of its size
FAR_OFF = 0.5  # epochs with twice the rows that they should have
ALIKE = 0.9  # a rate is lower than another if it is below this share of it
RATES_KEPT = 20  # of which the highest counts
REFUSED_EPOCHS = 64  # without asking again, after the first time; then twice as long


class Tuner:
    """Watches one run of a flow.

    Args:
        cores: Of the start; every epoch says how many there are.
        scaling: Limits within which slots may change; None: they stay.
        elastic: Executors come and go with the slots.
        limits: Rows per epoch may change, as sources take a limit.
        rows_per_epoch: The limit that sources have.
        interval: The trigger has one.
        all_there: The run ends with the rows there were when it began.
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
        interval: bool = False,
        all_there: bool = False,
    ) -> None:
        if latency_s is not None and not latency_s > 0:
            raise DeclarationError(f"latency_s={latency_s}; give a latency above zero")
        max_slots = cores if scaling is None else scaling.most
        self._program, self._costs, self._cores = program, costs, cores
        self._latency_s, self._elastic = latency_s, elastic
        self._min_slots = self._least = 1 if scaling is None else scaling.min_slots
        options = RescaleOptions(most=max_slots)
        self._rescaler = None if scaling is None else Rescaler(slots, options)
        self._history = ScalingHistory(max_slots)
        self._sizes = EpochSizeAdvisor(rows_per_epoch, latency_s) if limits else None
        self._pace_of = partial(pace_of, interval=interval, all_there=all_there)
        self._epochs: deque[EpochFacts] = deque(maxlen=2 * RETUNE_EPOCHS)
        self._same_limit: deque[EpochFacts] = deque(maxlen=4 * RETUNE_EPOCHS)
        self._found: Measured | None = None
        self._chosen: TunedEpochs | None = None
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
        if self._epochs and self._epochs[-1].slots != epoch.slots:
            self._epochs_since = 0  # the epochs behind a move say how it went
        self._epochs.append(epoch)
        self._same_limit.append(epoch)
        note = self._settle(epoch, changing)
        wanted = self._rescale(epoch)
        nothing = TuningFacts(epoch.epoch)
        if wanted is not None:
            advice = replace(nothing, slots=wanted.count, why=wanted.why)
        else:
            advice = self._retune(nothing)
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
        if before.slots != slots or epoch.epoch != before.epoch + 1:
            return None  # an epoch that moves state says nothing about the next ones
        cores = self._cores_of(before)
        if self._found is not None:
            fixed_s = self._found.job_fixed_s(slots)
        else:  # until the flow is measured, what the calibration says
            bare = EpochModel(FlowModel((), ()), self._costs, self._program.levels, cores)
            fixed_s = bare.fixed_s(slots)
        load = load_between(before, epoch, fixed_s, cores)
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

    def _retune(self, advice: TuningFacts) -> TuningFacts:
        """Measure the flow again if it is time, and see what the optimizer would choose."""
        self._epochs_since += 1
        if self._epochs_since < RETUNE_EPOCHS:
            return advice
        self._epochs_since = 0
        epochs, last = list(self._epochs), self._epochs[-1]
        slots, cores = last.slots, self._cores_of(last)
        if self._elastic and cores < slots:
            self._history.record_refusal(cores, last.epoch)
        follow = self._elastic and cores >= slots
        try:
            found = measure_flow(self._program, epochs, self._costs, cores, elastic=follow)
        except DeclarationError:
            return advice  # an idle stream
        self._found = found
        limit = None if self._sizes is None else self._sizes.limit
        pace = self._pace_of(self._same_limit, limit=limit)
        if pace.rows_wait is not None:
            self._rows_wait = pace.rows_wait
        if not (self._rows_wait or found.arriving_per_s > 0):
            return advice  # epochs too short for the clock: nobody knows what comes
        typical = round(median([e.rows for e in epochs[-RETUNE_EPOCHS:] if e.rows] or [1]))
        choose = partial(
            tune_epochs,
            found.model,
            rate=None if self._rows_wait else found.arriving_per_s,
            latency_s=self._latency_s,
            max_slots=self._history.most(last.epoch),
        )
        tuned = choose(rows_max=GROWTH * typical)
        choose = partial(choose, rows_max=GROWTH * typical if self._sizes is not None else typical)
        best, staying = choose(), choose(slots=slots)
        wanted = self._other_slots(pace, found, best, staying)
        if wanted is not None:
            advice = replace(advice, slots=wanted.count, why=wanted.why)
        if self._sizes is not None and self._rows_wait:
            rows, note = self._sizes.ask(found.model, typical, staying if wanted is None else best)
            advice = replace(advice, note=note)
            if rows is not None:
                advice = replace(advice, rows_per_epoch=rows.count, why_rows=rows.why)
                self._history.speeds.clear()
                self._same_limit.clear()
        if self._chosen is None or not _alike(self._chosen.settings, tuned.settings):
            self._chosen = tuned
            advice = replace(advice, settings=tuned)
        return advice

    def _other_slots(
        self, pace: Pace, found: Measured, best: TunedEpochs, staying: TunedEpochs
    ) -> Wanted | None:
        """Where rows wait, the optimizer's slots, and those stay; else what a latency needs."""
        now, slots = staying.settings.slots, max(best.settings.slots, self._min_slots)
        if self._rescaler is None or self._rescaler.instances != now:
            return None
        self._held = self._rows_wait and pace.is_busy
        self._least = self._min_slots
        if not self._held:
            self._history.speeds.clear()
            return self._in_time(best, staying)
        self._history.speeds[now] = found.rows_per_s
        rate, stays = best.prediction.rows_per_s, staying.prediction.rows_per_s
        rate = min(rate, self._history.speeds.get(slots, rate))
        if slots == now or rate <= (1 + PAYS) * stays:
            return None
        why = f"rows wait; {rate:,.0f} rows/s of them are expected with {slots} slots, with {now} "
        return self._move(now, Wanted(slots, f"{why}{stays:,.0f}"))

    def _in_time(self, best: TunedEpochs, staying: TunedEpochs) -> Wanted | None:
        """More slots if these are too late; and never fewer than the latency takes."""
        now, slots = staying.settings.slots, best.settings.slots
        if self._latency_s is None:
            return None
        sooner, late = best.prediction.latency_s, staying.prediction.latency_s
        self._least = max(self._min_slots, min(now, slots))
        in_time = late <= (1 + PAYS) * self._latency_s  # nearly is no reason to move state
        if slots <= now or in_time or sooner > (1 - PAYS) * late:
            return None
        self._least = slots
        why = f"rows are expected to take {sooner:.2g} s with {slots} slots, with {now} {late:.2g}"
        return self._move(now, Wanted(slots, f"{why} s"))

    def _move(self, now: int, wanted: Wanted) -> Wanted:
        assert self._rescaler is not None
        self._asked_from = now
        if wanted.count > now:
            self._history.record_too_few(now)
        self._rescaler.moved(wanted.count)
        return wanted


def _alike(one: EpochSettings, other: EpochSettings) -> bool:
    few, many = sorted((one.rows_per_epoch, other.rows_per_epoch))
    return one.slots == other.slots and few >= (1 - CLEARLY) * many


class EpochSizeAdvisor:
    """When sources should get another limit of rows per epoch: seldom, and not in vain.

    A limit is felt only where rows wait for epochs. There larger epochs share their fixed cost
    among more rows. Smaller ones are for a latency that was asked for, or if they were far too
    large. A new limit takes a restart of the query, so one that would change little is not worth
    it, nor is one in the other direction than the last unless it is far off. A source that ignored
    its last limit gets no other.
    """

    def __init__(self, limit: int | None, latency_s: float | None = None) -> None:
        self.limit, self._latency_s = limit, latency_s
        self._rows_before: int | None = None  # of an epoch, when the limit was given
        self._grew: bool | None = None
        self._source_ignores_limit = False

    def ask(self, model: EpochModel, rows: int, tuned: TunedEpochs) -> tuple[Wanted | None, str]:
        """Rows wait, and epochs have so many: another limit, and a note for the journal."""
        note, before, self._rows_before = "", self._rows_before, None
        if self.limit is not None and _same_size(rows, self.limit):
            self._source_ignores_limit = False
        elif before is not None and _same_size(rows, before):
            self._source_ignores_limit = True
            note = f"sources were told {self.limit:,} rows per epoch, and still bring {rows:,}; "
            note += "they are not told again"
        wanted, expected = tuned.settings.rows_per_epoch, tuned.prediction
        as_is = model.predict(replace(tuned.settings, rows_per_epoch=rows))
        grows = wanted > rows
        if grows:
            worth = expected.rows_per_s >= (1 + ROWS_PAY) * as_is.rows_per_s
        else:
            late = self._latency_s is not None and as_is.latency_s > self._latency_s
            worth = wanted <= (SAME if late else FAR_OFF) * rows
        back = self._grew is not None and self._grew != grows
        far = min(wanted, rows) <= FAR_OFF * max(wanted, rows)
        if self._source_ignores_limit or not worth or (back and not far):
            return None, note
        self.limit, self._rows_before, self._grew = wanted, rows, grows
        why = f"rows wait, and epochs have {rows:,} rows; with {wanted:,} one takes "
        why += f"{expected.epoch_s:.2g} s, and {expected.rows_per_s:,.0f} rows/s get through"
        return Wanted(wanted, why), note


def _same_size(one: int, other: int) -> bool:
    return min(one, other) >= SAME * max(one, other)


class ScalingHistory:
    """What the slot counts tried so far came to, so that no change is made twice in vain.

    Headgate does not return to a slot count that could not sustain the current rate. It does not
    ask again for slots that did not come for a while, each time for longer. And it does not move a
    backlog to a count that was seen to be no faster.
    """

    def __init__(self, max_slots: int) -> None:
        self._max_slots = max_slots
        self.rates: deque[float] = deque(maxlen=RATES_KEPT)  # rows per second of recent epochs
        self.speeds: dict[int, float] = {}  # what slots got through of the backlog there is
        self._too_few: dict[int, float] = {}
        self._refused: tuple[int, int] | None = None  # slots that were had, until which epoch
        self._patience = REFUSED_EPOCHS

    def record_too_few(self, slots: int) -> None:
        """More than these are needed for the present rate."""
        self._too_few[slots] = max(self.rates, default=0.0)

    @property
    def least(self) -> int:
        """Fewer slots than these were too few for such a rate."""
        rate = max(self.rates, default=0.0)
        return 1 + max((n for n, seen in self._too_few.items() if rate >= ALIKE * seen), default=0)

    def record_refusal(self, had: int, epoch: int) -> None:
        """More than `had` were asked for and did not come."""
        self._refused = had, epoch + self._patience
        self._patience *= 2

    def most(self, epoch: int) -> int:
        if self._refused is not None and epoch < self._refused[1]:
            return max(1, min(self._max_slots, self._refused[0]))
        return self._max_slots


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
