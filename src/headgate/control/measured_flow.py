"""A flow as the optimizer sees it, from the facts of its last epochs: costs, demand, and pace.

**Costs.** Times per operator come from the tasks (advisory: a task run twice counts twice), rows
and bytes per edge from the control records. Where epochs differ in size, a line through them tells
what an epoch takes without rows from what rows take, for the whole and for every operator; else the
calibration says it, and at most what an epoch took beside its tasks: the engine may have been cold
or busy then. What tasks take beyond their operators is work on rows too: in slots it is charged to
the operators there, by their rows. The rest (reading, Arrow, the shuffle) is charged to the
sources, so that predicted and measured epochs agree.

**Pace.** A limited source with a backlog and a steady stream look alike: epochs without a break,
all of about one size. What tells them apart, the surest first:

- a run that ends with what was there when it began (`availableNow`): all rows wait;
- the source says so: when an epoch was planned, its latest offset was not the one taken (`kafka`
  does; the facts of the next epoch have it as `last_rows_wait`);
- epochs meet the limit that the sources were given, or stay far below it;
- rows do not follow time. A stream brings as many rows per second, a limit as many per epoch. That
  shows where epochs differ in length, and counts only where it is clear.

Otherwise nobody knows, and that is the answer too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from headgate.arrays import F64
from headgate.commit.facts import EngineFacts, EpochFacts
from headgate.errors import DeclarationError
from headgate.planner.tuning.cost_model import EngineCosts, FlowModel, Step, Stream
from headgate.planner.tuning.epochs import EpochModel
from headgate.planner.tuning.rescaler import Load
from headgate.slot.plan import edge_name
from headgate.slot.program import Program

APART = 2.0  # large epochs must have so many times the rows of small ones
FEW = 0.1  # of the epochs, which are larger or smaller than those
WARM_UP = 2  # epochs in which workers start and caches fill
GROWTH_MOST = 2.0  # times the rows of an epoch: its cost per row says nothing about more
LEFT_LEAST = 0.25  # of the time, for slots: what source tasks may take of it at most in the demand

FULL = 0.9  # epochs this near to a limit have met it
FAR_BELOW = 0.5  # epochs with less than this share of a limit do not meet it
BESIDE_S = 1.0  # at most, between two jobs of a flow that never waits, if Spark does not tell
IDLE_MOST = 0.1  # of the time that a busy flow may seem to wait
RECENT = 16  # epochs that say how it is now; whether rows follow time, all of them say
EPOCHS_MIN = 12  # to say so
STRAYS_MIN = 0.08  # of an epoch's rows: less may be chance
EVEN_STRAYS_MIN = 0.03  # the same where all epochs have one and the same number of rows
CLEARLY = 2.0  # times as far


@dataclass(frozen=True)
class Measured:
    """The model, the costs with the flow's own overhead per epoch, and what they rest on.

    `rows_per_s` is what busy epochs got through, `arriving_per_s` what came in, waiting included.
    `beside_s` of the model's fixed cost passes between two jobs. `sizes_differ`: what epochs cost
    without rows was measured, and not taken from the calibration.
    """

    model: EpochModel
    epochs: int
    rows_per_s: float
    arriving_per_s: float
    sizes_differ: bool
    beside_s: float = 0.0

    def job_fixed_s(self, slots: int) -> float:
        """Seconds of an epoch's job without rows."""
        return self.model.fixed_s(slots) - self.beside_s


def measure_flow(
    program: Program,
    epochs: Sequence[EpochFacts],
    costs: EngineCosts,
    cores: int,
    *,
    elastic: bool = False,
) -> Measured:
    """What these epochs say, the first ones left out if there are enough.

    `elastic`: executors follow the slots, so that other slots have other cores.
    """
    seen = [e for e in epochs if e.rows > 0]
    slots, had = (seen[-1].slots, seen[-1].engine.cores) if seen else (0, None)
    seen = [e for e in seen if e.slots == slots and e.engine.cores == had and e.attempts == 1]
    if len(seen) > WARM_UP + 1:
        seen = seen[WARM_UP:]
    if not seen:
        raise DeclarationError(
            "no epoch with rows has run, so nothing could be measured; feed the flow and try again"
        )
    sizes = [e.rows for e in seen]
    rows, seconds = sum(sizes), sum(e.engine.seconds for e in seen)
    flow, instance_s = _flow(program, seen, rows / seconds if seconds else 0.0)
    model = EpochModel(
        flow,
        costs,
        program.levels,
        cores,
        source_tasks=max(1, round(float(np.median([e.source_tasks for e in seen])))),
        slots_seen=slots,
        instance_s=instance_s,
        elastic=elastic,
    )
    model = _with_fixed_of(model, seen, slots)
    model = _with_work_of_tasks(model, seen, slots)
    model = _with_engine_work(model, seen, slots)
    beside_s = overhead_s(seen)
    costs = replace(model.costs, epoch_s=model.costs.epoch_s + beside_s)
    epoch_s = seconds / len(seen) + beside_s
    rate = rows / len(seen) / epoch_s if epoch_s else 0.0
    passed = _apart_s(seen[0], seen[-1])
    return Measured(
        model=replace(model, costs=costs),
        epochs=len(seen),
        rows_per_s=rate,
        arriving_per_s=(sum(sizes[:-1]) / passed if passed > 0 else 0.0) or rate,
        sizes_differ=tells_apart(sizes),
        beside_s=beside_s,
    )


