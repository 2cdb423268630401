"""`start(..., parallelism="auto", batch="auto")`: settings that the optimizer chooses.

What the engine charges is measured once per checkpoint and engine, for some seconds, and saved
there; `calibration=` brings it along. The first start runs a slot per core; later ones begin with
what was measured, within what there is now. Slots change while the flow runs. Rows per epoch are a
property of the source, which Spark fixes when a query starts: a source that can be told (`Reader`,
or a function of (spark, rows_per_epoch)) is, at the start and by a hand-over to a new query while
the flow runs. Others keep their own limit, and the journal says what it should be.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Literal

from pyspark.sql import SparkSession

from headgate.commit.checkpoint import Checkpoint
from headgate.commit.facts import TunedStart
from headgate.control.tuner import Tuner
from headgate.control.tuning_file import SavedTuning, load_tuning, read_calibration, save_tuning
from headgate.errors import DeclarationError
from headgate.planner.tuning.calibration import Calibration, same_engine
from headgate.planner.tuning.cost_model import EngineCosts
from headgate.runtime.calibration import ProbeSizes, calibrate, cores_of, engine_of
from headgate.runtime.executors import Executors
from headgate.runtime.sources import takes_rows
from headgate.slot.program import compile_flow
from headgate.state.storage import Storage
from headgate.topology.builder import FlowBuilder
from headgate.topology.declared import check_count
from headgate.topology.place import absolute

Parallelism = int | Literal["auto"] | None
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
    slots: int | None,
    parallelism: Parallelism,
    batch: Any,
    slots_max: int | None,
    latency_s: float | None,
    rows_per_epoch: int | None = None,
    trigger: Mapping[str, Any] | None = None,
    calibration: Calibration | str | PathLike[str] | None = None,
) -> AutoStart:
    """Choose what is left to choose."""
    storage = Checkpoint(absolute(checkpoint)).storage
    cores, elastic = cores_of(spark), Executors(spark).ours_to_change
    most = cores if slots_max is None else check_count(slots_max, "slots_max=")
    saved, calibrated = known_costs(
        load_tuning(storage),
        calibration,
        engine_of(spark, cores),
        elastic=elastic,
        probe=lambda: _probe(spark),
    )
    if calibrated != SAVED:
        save_tuning(storage, saved)
    tuned = saved.tuned
    chosen = slots if parallelism is None else parallelism
    if chosen == "auto":
        chosen = min(cores, most)
        if tuned is not None:
            chosen = min(tuned.settings.slots, chosen)
    graph = flow.graph()
    rows = rows_per_epoch
    if rows is None and tuned is not None and batch == "auto":
        rows = tuned.settings.rows_per_epoch
    tuner = Tuner(
        compile_flow(graph),
        saved.calibration.costs,
        cores=cores,
        slots=checked_slots(chosen),
        slots_max=most,
        latency_s=latency_s,
        elastic=elastic,
        rescales=parallelism == "auto",
        limits=batch == "auto" and takes_rows(graph),
        rows_per_epoch=rows,
        interval=has_interval(trigger),
        all_there=any((trigger or {}).get(name) for name in ("availableNow", "once")),
    )
    return AutoStart(checked_slots(chosen), rows, tuner, storage, saved, calibrated)


SAVED = "the checkpoint's"


def known_costs(
    saved: SavedTuning | None,
    given: Calibration | str | PathLike[str] | None,
    engine: str,
    *,
    elastic: bool,
    probe: Callable[[], Calibration],
    say: Say = lambda text: sys.stderr.write(f"headgate: {text}\n"),
) -> tuple[SavedTuning, str]:
    """What the engine charges, and where that comes from: given, saved, or probed now.

    Costs of another engine are not taken from a checkpoint; given ones are, that is the caller's
    word. `say` is heard before a probe, which takes a while; log lines would not be seen.
    """
    tuned = None if saved is None else saved.tuned
    if given is not None:
        brought = given if isinstance(given, Calibration) else read_calibration(Path(given))
        other = "" if same_engine(brought.engine, engine, elastic) else f"; this is {engine}"
        return SavedTuning(brought, tuned), f"given, made on {brought.engine or 'an engine'}{other}"
    if saved is not None and same_engine(saved.calibration.engine, engine, elastic):
        return saved, SAVED
    why = "the first start with this checkpoint"
    if saved is not None:
        why = f"the checkpoint's costs are those of {saved.calibration.engine}, this is {engine}"
    say(
        f"measuring what messages and epochs cost here, by a dozen small jobs ({why}); "
        "flow.start(calibration=FILE) takes a file of `headgate calibrate` instead"
    )
    return SavedTuning(probe(), tuned), f"probed: {why}"


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


def checked_slots(slots: Any) -> int:
    """A number, or an error that says how to have it chosen."""
    if not isinstance(slots, int):
        raise DeclarationError("give slots=, or parallelism='auto' to have them chosen")
    return slots


def _probe(spark: SparkSession) -> Calibration:
    """A short calibration, under a name in Spark's own pages."""
    context: Any = spark.sparkContext
    before = context.getLocalProperty("spark.job.description")
    context.setJobDescription("headgate: what messages and epochs cost here")
    try:
        return calibrate(spark, AT_START)
    finally:
        context.setJobDescription(before)
