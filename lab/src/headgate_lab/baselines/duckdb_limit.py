"""A limit: DuckDB aggregates every epoch into tables in memory, on as many threads as slots.

No stream, no durability, no exactly-once: what a fast engine of queries does with the same files.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import pyarrow as pa

from headgate.demo import EpochFiles

Found = tuple[tuple[float, ...], dict[str, pa.Table]]


def aggregate(epochs: EpochFiles, keys: Sequence[str], of_rows: str, *, slots: int) -> Found:
    """Seconds of every epoch, and by key a table (key, total); `of_rows` is the SQL of an epoch's
    part, and parts are added up.
    """
    import duckdb

    base = duckdb.connect(config={"threads": slots})
    seconds = []
    for epoch, files in enumerate(epochs.files):
        began = time.perf_counter()
        for key in keys:
            new = f"SELECT {key} AS key, {of_rows} AS total FROM read_parquet(?) GROUP BY 1"
            if epoch:
                new = (
                    f"SELECT key, sum(total)::BIGINT AS total FROM ("
                    f"SELECT * FROM by_{key} UNION ALL {new}) GROUP BY key"
                )
            base.execute(
                f"CREATE OR REPLACE TABLE by_{key} AS {new}", [[str(file) for file in files]]
            )
        seconds.append(time.perf_counter() - began)
    found = {
        key: base.sql(f"SELECT key, total::BIGINT AS total FROM by_{key}").to_arrow_table()
        for key in keys
    }
    base.close()
    return tuple(seconds), found