def _flow(program: Program, seen: Sequence[EpochFacts], rate: float) -> tuple[FlowModel, float]:
    """Steps and streams, and what the operators of a slot take in an epoch without rows."""
    graph, total = program.graph, sum(e.rows for e in seen)
    nodes = {node.name: node for node in graph.nodes}
    at_source = {
        n for n, x in nodes.items() if x.kind == "source" or program.rows_level.get(x.id) == 0
    }
    counts = [{**e.operator_rows, **e.source_rows, **e.sink_rows} for e in seen]
    rows_in = {name: float(sum(count.get(name, 0) for count in counts)) for name in nodes}
    lines = {
        name: line_of([e.rows for e in seen], [sum(e.operator_ms.get(name, ())) for e in seen])
        for name in nodes
    }
    spent_s = {name: line.row_s * total / 1e3 for name, line in lines.items()}
    instance_ms = sum(line.fixed_s for name, line in lines.items() if name not in at_source)
    inner = sum(spent_s[name] for name in at_source if nodes[name].kind != "source")
    steps = []
    for name, node in nodes.items():
        source = node.kind == "source"
        if not source and not graph.inputs(node.id):
            continue  # dead letters come from everywhere and cost next to nothing
        # A source's time holds that of what runs in its tasks.
        spent = max(0.0, spent_s[name] - inner) if source else spent_s[name]
        share = rows_in[name] / total if total else 0.0
        steps.append(
            Step(
                name,
                spent / rows_in[name] if rows_in[name] else 0.0,
                rate * share if source else None,
                at_source=name in at_source,
            )
        )
    streams = []
    for edge in graph.edges:
        producer, consumer = graph.nodes[edge.producer].name, graph.nodes[edge.consumer].name
        known = [e.edges[name] for e in seen if (name := edge_name(graph, edge)) in e.edges]
        crossed, remote = float(sum(c.rows for c in known)), sum(c.remote_rows for c in known)
        if not known:  # inside a task rows are not counted: of several inputs each gets its part
            crossed = rows_in[consumer] / len(graph.inputs(edge.consumer))
        size = sum(c.local_bytes + c.remote_bytes for c in known)
        streams.append(
            Stream(
                producer,
                consumer,
                rows_per_row=crossed / rows_in[producer] if rows_in[producer] else 0.0,
                row_bytes=size / crossed if crossed else 0.0,
                remote_share=remote / crossed if crossed else 0.0,
                sends=edge.exchanges,
                between_slots=edge.exchanges and producer not in at_source,
            )
        )
    return FlowModel(tuple(steps), tuple(streams)), instance_ms / 1e3 / seen[-1].slots


def _with_fixed_of(model: EpochModel, seen: Sequence[EpochFacts], slots: int) -> EpochModel:
    """The engine's fixed costs as this flow's epochs show them; their proportions are those of the
    calibration, whose engine may have been colder or busier.
    """
    charged = replace(model, instance_s=0.0).fixed_s(slots)
    if charged == 0:
        return model
    sizes, times = [e.rows for e in seen], [e.engine.seconds for e in seen]
    if tells_apart(sizes):
        found = line_of(sizes, times).fixed_s - (model.fixed_s(slots) - charged)
    else:
        beside_tasks = [e.engine.seconds - in_tasks_s(e.engine) for e in seen]
        found = min(charged, float(np.quantile(beside_tasks, 0.25)))
    share, costs = max(0.0, found) / charged, model.costs
    fixed = {name: share * getattr(costs, name) for name in ("epoch_s", "level_s", "task_s")}
    return replace(model, costs=replace(costs, **fixed))


