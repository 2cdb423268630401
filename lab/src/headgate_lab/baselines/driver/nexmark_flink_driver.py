"""Nexmark in Flink SQL: `python nexmark_flink_driver.py SETTINGS.json`, then queries on stdin.

The settings name the folders of CSV files (`all`, `first`), the tables with their columns, the
queries and the slots. A line `q5 all` runs one and prints one line: the job's milliseconds, or an
error. The process stays warm in between. Results go nowhere, those of q10 into files.
"""

from __future__ import annotations

import json
import re
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
    "table.optimizer.distinct-agg.split.enabled": "true",
    "table.local-time-zone": "UTC",
    "state.backend.type": "hashmap",
    "taskmanager.memory.process.size": "3g",
}


def environment(settings: dict[str, Any], which: str) -> Any:
    """Tables over one folder of files, with their watermarks."""
    tables = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    for name, value in {**CONFIG, "parallelism.default": str(settings["slots"])}.items():
        tables.get_config().set(name, value)
    for name, columns in settings["tables"].items():
        tables.execute_sql(
            f"CREATE TABLE {name} ({columns}, WATERMARK FOR `dateTime` AS `dateTime` "
            "- INTERVAL '4' SECOND) WITH ('connector' = 'filesystem', 'format' = 'csv', "
            f"'path' = 'file://{settings[which]}/{name}')"
        )
    return tables


def run(tables: Any, name: str, sql: str, out: str) -> int:
    """Milliseconds of the job."""
    place = "WITH ('connector' = 'blackhole')"
    if name == "q10":
        place = (
            "PARTITIONED BY (dt, hm) WITH ('connector' = 'filesystem', 'format' = 'csv', "
            f"'path' = 'file://{out}')"
        )
    sql = re.sub(r"\bdateTime\b", "`dateTime`", sql)  # a reserved word there
    tables.execute_sql(f"DROP TABLE IF EXISTS result_{name}")
    job = tables.execute_sql(f"CREATE TABLE result_{name} {place} AS {sql}").get_job_client()
    return int(job.get_job_execution_result().result().get_net_runtime())


def _cause(problem: Exception) -> str:
    """The last cause that Java names, without its stack."""
    lines = [line.strip() for line in str(problem).splitlines()]
    causes = [line for line in lines if line.startswith("Caused by:")] or [" ".join(lines)]
    return " ".join(causes[-1].split())[:400]


def main(settings: dict[str, Any]) -> None:
    known: dict[str, Any] = {}
    for line in sys.stdin:
        name, which = line.split()
        try:
            if which not in known:
                known[which] = environment(settings, which)
            told = str(run(known[which], name, settings["queries"][name], settings["out"]))
        except Exception as problem:
            told = f"ERROR {_cause(problem)}"
        sys.stdout.write(f"TOLD {told}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
