"""What a start leaves open: slots and rows per epoch that the optimizer chooses.

What the engine charges is a prior at first (`TYPICAL`), or measured, for some seconds, and saved
with the checkpoint; `Options.calibration` says which. The first start runs a slot per core; later
ones begin with what was measured, within what there is now. Slots change while the flow runs.
Rows per epoch are a property of the source, which Spark fixes when a query starts: a source that
can be told (`Reader`, or a function of (spark, rows_per_epoch)) is, at the start and by a hand-over
to a new query while the flow runs. Others keep their own limit, and the journal says what it should
be.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from headgate.commit.checkpoint import Checkpoint
from headgate.commit.facts import TunedStart
from headgate.control.settings import Scaling
from headgate.control.tuner import SavedTuning, Tuner, load_tuning, read_calibration, save_tuning
from headgate.planner.tuning.cost_model import Calibration, EngineCosts, same_engine
from headgate.runtime.calibration import ProbeSizes, calibrate, cores_of, engine_of
from headgate.runtime.connectors import takes_rows
from headgate.runtime.elastic import are_ours_to_change
from headgate.slot.compile import compile_flow
from headgate.slot.wire import PAYLOAD_BYTES_MAX
from headgate.state.storage import Storage
from headgate.topology.arguments import absolute
from headgate.topology.builder import FlowBuilder

Say = Callable[[str], object]
AT_START = ProbeSizes(messages=4_000, mega_bytes=12, levels=2, rounds=1, warm_ups=3)


@dataclass(frozen=True)
class AutoStart:
    """What a start was resolved to; `tuner` goes on while the flow runs."""

    slots: int
    rows_per_epoch: int | None
    tuner: Tuner
    storage: Storage
    saved: SavedTuning
    calibrated: str

    @property
    def costs(self) -> EngineCosts:
        """What the engine charges; the choice between distinct and shared batches needs it too."""
        return self.saved.calibration.costs

    def facts(self) -> TunedStart:
        """For the journal's record of the start."""
        engine = self.saved.calibration.engine
        return TunedStart(self.rows_per_epoch, self.costs, engine, self.calibrated)


def resolve(
    flow: FlowBuilder,
    spark: SparkSession,
    *,
    checkpoint: str,
    slots: int | Scaling,
    latency_s: float | None = None,
    rows_per_epoch: int | None = None,
    trigger: Mapping[str, Any] | None = None,
    calibration: Calibration | str | PathLike[str] | None = None,
) -> AutoStart:
    """Choose what is left to choose: slots within limits, rows per epoch unless they are given."""
    storage = Checkpoint(absolute(checkpoint)).storage
    cores, elastic = cores_of(spark), are_ours_to_change(spark)
    limits = slots if isinstance(slots, Scaling) else None
    saved, calibrated = known_costs(
        load_tuning(storage),
        calibration,
        engine_of(spark, cores),
        elastic=elastic,
        probe=lambda: _probe(spark),
    )
    if saved.calibration != TYPICAL and calibrated != SAVED:
        save_tuning(storage, saved)
    tuned, chosen = saved.tuned, slots
    if isinstance(chosen, Scaling):
        chosen = chosen.within(cores if tuned is None else min(tuned.settings.slots, cores))
    graph = flow.graph()
    rows = rows_per_epoch
    if rows is None and tuned is not None:
        rows = tuned.settings.rows_per_epoch
    tuner = Tuner(
        compile_flow(graph),
        saved.calibration.costs,
        cores=cores,
        slots=chosen,
        scaling=limits,
        latency_s=latency_s,
        elastic=elastic,
        limits=rows_per_epoch is None and takes_rows(graph),
        rows_per_epoch=rows,
        interval=has_interval(trigger),
        all_there=any((trigger or {}).get(name) for name in ("availableNow", "once")),
    )
    return AutoStart(chosen, rows, tuner, storage, saved, calibrated)


SAVED = "the checkpoint's"
PROBE = "probe"
TYPICAL = Calibration(
    EngineCosts(
        35e-6, 15e-9, task_s=0.1, epoch_s=0.0, message_bytes_max=PAYLOAD_BYTES_MAX, level_s=0.09
    ),
    (),
    0.0,
    "typical costs",
)
"""What an engine charges that nobody has measured yet.

As fitted from probes of Spark's local mode on two cores (docs/decisions/0016): 35 us a message, 15
ns a byte, 88 ms a level, 102 ms of a core a task. It only has to do until the flow's own epochs
are measured, after the first 16: from then on they say what an epoch without rows costs.
"""


def known_costs(
    saved: SavedTuning | None,
    given: Calibration | str | PathLike[str] | None,
    engine: str,
    *,
    elastic: bool,
    probe: Callable[[], Calibration],
    say: Say = lambda text: sys.stderr.write(f"headgate: {text}\n"),
) -> tuple[SavedTuning, str]:
    """What the engine charges, and where that comes from: given, probed now, saved, or typical.

    Costs of another engine are not taken from a checkpoint; given ones are, that is the caller's
    word. `say` is heard before a probe, which takes a while; log lines would not be seen.
    """
    tuned = None if saved is None else saved.tuned
    if given == PROBE:
        say("measuring what messages and epochs cost here, by a dozen small jobs")
        return SavedTuning(probe(), tuned), "probed, as asked for"
    if given is not None:
        brought = given if isinstance(given, Calibration) else read_calibration(Path(given))
        other = "" if same_engine(brought.engine, engine, elastic) else f"; this is {engine}"
        return SavedTuning(brought, tuned), f"given, made on {brought.engine or 'an engine'}{other}"
    if saved is not None and same_engine(saved.calibration.engine, engine, elastic):
        return saved, SAVED
    why = "none were measured with this checkpoint"
    if saved is not None and saved.calibration != TYPICAL:
        why = f"the checkpoint's costs are those of {saved.calibration.engine}, this is {engine}"
    return SavedTuning(TYPICAL, tuned), f"typical costs: {why}"


def has_interval(trigger: Mapping[str, Any] | None) -> bool:
    """Does Spark wait between epochs though there are rows?

    Examples:
        >>> [has_interval(t) for t in ({"processingTime": "5 seconds"}, {"availableNow": True})]
        [True, False]
        >>> has_interval({"processingTime": "0 seconds"})
        False
    """
    told = str((trigger or {}).get("processingTime") or "")
    return any(digit in told for digit in "123456789")


def _probe(spark: SparkSession) -> Calibration:
    """A short calibration, under a name in Spark's own pages."""
    context: Any = spark.sparkContext
    before = context.getLocalProperty("spark.job.description")
    context.setJobDescription("headgate: what messages and epochs cost here")
    try:
        return calibrate(spark, AT_START)
    finally:
        context.setJobDescription(before)
