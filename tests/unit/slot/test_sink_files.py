"""Parquet sinks with folders and an epoch column: every row once, in the folder of its values."""

from __future__ import annotations

import datetime as dt
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.slot.parts import compiled, plan_for

import headgate as hg
from headgate.commit.published import published_files
from headgate.commit.publishing import STAGING, publish, staging_uri
from headgate.errors import NameClash, SchemaMismatch, UnknownColumn
from headgate.slot.rows import Rows
from headgate.slot.sink_files import SinkFiles, with_folder_columns
from headgate.testing import ListSource, run
from headgate.topology.graph import SinkSpec

SCHEMA = pa.schema(
    {"k": pa.string(), "n": pa.int64(), "ok": pa.bool_(), "day": pa.date32(), "v": pa.int64()}
)
rows_of = st.lists(
    st.fixed_dictionaries(
        {
            "k": st.one_of(st.none(), st.text(st.sampled_from("ab/=%:é\n#"), min_size=1)),
            "n": st.one_of(st.none(), st.integers(-3, 3)),
            "ok": st.one_of(st.none(), st.booleans()),
            "day": st.one_of(st.none(), st.sampled_from([dt.date(2026, 1, 31), dt.date(1, 1, 1)])),
            "v": st.integers(0, 9),
        }
    ),
    min_size=1,
    max_size=20,
)


@given(rows_of, st.permutations(["k", "n", "ok", "day"]), st.integers(1, 4))
def test_rows_come_back_from_their_folders(
    rows: list[dict[str, Any]], columns: list[str], many: int
) -> None:
    spec = SinkSpec("parquet", partition_by=tuple(columns[:many]), epoch_column="epoch")
    with tempfile.TemporaryDirectory() as folder:
        flow = hg.Flow("f")
        flow.source(ListSource(SCHEMA, [])).to_memory("out")
        plan = plan_for(compiled(flow), sink_uris={"out": folder})
        files = SinkFiles({"out": spec}, plan, 1, 0)
        files.add("out", Rows(pa.RecordBatch.from_pylist(rows, schema=SCHEMA)))
        written = files.write()["out"]
        found = []
        for file in written:
            table = pq.read_table(Path(folder) / file["name"], partitioning=None)
            assert not {*spec.partition_by} & {*table.column_names}
            found += with_folder_columns(table, file["name"], spec.written(SCHEMA)).to_pylist()

    def order(row: dict[str, Any]) -> str:
        return repr(sorted(row.items()))

    assert sorted(found, key=order) == sorted(({**r, "epoch": plan.epoch} for r in rows), key=order)
    assert sum(file["rows"] for file in written) == len(rows)
    assert len({file["name"].rpartition("/")[0] for file in written}) == len(written)


def test_a_published_partition_is_read_by_hive_readers_and_by_nobody_elses_sink(
    tmp_path: Path,
) -> None:
    spec = SinkSpec("parquet", partition_by=("k",))
    uri = staging_uri(str(tmp_path), "f", "out")
    flow = hg.Flow("f")
    flow.source(ListSource(SCHEMA, [])).to_memory("out")
    files = SinkFiles({"out": spec}, plan_for(compiled(flow), sink_uris={"out": uri}), 1, 0)
    rows = [{"k": "a/b", "v": 1}, {"k": "c", "v": 2}, {"k": "a/b", "v": 3}]
    files.add("out", Rows(pa.RecordBatch.from_pylist(rows, schema=SCHEMA)))
    written = files.write()["out"]

    for _ in range(2):
        publish("f", "out", 0, written, uri)

    read = ds.dataset(tmp_path, partitioning="hive", exclude_invalid_files=False).to_table()
    assert sorted((r["k"], r["v"]) for r in read.to_pylist()) == [("a/b", 1), ("a/b", 3), ("c", 2)]
    names = [str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*.parquet")]
    assert len(names) == 2 and not any(name.startswith(STAGING) for name in names)
    assert len(published_files(names, "f", "out")) == 2
    assert published_files(names, "f", "other") == []


def test_the_kit_shows_folder_and_epoch_columns() -> None:
    flow = hg.Flow("f")
    epochs = [[{"k": "a", "v": 1}], [{"k": "b", "v": 2}, {"k": None, "v": 3}]]
    rows = flow.source(ListSource("k string, v bigint", epochs))
    rows.to_parquet("out", name="out", partition_by="k", epoch_column="epoch")

    found = sorted(run(flow).rows("out"), key=lambda row: row["v"])

    assert found == [
        {"k": "a", "v": 1, "epoch": 0},
        {"k": "b", "v": 2, "epoch": 1},
        {"k": None, "v": 3, "epoch": 1},
    ]


def test_what_cannot_be_laid_out_is_refused() -> None:
    flow = hg.Flow("f")
    rows = flow.source(ListSource("k string, x double, at timestamp", []))

    with pytest.raises(UnknownColumn, match="'kk'"):
        rows.to_parquet("out", partition_by="kk")
    with pytest.raises(SchemaMismatch, match="'x' is double, which cannot name folders"):
        rows.to_parquet("out", partition_by=["k", "x"])
    with pytest.raises(SchemaMismatch, match="to_date"):
        rows.to_parquet("out", partition_by="at")
    with pytest.raises(NameClash, match="'K'"):
        rows.to_parquet("out", epoch_column="K")
    with pytest.raises(SchemaMismatch, match="none is left"):
        rows.select("k").to_parquet("out", partition_by="k")
