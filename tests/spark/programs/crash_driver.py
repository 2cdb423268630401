"""A driver that a test kills or pauses: `crash_driver.py FOLDER`; a line of JSON on stdin says go.

It makes its SparkSession first and says "ready", so that a test can start the next driver while
the last one runs. When it has been overtaken it says so, and is ready again. The function sink
appends what it is called with to a file. A manager that is never content moves keys from epoch to
epoch; every driver declares other groupings for hot keys.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from tests.scenario.choosing import WAYS, choosing
from tests.scenario.oracle import Case, chain
from tests.scenario.restless import Restless
from tests.spark.feeding import ONCE, as_files
from tests.spark.session import LOCAL, session_on

from headgate.commit.settings import Options
from headgate.errors import Overtaken
from headgate.routing.table import BUCKETS
from headgate.slot.compile import compile_flow

EPOCHS = 12
CHECKPOINT, LOG, OUT = "checkpoint", "log.jsonl", "out"


def case() -> Case:
    """Some epochs are empty; the one whose sinks a test interrupts is not."""
    return chain(random.Random(12), epochs=EPOCHS, rows=80)


def main(folder: Path) -> None:
    spark = session_on(LOCAL)
    spark.range(1).count()
    _die_with_the_jvm(spark)
    print("ready", flush=True)
    for line in sys.stdin:
        try:
            told = drive(spark, folder, json.loads(line))
        except Overtaken as overtaken:
            print(json.dumps({"overtaken": str(overtaken)}), "ready", sep="\n", flush=True)
        else:
            print(json.dumps(told), flush=True)


def drive(spark: SparkSession, folder: Path, told: dict[str, Any]) -> dict[str, Any]:
    """Run the flow to its end, if nothing happens to it; what it brought, and its journal."""
    os.environ.update(told["environment"])
    mine = case()
    coin = random.Random(told["seed"])
    with choosing(lambda name: coin.choice(WAYS)):
        flow, streams = mine.flow(as_files(mine, folder / "in"))

    def log(frame: Any, epoch: int) -> None:
        line = json.dumps({"epoch": epoch, "rows": frame.toArrow().to_pylist()})
        with (folder / LOG).open("a") as file:
            file.write(line + "\n")

    streams["sums"].to(log, name="log")
    streams["sums"].to_parquet(str(folder / OUT), name="parquet")
    streams["sums"].to_table("table")
    program = compile_flow(flow.graph())
    query = flow.start(
        spark, slots=told["slots"], checkpoint=str(folder / CHECKPOINT), trigger=ONCE,
        options=Options(keep_manifests=3),
        manager=Restless(random.Random(told["seed"]), mine, program, BUCKETS),
    )  # fmt: skip
    query.awaitTermination()
    table = query.table("table").toArrow().to_pylist()
    return {"table": table, "journal": query.journal()}


def _die_with_the_jvm(spark: SparkSession) -> None:
    """Let SIGKILL hit the JVM first: left alone it would tidy up, as on no host that stops."""
    kill, jvm = signal.pthread_kill, spark.sparkContext._gateway.proc.pid

    def kill_both(thread: int, number: int) -> None:
        if number == signal.SIGKILL:
            os.kill(jvm, number)
        kill(thread, number)

    signal.pthread_kill = kill_both


if __name__ == "__main__":
    main(Path(sys.argv[1]))
