"""Two counts in Pathway: `python pathway_driver.py WORK_DIR THREADS WAY FILES_PER_EPOCH FILE...`.

WAY is how rows come in: `connector` (its Python connector reads the Parquet files and commits after
every epoch) or `csv` (its own CSV reader, all rows one transaction; the files are made before the
clock starts).
"""

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
BATCH_ROWS = 50_000


def _as_csv(work_dir: Path, paths: list[str]) -> Path:
    directory = work_dir / "pathway-csv"
    directory.mkdir(parents=True)
    for path in paths:
        table = pq.read_table(path, columns=["k1", "k2"])
        pyarrow.csv.write_csv(table, directory / f"{Path(path).stem}.csv")
    return directory


def _by_connector(paths: list[str], files_per_epoch: int) -> Any:
    import pathway as pw  # type: ignore[import-not-found]

    class Epochs(pw.io.python.ConnectorSubject):  # type: ignore[misc]
        def run(self) -> None:
            for first in range(0, len(paths), files_per_epoch):
                for path in paths[first : first + files_per_epoch]:
                    table = pq.read_table(path, columns=["k1", "k2"])
                    for batch in table.to_batches(max_chunksize=BATCH_ROWS):
                        k1, k2 = batch.column(0).to_pylist(), batch.column(1).to_pylist()
                        for a, b in zip(k1, k2, strict=True):
                            self.next(k1=a, k2=b)
                self.commit()

    schema = pw.schema_from_types(k1=int, k2=int)
    return pw.io.python.read(Epochs(), schema=schema, autocommit_duration_ms=None)


def _by_csv(directory: Path) -> Any:
    import pathway as pw

    schema = pw.schema_from_types(k1=int, k2=int)
    return pw.io.csv.read(str(directory), schema=schema, mode="static")


def _count(rows: Any) -> dict[str, Counts]:
    import pathway as pw

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


def _main(work_dir: Path, threads: str, way: str, files_per_epoch: int, paths: list[str]) -> None:
    os.environ["PATHWAY_THREADS"] = threads  # read when pathway is imported
    directory = _as_csv(work_dir, paths) if way == "csv" else None
    import pathway  # noqa: F401

    start = time.perf_counter()
    rows = _by_connector(paths, files_per_epoch) if directory is None else _by_csv(directory)
    counts = _count(rows)
    seconds = time.perf_counter() - start
    for name, held in counts.items():
        columns = {"key": list(held), "count": list(held.values())}
        pq.write_table(pa.table(columns), work_dir / f"pathway-{name}.parquet")
    total = sum(counts["k1"].values())
    sys.stdout.write(json.dumps({"seconds": seconds, "rows": total}) + "\n")


if __name__ == "__main__":
    _main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5:])
