"""Two sums in Flink SQL: `python flink_driver.py FOLDER SLOTS`; prints milliseconds of two jobs."""

from __future__ import annotations

import sys
from pathlib import Path

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


def net_ms(folder: Path, slots: str) -> int:
    tables = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    for name, value in {**CONFIG, "parallelism.default": slots}.items():
        tables.get_config().set(name, value)
    tables.execute_sql(
        "CREATE TABLE visits (`user` STRING, page STRING, amount BIGINT) WITH "
        f"('connector' = 'filesystem', 'path' = 'file://{folder}', 'format' = 'csv')"
    )
    both = tables.create_statement_set()
    for key in ("user", "page"):
        tables.execute_sql(
            f"CREATE TABLE by_{key} (k STRING, total BIGINT) WITH ('connector' = 'blackhole')"
        )
        both.add_insert_sql(
            f"INSERT INTO by_{key} SELECT `{key}`, SUM(amount) FROM visits GROUP BY `{key}`"
        )
    job = both.execute().get_job_client()
    return int(job.get_job_execution_result().result().get_net_runtime())


if __name__ == "__main__":
    work, parallel = Path(sys.argv[1]), sys.argv[2]
    told = net_ms(work / "first", parallel), net_ms(work / "all", parallel)
    sys.stdout.write(f"{told[0]} {told[1]}\n")
