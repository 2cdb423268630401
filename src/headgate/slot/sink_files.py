"""Sink rows become Parquet files where they arise, named by epoch and content.

A file that was written by an attempt nobody accepted is never named in a manifest, so nobody
reads it. Writing the same rows again writes the same file again.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headgate.slot.plan import EpochPlan
from headgate.slot.rows import Rows, of_one_schema
from headgate.state.digest import digest_of
from headgate.state.storage import Storage


class SinkFiles:
    """The sink rows of one task; `write` puts each sink's rows in one file."""

    def __init__(self, plan: EpochPlan, level: int, producer: int) -> None:
        self.plan, self.level, self.producer = plan, level, producer
        self._rows: dict[str, list[pa.RecordBatch]] = {}

    def add(self, sink: str, rows: Rows) -> None:
        if len(rows):
            self._rows.setdefault(sink, []).append(rows.batch)

    def write(self) -> dict[str, list[dict[str, Any]]]:
        """Write all files; returns per sink their names, rows and bytes."""
        written: dict[str, list[dict[str, Any]]] = {}
        for sink, batches in sorted(self._rows.items()):
            content = pa.BufferOutputStream()
            table = pa.Table.from_batches(of_one_schema(batches))
            pq.write_table(table, content, compression="zstd")
            data = content.getvalue()
            name = (
                f"e{self.plan.epoch:09d}-L{self.level:02d}-{self.producer:05d}-"
                f"{digest_of(data, strong=self.plan.signed)}.parquet"
            )
            uri = self.plan.sink_uris[sink]
            inside = uri.startswith(self.plan.storage_uri.removesuffix("state"))
            Storage.at(uri, shared=not inside).write(name, data)  # others read what is outside
            rows = sum(batch.num_rows for batch in batches)
            written[sink] = [{"name": name, "rows": rows, "bytes": data.size}]
        return written
