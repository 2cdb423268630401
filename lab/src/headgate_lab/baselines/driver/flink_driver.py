"""Aggregates by two keys in Flink SQL: `python flink_driver.py FOLDER SLOTS JOB`.

Prints the milliseconds of two jobs: over the first file, and over all.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyflink.table import (  # type: ignore[import-not-found]
    EnvironmentSettings,
    TableEnvironment,
)

CONFIG = {
    "table.exec.mini-batch.enabled": "true",
    "table.exec.mini-batch.allow-latency": "1 s",
    "table.exec.mini-batch.size": "500000",
    "table.optimizer.agg-phase-strategy": "TWO_PHASE",
    "state.backend.type": "hashmap",
    "taskmanager.memory.process.size": "3g",
}


def net_ms(folder: Path, slots: str, wanted: dict[str, Any]) -> int:
    tables = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    for name, value in {**CONFIG, "parallelism.default": slots}.items():
        tables.get_config().set(name, value)
    columns = ", ".join(f"`{name}` {kind}" for name, kind in wanted["columns"].items())
    tables.execute_sql(
        f"CREATE TABLE visits ({columns}) WITH "
        f"('connector' = 'filesystem', 'path' = 'file://{folder}', 'format' = 'csv')"
    )
    both = tables.create_statement_set()
    for key in wanted["keys"]:
        tables.execute_sql(
            f"CREATE TABLE by_{key} (k {wanted['columns'][key]}, total BIGINT) "
            "WITH ('connector' = 'blackhole')"
        )
        both.add_insert_sql(
            f"INSERT INTO by_{key} SELECT `{key}`, {wanted['aggregate']} "
            f"FROM visits GROUP BY `{key}`"
        )
    job = both.execute().get_job_client()
    return int(job.get_job_execution_result().result().get_net_runtime())


if __name__ == "__main__":
    work, parallel = Path(sys.argv[1]), sys.argv[2]
    job = json.loads(sys.argv[3])
    told = net_ms(work / "first", parallel, job), net_ms(work / "all", parallel, job)
    sys.stdout.write(f"{told[0]} {told[1]}\n")
