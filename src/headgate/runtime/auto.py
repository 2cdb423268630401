"""`start(..., parallelism="auto", batch="auto")`: settings that the optimizer chooses.

The engine is probed once per checkpoint, for some seconds, and what it charges is saved there. The
first start runs a slot per core; later ones begin with what was measured. Slots change while the
flow runs. Rows per epoch are a property of the source, which Spark fixes when a query starts: a
source that can be told (`Reader`, or a function of (spark, rows_per_epoch)) is, at the start and
by a hand-over to a new query while the flow runs. Others keep their own limit, and the journal
says what it should be.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Literal

from pyspark.sql import SparkSession

from headgate.control.checkpoint import Checkpoint
from headgate.control.tuner import Tuner
from headgate.control.tuning_file import SavedTuning, load_tuning, save_tuning
from headgate.errors import DeclarationError
from headgate.planner.tuning.cost_model import EngineCosts
from headgate.runtime.calibration import ProbeSizes, calibrate, cores_of
from headgate.runtime.delivery import absolute
from headgate.runtime.sources import takes_rows
from headgate.slot.program import compile_flow
from headgate.state.storage import Storage
from headgate.topology.builder import FlowBuilder

log = logging.getLogger("headgate")

Parallelism = int | Literal["auto"] | None
AT_START = ProbeSizes(messages=4_000, mega_bytes=16, levels=2, rounds=2)


@dataclass(frozen=True)
class AutoStart:
    """What a start was resolved to; `tuner` goes on while the flow runs."""

    slots: int
    rows_per_epoch: int | None
    tuner: Tuner
    storage: Storage
    saved: SavedTuning

    @property
    def costs(self) -> EngineCosts:
        """What the engine charges; the choice between distinct and shared batches needs it too."""
        return self.saved.calibration.costs

    def facts(self) -> dict[str, Any]:
        """For the journal's record of the start."""
        return {
            "tuned": {
                "rows_per_epoch": self.rows_per_epoch,
                "costs": self.costs.to_json(),
            }
        }


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
) -> AutoStart:
    """Choose what is left to choose."""
    storage = Checkpoint(absolute(checkpoint)).storage
    cores = cores_of(spark)
    saved = load_tuning(storage)
    if saved is None:
        log.info("probing the engine once, to know what messages and epochs cost")
        saved = SavedTuning(calibrate(spark, AT_START))
        save_tuning(storage, saved)
    tuned = saved.tuned
    chosen = slots if parallelism is None else parallelism
    if chosen == "auto":
        chosen = min(cores, slots_max or cores) if tuned is None else tuned.settings.slots
    graph = flow.graph()
    rows = rows_per_epoch
    if rows is None and tuned is not None and batch == "auto":
        rows = tuned.settings.rows_per_epoch
    tuner = Tuner(
        compile_flow(graph),
        saved.calibration.costs,
        cores=cores,
        slots=checked_slots(chosen),
        slots_max=slots_max or cores,
        latency_s=latency_s,
        rescales=parallelism == "auto",
        limits=batch == "auto" and takes_rows(graph),
        rows_per_epoch=rows,
    )
    return AutoStart(checked_slots(chosen), rows, tuner, storage, saved)


def checked_slots(slots: Any) -> int:
    """A number, or an error that says how to have it chosen."""
    if not isinstance(slots, int):
        raise DeclarationError("give slots=, or parallelism='auto' to have them chosen")
    return slots
