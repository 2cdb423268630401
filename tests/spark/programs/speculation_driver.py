"""A flow on the cluster it finds, one of whose tasks waits for its speculative twin.

`speculation_driver.py FOLDER` checks state and output itself and prints what happened.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from tests.scenario.oracle import chain
from tests.spark.feeding import Collected, check, run_case, write_case
from tests.spark.task_hooks import FirstAttemptWaits

import headgate as hg

ROWS = "k1 bigint, k2 string, v bigint"


def main(folder: Path) -> None:
    spark = SparkSession.builder.getOrCreate()
    hook = FirstAttemptWaits(folder, "twin")
    case = chain(random.Random(26), epochs=2, rows=400, empty=False)

    def declare(_flow: hg.Flow, sources: dict[str, Any]) -> dict[str, Any]:
        first = sources["rows"].key_by("k1").process(hg.Count(emit="rows"), name="first")
        first = first.map(hook, ROWS, name="level1")
        return {"sums": first.key_by("k2").process(hg.Sum("v"), name="second")}

    case.declare = declare
    write_case(case, folder / "in")
    collected = Collected()
    query = run_case(spark, case, folder, collected=collected)
    check(query, case, collected)
    ran = Path(f"{hook.marker}-attempts").read_text().splitlines()
    twin = Path(f"{hook.marker}-twin").exists()
    attempts = [r["attempts"] for r in query.journal() if r["kind"] == "epoch"]
    told = {"waited": hook.struck, "twin": twin, "attempts": attempts, "ran": ran}
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
