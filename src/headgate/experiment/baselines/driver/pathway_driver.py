"""Two counts in Pathway: `python pathway_driver.py WORK_DIR THREADS FILE...`."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

Counts = dict[int, int]


def _as_csv(work_dir: Path, paths: list[str]) -> tuple[Path, int]:
    directory = work_dir / "pathway-csv"
    directory.mkdir(parents=True)
    rows = 0
    for path in paths:
        table = pq.read_table(path, columns=["k1", "k2"])
        pyarrow.csv.write_csv(table, directory / f"{Path(path).stem}.csv")
        rows += table.num_rows
    return directory, rows


def _count(directory: Path) -> dict[str, Counts]:
    import pathway as pw  # type: ignore[import-not-found]

    schema = pw.schema_from_types(k1=int, k2=int)
    rows = pw.io.csv.read(str(directory), schema=schema, mode="static")
    counts: dict[str, Counts] = {"k1": {}, "k2": {}}
    for name, held in counts.items():

        def keep(
            key: Any, row: dict[str, int], time: int, is_addition: bool, held: Counts = held
        ) -> None:
            if is_addition:
                held[row["key"]] = row["count"]

        counted = rows.groupby(rows[name]).reduce(key=rows[name], count=pw.reducers.count())
        pw.io.subscribe(counted, on_change=keep)
    pw.run(monitoring_level=pw.MonitoringLevel.NONE)
    return counts


def _main(work_dir: Path, threads: str, paths: list[str]) -> None:
    os.environ["PATHWAY_THREADS"] = threads  # read when pathway is imported
    directory, rows = _as_csv(work_dir, paths)
    import pathway  # noqa: F401

    start = time.perf_counter()
    counts = _count(directory)
    seconds = time.perf_counter() - start
    for name, held in counts.items():
        columns = {"key": list(held), "count": list(held.values())}
        pq.write_table(pa.table(columns), work_dir / f"pathway-{name}.parquet")
    sys.stdout.write(json.dumps({"seconds": seconds, "rows": rows}) + "\n")


if __name__ == "__main__":
    _main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