def in_tasks_s(engine: EngineFacts) -> float:
    """What an epoch's time was spent inside tasks at the least: the longest of every level."""
    return min(engine.seconds, float(sum(engine.levels_ms.values())) / 1e3)


def _with_work_of_tasks(model: EpochModel, seen: Sequence[EpochFacts], slots: int) -> EpochModel:
    """Slots' tasks do more than call operators: they open, check, order and route rows."""
    if not all(e.engine.task_ms for e in seen):
        return model
    in_tasks = [sum(ms for level, ms in e.engine.task_ms.items() if level) / 1e3 for e in seen]
    beyond = line_of([e.rows for e in seen], in_tasks).row_s - model.work_s(slots)[1]
    inside = {step.name for step in model.flow.steps if not step.at_source}
    rows = sum(model.rows_into(name) for name in inside)
    return _charged(model, inside, beyond / rows) if beyond > 0 and rows else model


def _with_engine_work(model: EpochModel, seen: Sequence[EpochFacts], slots: int) -> EpochModel:
    """Charge what is not explained yet to the sources, per row."""
    spent = sum(max(0.0, e.engine.seconds - model.fixed_s(slots)) for e in seen)
    extra = max(0.0, spent / sum(e.rows for e in seen) - model.row_s(slots))
    sources = {step.name for step in model.flow.steps if step.is_source}
    return _charged(model, sources, extra * min(model.source_tasks, model.cores))


def _charged(model: EpochModel, names: set[str], row_s: float) -> EpochModel:
    """The model with so much more time per row in some steps."""
    steps = tuple(
        replace(step, ppt_s=step.ppt_s + row_s) if step.name in names else step
        for step in model.flow.steps
    )
    return replace(model, flow=replace(model.flow, steps=steps))


def load_between(before: EpochFacts, after: EpochFacts, fixed_s: float, cores: int) -> Load | None:
    """Rows that came while an epoch ran and until the next began, and what a row cost in it.

    `fixed_s` of its time was for no row, but what tasks took was. Slots have the time that source
    tasks leave: these run first, whatever the slots, and if they are what fills an epoch, more
    slots are no help. None if nothing can be said.
    """
    seconds = _apart_s(before, after)
    if seconds <= 0 or (before.rows == 0 and after.rows > 0):
        return None
    if after.rows == 0:
        return Load(0.0, 0.0)
    engine = before.engine
    on_rows = max(in_tasks_s(engine), engine.seconds - fixed_s)
    longest = sum(engine.levels_ms.values())
    in_slots = 1.0 - engine.levels_ms.get(0, 0.0) / longest if longest > 0 else 1.0
    left = max(LEFT_LEAST, 1.0 - on_rows * (1.0 - in_slots) / seconds)
    work = on_rows * in_slots * min(before.slots, cores)
    alike = max(before.rows, after.rows / GROWTH_MOST)
    return Load(after.rows / seconds, work / alike / left)


class EpochLine(NamedTuple):
    """Seconds of an epoch: `fixed_s` and `row_s` for each of its rows, neither negative."""

    fixed_s: float
    row_s: float


def tells_apart(rows: Sequence[float]) -> bool:
    """Do sizes differ enough for a line? A single epoch apart from all others is no second size."""
    if len(rows) < 3:
        return False
    small, large = np.quantile(rows, (FEW, 1 - FEW))
    return bool(large >= APART * small)


def line_of(rows: Sequence[float], seconds: Sequence[float]) -> EpochLine:
    """The line through epochs, errors counted in shares of the epoch's own time."""
    x, y = np.asarray(rows, dtype=float), np.asarray(seconds, dtype=float)
    if not tells_apart(rows) or not (y > 0).any():
        return EpochLine(0.0, float(y.sum() / x.sum()))
    from scipy.optimize import nnls  # late: only who tunes needs it

    weight = 1.0 / np.maximum(y, y.max() * 1e-3)
    unit = x.max()
    found, _ = nnls(np.stack([weight, weight * x / unit], axis=1), weight * y)
    return EpochLine(float(found[0]), float(found[1] / unit))


# --- pace -----------------------------------------------------------------------------------
@dataclass(frozen=True)
class Pace:
    """Do rows wait for epochs (None: nobody knows), and how much of the time do epochs for rows?"""

    rows_wait: bool | None
    idle_share: float

    @property
    def is_busy(self) -> bool:
        """Does an epoch follow the other, without waiting for rows or for a trigger?"""
        return self.idle_share <= IDLE_MOST


