"""The sink rows of one task, as Parquet files that the manifest names.

Files are named by epoch and content, so writing the same rows twice gives the same file. A file of
an attempt that Spark did not accept is in no manifest, and nobody reads it. A sink with
`partition_by` has a file per folder, and the folder is part of the file's name:

    day=2026-01-31/region=north/e000000007-L01-00002-….parquet

The columns that folders tell are not in the files, as Hive and Spark have it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headgate.arrays import I64
from headgate.slot.plan import EpochPlan
from headgate.slot.rows import Rows, of_one_schema
from headgate.state.digest import digest_of
from headgate.state.storage import Storage
from headgate.topology.graph import SinkSpec

NO_VALUE = "__HIVE_DEFAULT_PARTITION__"  # null, and (as in Spark) a text without letters
_ESCAPED = frozenset(map(chr, range(32))) | set("\"#%'*/:=?\\{}[]^\x7f")


class SinkFiles:
    """Collects what one task has for its sinks; `write` makes files of it."""

    def __init__(
        self, specs: Mapping[str, SinkSpec], plan: EpochPlan, level: int, producer: int
    ) -> None:
        self._specs, self.plan, self.level, self.producer = specs, plan, level, producer
        self._rows: dict[str, list[pa.RecordBatch]] = {}

    def add(self, sink: str, rows: Rows) -> None:
        if len(rows):
            self._rows.setdefault(sink, []).append(rows.batch)

    def write(self) -> dict[str, list[dict[str, Any]]]:
        """Write all files; returns per sink their names, rows and bytes."""
        written: dict[str, list[dict[str, Any]]] = {}
        for sink, batches in sorted(self._rows.items()):
            spec = self._specs[sink]
            table = pa.Table.from_batches(of_one_schema(batches))
            if spec.epoch_column is not None:
                epochs = pa.repeat(pa.scalar(self.plan.epoch, pa.int64()), table.num_rows)
                table = table.append_column(spec.epoch_column, epochs)
            for folder, part in _by_folder(table, spec.partition_by):
                written.setdefault(sink, []).append(self._write(sink, folder, part))
        return written

    def _write(self, sink: str, folder: str, table: pa.Table) -> dict[str, Any]:
        content = pa.BufferOutputStream()
        pq.write_table(table, content, compression="zstd")
        data = content.getvalue()
        name = (
            f"{folder}e{self.plan.epoch:09d}-L{self.level:02d}-{self.producer:05d}-"
            f"{digest_of(data, strong=self.plan.signed)}.parquet"
        )
        uri = self.plan.sink_uris[sink]
        inside = uri.startswith(self.plan.storage_uri.removesuffix("state"))
        Storage.at(uri, shared=not inside).write(name, data)  # others read what is outside
        return {"name": name, "rows": table.num_rows, "bytes": data.size}


def _by_folder(table: pa.Table, columns: Sequence[str]) -> Iterator[tuple[str, pa.Table]]:
    """The rows of each folder, in their order; folders in the order of their first rows."""
    if not columns:
        yield "", table
        return
    codes: I64 = np.zeros(table.num_rows, np.int64)
    for name in columns:
        values = table[name].combine_chunks().dictionary_encode(null_encoding="encode")
        if isinstance(values, pa.ChunkedArray):
            values = values.chunk(0)
        codes = codes * len(values.dictionary) + values.indices.to_numpy()
        codes = np.unique(codes, return_inverse=True)[1].astype(np.int64)
    order = np.argsort(codes, kind="stable")
    starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    parts = np.split(order, starts[1:])
    rest = table.drop_columns(list(columns))
    by_folder: dict[str, list[I64]] = {}  # null and '' have one
    for rows in sorted(parts, key=lambda rows: int(rows[0])):
        values = [table[name][int(rows[0])].as_py() for name in columns]
        by_folder.setdefault(folder_of(dict(zip(columns, values, strict=True))), []).append(rows)
    for folder, pieces in by_folder.items():
        yield folder, rest.take(pa.array(np.concatenate(pieces)))


def folder_of(values: Mapping[str, Any]) -> str:
    """Where rows of these values go, with a slash behind it.

    Examples:
        >>> folder_of({"day": "a/b", "n": 3, "ok": True, "none": None})
        'day=a%2Fb/n=3/ok=true/none=__HIVE_DEFAULT_PARTITION__/'
    """
    return "".join(f"{_escaped(name)}={_text(value)}/" for name, value in values.items())


def _text(value: Any) -> str:
    if value is None or value == "":
        return NO_VALUE
    return _escaped(str(value).lower() if isinstance(value, bool) else str(value))


def _escaped(text: str) -> str:
    return "".join(f"%{ord(c):02X}" if c in _ESCAPED else c for c in text)


def with_folder_columns(table: pa.Table, name: str, schema: pa.Schema) -> pa.Table:
    """The rows of a file with the columns that its folders tell, in the order of the schema."""
    for part in name.split("/")[:-1]:
        column, _, value = part.partition("=")
        field = schema.field(unquote(column))
        text = pa.scalar(None if value == NO_VALUE else unquote(value), pa.string())
        table = table.append_column(field, pa.repeat(text.cast(field.type), table.num_rows))
    return table.select(schema.names)
