"""Tune a flow while it runs: what its epochs say in, slots and rows per epoch out.

After every epoch the demand is worked out from rows, time and an epoch's fixed cost, and the
rescaler decides about slots. Every `RETUNE_EPOCHS` the whole flow is measured again, and the
optimizer says what it would choose now. Where rows wait, any number of slots is busy: there its
word counts, and the rescaler stands still. Rows per epoch are a limit, and a limit is felt only
where rows wait, so only there are sources told another one, which needs a restart of Spark's query.

Under a constant load all this comes to rest: what was tried is remembered (`tuning_history`), and a
number that changed nothing is not told again. Pure but for its memory; who calls it carries out
what it says.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from functools import partial
from statistics import median

from headgate.commit.facts import EpochFacts, TuningFacts
from headgate.control.epoch_pace import Pace, pace_of
from headgate.control.measured_flow import Measured, load_between, measure_flow
from headgate.control.tuning_history import EpochRows, EpochSizeAdvisor, ScalingHistory
from headgate.errors import DeclarationError
from headgate.planner.tuning.cost_model import EngineCosts, FlowModel
from headgate.planner.tuning.epoch_model import EpochModel
from headgate.planner.tuning.epochs import TunedEpochs, tune_epochs
from headgate.planner.tuning.rescaler import Rescale, RescaleOptions, Rescaler
from headgate.slot.program import Program

RETUNE_EPOCHS = 16
CLEARLY = 0.2  # settings that differ by less than this share are the same
PAYS = 0.1  # more rows per second, or less latency, that other slots must promise
GROWTH = 8  # times the rows of the epochs that were measured: beyond that the model is a guess
SETTLED = 3  # epochs with other slots than those asked for, while nobody changes them


@dataclass(frozen=True)
class Advice:
    """What to do after an epoch: other slots, other rows per epoch, settings worth saving."""

    rescale: Rescale | None = None
    tuned: TunedEpochs | None = None
    epoch_rows: EpochRows | None = None
    note: str = ""

    def __bool__(self) -> bool:
        return bool(self.note) or any((self.rescale, self.tuned, self.epoch_rows))

    def facts(self, epoch: int) -> TuningFacts:
        """For the journal."""
        slots, rows = self.rescale, self.epoch_rows
        return TuningFacts(
            epoch,
            note=self.note,
            slots=None if slots is None else slots.instances,
            why=None if slots is None else slots.why,
            settings=self.tuned,
            rows_per_epoch=None if rows is None else rows.rows,
            why_rows=None if rows is None else rows.why,
        )


class Tuner:
    """Watches one run of a flow; `slots_max` is what the cluster can be made to have.

    Args:
        cores: Of the start; every epoch tells how many there are.
        elastic: Executors come and go with the slots.
        rescales: Slots may be changed.
        limits: Rows per epoch may, as sources can be told.
        rows_per_epoch: What they were told last.
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
        slots_max: int,
        slots_min: int = 1,
        latency_s: float | None = None,
        elastic: bool = False,
        rescales: bool = True,
        limits: bool = False,
        rows_per_epoch: int | None = None,
        interval: bool = False,
        all_there: bool = False,
    ) -> None:
        if not 1 <= slots_min <= slots_max or (latency_s is not None and not latency_s > 0):
            raise DeclarationError(
                f"slots_min is {slots_min}, slots_max {slots_max}, latency_s {latency_s}; give "
                "1 <= slots_min <= slots_max, and a latency above zero"
            )
        self._program, self._costs, self._cores = program, costs, cores
        self._latency_s, self._elastic = latency_s, elastic
        self._bare = EpochModel(FlowModel((), ()), costs, program.levels, cores)
        self._rescaler = Rescaler(slots, RescaleOptions(most=slots_max)) if rescales else None
        self._tried = ScalingHistory(slots_max)
        self._rows = EpochSizeAdvisor(rows_per_epoch, latency_s) if limits else None
        self._pace_of = partial(pace_of, interval=interval, all_there=all_there)
        self._epochs: deque[EpochFacts] = deque(maxlen=2 * RETUNE_EPOCHS)
        self._same_limit: deque[EpochFacts] = deque(maxlen=4 * RETUNE_EPOCHS)
        self._found: Measured | None = None
        self._chosen: TunedEpochs | None = None
        self._rows_wait = False
        self._slots_min = self._least = slots_min
        self._held = False
        self._since = self._astray = 0
        self._grown = -RETUNE_EPOCHS
        self._asked_from: int | None = None
        self._told_now = False

    def observe(self, epoch: EpochFacts, *, changing: bool = False) -> Advice | None:
        """Take in an epoch that is committed.

        `changing`: somebody is at work on another number of slots.
        """
        if epoch.engine.job_ms is None or epoch.attempts > 1:
            return None
        before = self._epochs[-1] if self._epochs else None
        self._epochs.append(epoch)
        self._same_limit.append(epoch)
        if before is not None and before.slots != epoch.slots:
            self._since = 0  # the epochs behind a move say how it went
        note = self._settle(epoch, changing)
        rescale = None if before is None else self._rescale(before, epoch)
        self._told_now = False
        advice = Advice(rescale) if rescale is not None else self._retune()
        return replace(advice, note=note or advice.note) or None

    # --- inside ----------------------------------------------------------------------------
    def _settle(self, epoch: EpochFacts, changing: bool) -> str:
        """Slots that are not those decided on: a change that is under way, failed, or foreign."""
        slots, rescaler = epoch.slots, self._rescaler
        if rescaler is None or changing or slots == rescaler.instances:
            self._astray = 0
            return ""
        self._astray += 1
        if self._astray < SETTLED:
            return ""
        wanted, self._astray = rescaler.instances, 0
        rescaler.moved(slots)
        self._held = False
        if slots != self._asked_from:
            return f"others have changed the slots to {slots}; going on from there"
        self._tried.record_refusal(slots, epoch.epoch)
        return f"{wanted} slots did not come; going on from {slots}"

    def _rescale(self, before: EpochFacts, epoch: EpochFacts) -> Rescale | None:
        slots = epoch.slots
        if self._rescaler is None or before.slots != slots or self._told_now:
            return None  # an epoch that moves state says nothing about the next ones
        if slots != self._rescaler.instances or epoch.epoch != before.epoch + 1:
            return None  # a decision is under way
        cores = self._cores_of(before)
        load = load_between(before, epoch, self._fixed_s(before.slots, cores), cores)
        if load is None:
            return None
        self._tried.observe_rate(load.rate)
        self._rescaler.limit(*self._bounds(epoch))
        decision = self._rescaler.observe(load)
        if decision is None:
            return None
        if decision.instances > slots:
            decision = self._grow(decision, epoch)
        self._remember(slots, decision.instances)
        return decision

    def _grow(self, decision: Rescale, epoch: EpochFacts) -> Rescale:
        """Slots that are all busy do not show how many more it takes: if so soon again, double."""
        assert self._rescaler is not None
        since, self._grown = epoch.epoch - self._grown, epoch.epoch
        twice = min(2 * epoch.slots, self._rescaler.options.most)
        if since >= RETUNE_EPOCHS or twice <= decision.instances:
            return decision
        self._rescaler.moved(twice)
        return Rescale(
            twice, f"{decision.why}, {since} epochs after the last time; so twice as many"
        )

    def _fixed_s(self, slots: int, cores: int) -> float:
        """A job without rows, as the flow was measured last; before that, by the calibration."""
        if self._found is not None:
            return self._found.job_fixed_s(slots)
        return replace(self._bare, cores=cores).fixed_s(slots)

    def _cores_of(self, epoch: EpochFacts) -> int:
        return self._cores if epoch.engine.cores is None else epoch.engine.cores

    def _bounds(self, epoch: EpochFacts) -> tuple[int, int]:
        if self._held:
            return epoch.slots, epoch.slots
        most = self._tried.most(epoch.epoch)
        return min(most, max(self._least, self._tried.least)), most

    def _retune(self) -> Advice:
        self._since += 1
        if self._since < RETUNE_EPOCHS:
            return Advice()
        self._since = 0
        epochs, last = list(self._epochs), self._epochs[-1]
        slots, cores = last.slots, self._cores_of(last)
        if self._elastic and cores < slots:
            self._tried.record_refusal(cores, last.epoch)
        follow = self._elastic and cores >= slots
        try:
            found = measure_flow(self._program, epochs, self._costs, cores, elastic=follow)
        except DeclarationError:
            return Advice()  # an idle stream
        self._found = found
        told = None if self._rows is None else self._rows.told
        pace = self._pace_of(self._same_limit, told_rows=told)
        if pace.rows_wait is not None:
            self._rows_wait = pace.rows_wait
        if not (self._rows_wait or found.arriving_per_s > 0):
            return Advice()  # epochs too short for the clock: nobody knows what comes
        typical = round(median([e.rows for e in epochs[-RETUNE_EPOCHS:] if e.rows] or [1]))
        choose = partial(
            tune_epochs,
            found.model,
            rate=None if self._rows_wait else found.arriving_per_s,
            latency_s=self._latency_s,
            slots_max=self._tried.most(last.epoch),
        )
        tuned = choose(rows_max=GROWTH * typical)
        choose = partial(choose, rows_max=GROWTH * typical if self._rows is not None else typical)
        best, staying = choose(), choose(slots=slots)
        rescale = self._other_slots(pace, found, best, staying)
        advice = Advice(rescale)
        if self._rows is not None and self._rows_wait:
            asked = self._rows.ask(found.model, typical, staying if rescale is None else best)
            advice = replace(advice, epoch_rows=asked, note=self._rows.take_note())
            if asked is not None:
                self._tried.forget_speeds()
                self._same_limit.clear()
                self._told_now = True
        if self._chosen is None or not _alike(self._chosen, tuned):
            self._chosen = tuned
            advice = replace(advice, tuned=tuned)
        return advice

    def _other_slots(
        self, pace: Pace, found: Measured, best: TunedEpochs, staying: TunedEpochs
    ) -> Rescale | None:
        """Where rows wait, the optimizer's slots, and those stay; else what a latency needs."""
        now, slots = staying.settings.slots, max(best.settings.slots, self._slots_min)
        if self._rescaler is None or self._rescaler.instances != now:
            return None
        self._held = self._rows_wait and pace.is_busy
        self._least = self._slots_min
        if not self._held:
            self._tried.forget_speeds()
            return self._in_time(best, staying)
        self._tried.observe_backlog(now, found.rows_per_s)
        rate = self._tried.expected(slots, best.prediction.rows_per_s)
        if slots == now or rate <= (1 + PAYS) * staying.prediction.rows_per_s:
            return None
        why = f"rows wait; {rate:,.0f} rows/s of them are expected with {slots} slots, with {now} "
        return self._move(now, slots, f"{why}{staying.prediction.rows_per_s:,.0f}")

    def _in_time(self, best: TunedEpochs, staying: TunedEpochs) -> Rescale | None:
        """More slots if these cannot be in time; fewer than it takes are not gone down to."""
        now, slots = staying.settings.slots, best.settings.slots
        if self._latency_s is None:
            return None
        sooner, late = best.prediction.latency_s, staying.prediction.latency_s
        self._least = max(self._slots_min, min(now, slots))
        in_time = late <= (1 + PAYS) * self._latency_s  # nearly is no reason to move state
        if slots <= now or in_time or sooner > (1 - PAYS) * late:
            return None
        self._least = slots
        why = (
            f"rows are expected to take {sooner:.2g} s with {slots} slots, with {now} {late:.2g} s"
        )
        return self._move(now, slots, why)

    def _move(self, now: int, slots: int, why: str) -> Rescale:
        assert self._rescaler is not None
        self._remember(now, slots)
        self._rescaler.moved(slots)
        return Rescale(slots, why)

    def _remember(self, now: int, slots: int) -> None:
        self._asked_from = now
        if slots > now:
            self._tried.too_few(now)


def _alike(one: TunedEpochs, other: TunedEpochs) -> bool:
    few, many = sorted((one.settings.rows_per_epoch, other.settings.rows_per_epoch))
    return one.settings.slots == other.settings.slots and few >= (1 - CLEARLY) * many