def pace_of(
    epochs: Sequence[EpochFacts],
    *,
    limit: int | None = None,
    interval: bool = False,
    all_there: bool = False,
) -> Pace:
    """What the last epochs say, all of them run with the same limit.

    Args:
        limit: Rows per epoch that sources were given, if any.
        interval: A trigger with an interval: idle time is then no sign of idle sources.
        all_there: All rows were there when the run began.
    """
    seen = [e for e in epochs if e.rows > 0]
    recent = seen[-RECENT:]
    idle = _idle_share(recent)
    reported = [w for e in recent if (w := e.trigger.last_rows_wait) is not None]
    if all_there or reported:
        return Pace(all_there or 2 * sum(reported) > len(reported), idle)
    if idle > IDLE_MOST and not interval:
        return Pace(False, idle)
    waits = _wait_by_size(seen)
    if limit is not None and recent:
        met = [FULL * limit <= e.rows <= limit / FULL for e in recent]
        if sum(met) >= 0.75 * len(met):
            return Pace(True, idle)
        # Sources that count in files may miss a limit by a third.
        if waits is None and float(np.median([e.rows for e in recent])) < FAR_BELOW * limit:
            waits = False
    return Pace(waits, idle)


def overhead_s(seen: Sequence[EpochFacts]) -> float:
    """Commit, sinks and Spark's own bookkeeping: what passes between the jobs of a busy flow.

    Spark tells how long a trigger took; where it did not, the shorter gaps count, since waiting for
    rows looks the same.
    """
    known = [
        after.trigger.last_trigger_ms / 1e3 - before.engine.seconds
        for before, after in _consecutive(seen)
        if after.trigger.last_trigger_ms is not None
    ]
    if known:
        return max(0.0, float(np.median(known)))
    gaps = _gaps_s(seen)
    return min(BESIDE_S, float(np.quantile(gaps, 0.25))) if gaps else 0.0


def _idle_share(seen: Sequence[EpochFacts]) -> float:
    """Of the time, what is neither an epoch's job nor the work between two."""
    gaps, passed = _gaps_s(seen), sum(_apart_s(*pair) for pair in _consecutive(seen))
    return max(0.0, sum(gaps) - overhead_s(seen) * len(gaps)) / passed if passed > 0 else 0.0


def _gaps_s(seen: Sequence[EpochFacts]) -> list[float]:
    """From the end of a job to the beginning of the next epoch."""
    return [max(0.0, _apart_s(a, b) - a.engine.seconds) for a, b in _consecutive(seen)]


def _consecutive(seen: Sequence[EpochFacts]) -> list[tuple[EpochFacts, EpochFacts]]:
    return [(a, b) for a, b in pairwise(seen) if b.epoch == a.epoch + 1]


def _apart_s(before: EpochFacts, after: EpochFacts) -> float:
    return (after.now_ms - before.now_ms) / 1e3


def _wait_by_size(seen: Sequence[EpochFacts]) -> bool | None:
    """What do the rows that have come by an epoch follow: the time, or the number of epochs?

    Behind a limit every epoch adds as many rows, however long it took; in a stream rows keep to the
    time, give or take what one epoch may hold. So the sums are compared with straight lines over
    both. Rows wait if the sums stray clearly more from time, and do not if more from the count.
    Sums forgive what single sizes do not: clocks read late, and files that come whole.

    Less is enough if no epoch differs from another by a row. A limit does that, and a stream only
    if it comes in files of one size at just the pace of the epochs; more slots do that no harm.
    """
    breaks = [i for i, (a, b) in enumerate(pairwise(seen), 1) if b.epoch != a.epoch + 1]
    epochs = seen[max(breaks, default=0) + 1 :]  # the first came in a time that is not known
    if len(epochs) < EPOCHS_MIN:
        return None
    sums = np.cumsum([float(e.rows) for e in epochs]) / np.mean([e.rows for e in epochs])
    from_time = _strays(np.array([float(e.now_ms) for e in epochs]), sums)
    from_count = _strays(np.arange(len(epochs), dtype=np.float64), sums)
    even = len({e.rows for e in epochs}) == 1
    if from_time >= max(EVEN_STRAYS_MIN if even else STRAYS_MIN, CLEARLY * from_count):
        return True
    return False if from_count >= max(STRAYS_MIN, from_time) else None


def _strays(x: F64, y: F64) -> float:
    """How far y is from its line over x, as a standard deviation."""
    if np.ptp(x) == 0:
        return 0.0
    x = (x - x.mean()) / np.ptp(x)
    y = y - y.mean()
    return float((y - x * (x @ y) / (x @ x)).std())
