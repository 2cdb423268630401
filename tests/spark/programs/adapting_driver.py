"""Algorithm 1 of Madsen et al. 2017 on the cluster it finds: load rises and falls, slots follow.

`adapting_driver.py PLANNER FOLDER`. Loads are bytes between slots a second of a clock by hand, so
they are those of the rows and nothing else. Prints what became of slots, executors and state.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from pyspark.sql import SparkSession
from tests.spark.feeding import read_files, write_epoch
from tests.waiting import PATIENCE_S, wait_until

import headgate as hg
from headgate.control.loop import DecisionLoop
from headgate.control.units import UnitPlacement
from headgate.runtime.exchange import executors
from headgate.runtime.executors import give_back

SCHEMA = "a long, b long"
QUIET, BUSY = 200, 4_000
FEW, MANY = 2, 3
EPOCH_MS, SLOT_BYTES_PER_SECOND = 100_000, 500.0


class Load:
    """Rows, epoch by epoch, and their fold."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.epochs = folder, 0
        self.fold = {"a": Counter[int](), "b": Counter[int]()}

    def feed(self, rows: int) -> None:
        draw = np.random.default_rng([16, self.epochs])
        a, b = draw.integers(0, 300, rows).tolist(), draw.integers(0, 900, rows).tolist()
        made = [{"a": x, "b": y} for x, y in zip(a, b, strict=True)]
        write_epoch(self.folder, SCHEMA, self.epochs, made)
        self.fold["a"].update(a)
        self.fold["b"].update(b)
        self.epochs += 1


def main(planner: str, folder: Path) -> None:
    spark = SparkSession.builder.getOrCreate()
    give_back(spark, executors(spark)[:FEW])
    wait_until(lambda: len(executors(spark)) == FEW, "executors to go")
    load = Load(folder / "in")
    load.feed(QUIET)
    flow = hg.Flow("adapting")
    rows = flow.source(read_files(spark, folder / "in", SCHEMA))
    first = rows.key_by("a", grouping="hash").process(hg.Count(emit="rows"), name="first")
    first.key_by("b", grouping="hash").process(hg.Count(), name="second").discard()
    tuning = hg.PlannerSettings(slot_bytes_per_second=SLOT_BYTES_PER_SECOND, planner_seconds=0.3)
    settings = hg.Manager(planner, alpha=1.3, migration_seconds_max=60, tuning=tuning)
    rule = hg.Scaling(min_slots=FEW, max_slots=MANY, high_pct=75, low_pct=40, hold_periods=2)
    placing = UnitPlacement(("first", "second"), settings, scaling=rule)
    query = flow.start(
        spark,
        slots=FEW,
        checkpoint=str(folder / "checkpoint"),
        manager=DecisionLoop(placing=placing),
        options=hg.Options(clock_ms=lambda: EPOCH_MS * load.epochs),
    )
    held = [len(executors(spark))]

    def until(rows: int, reached: Callable[[], bool]) -> None:
        deadline, more = time.monotonic() + PATIENCE_S / 4, 2
        while more:
            assert time.monotonic() < deadline, query.journal()[-5:]
            more -= reached()
            query.processAllAvailable()
            load.feed(rows)
        query.processAllAvailable()
        held.append(len(executors(spark)))

    until(QUIET, lambda: load.epochs > 4)
    until(BUSY, lambda: query.slots == MANY)
    until(QUIET, lambda: query.slots == len(executors(spark)) == FEW)
    query.stop()
    told: dict[str, Any] = {
        "executors": held,
        "journal": query.journal(),
        "equal_to_fold": all(
            {row[key]: row["count"] for row in query.state(operator).to_pylist()} == load.fold[key]
            for operator, key in (("first", "a"), ("second", "b"))
        ),
    }
    sys.stdout.write("RESULT " + json.dumps(told) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
