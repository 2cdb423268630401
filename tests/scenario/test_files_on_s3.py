"""Files of a bucket: every row once, over folders, epochs and a restart; a change is an error."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv, fs

import headgate as hg
from headgate.errors import SourceFileError
from headgate.testing import run
from object_store import LocalS3

EPOCHS, DAYS = 3, ("2026-01-01", "2026-01-02")


def arrive(place: str, kind: str, number: int, rows: int = 40) -> list[dict[str, Any]]:
    """A file in the folder of its day, and the rows that a flow shall find in it."""
    day = DAYS[number % 2]
    table = pa.table({"k": [i % 5 for i in range(rows)], "unread": ["x" * 50] * rows})
    system, path = fs.FileSystem.from_uri(place)
    with system.open_output_stream(f"{path}/day={day}/{number}.{kind}") as stream:
        if kind == "parquet":
            pq.write_table(table, stream, row_group_size=15)
        else:
            csv.write_csv(table, stream)
    return [{"k": k, "day": day} for k in table["k"].to_pylist()]


def counts(place: str, kind: Any, **limits: Any) -> hg.Flow:
    flow = hg.Flow("counts")
    schema = "k bigint, day string, unread string"
    files = hg.Files(place, kind, schema, header=kind == "csv", **limits)
    rows = flow.source(files, name="files").select("k", "day")
    rows.key_by("k", "day").process(hg.Count(), name="count").to_memory("out")
    return flow


def folded(rows: list[dict[str, Any]]) -> dict[tuple[int, str], int]:
    return dict(Counter((row["k"], row["day"]) for row in rows))


@pytest.mark.parametrize(
    ("kind", "limits"), [("parquet", {"max_files": 1}), ("csv", {"max_bytes": 100})]
)
def test_rows_of_a_bucket_are_counted_once_epoch_by_epoch(
    s3: LocalS3, tmp_path: Path, kind: str, limits: dict[str, int]
) -> None:
    place = s3.folder()
    rows = [row for number in range(EPOCHS) for row in arrive(place, kind, number)]

    first = run(counts(place, kind, **limits), partitions=3, checkpoint=tmp_path)
    rows += arrive(place, kind, EPOCHS + 2, rows=7)  # the last, by its name too: same second
    again = run(counts(place, kind, **limits), slots=3, checkpoint=tmp_path)

    assert [r["source_rows"] for r in first.records] == [{"files": 40}] * EPOCHS
    assert again.records[-1]["source_rows"] == {"files": 7}
    assert {(r["k"], r["day"]): r["count"] for r in again.state("count")} == folded(rows)


def test_a_pattern_names_objects(s3: LocalS3) -> None:
    place = s3.folder()
    rows = arrive(place, "parquet", 0) + arrive(place, "parquet", 2)
    arrive(place, "parquet", 1)

    flow = hg.Flow("some")
    found = flow.source(hg.Files(f"{place}/day={DAYS[0]}/*.parquet", schema="k bigint"))
    found.to_memory("out")

    assert sorted(r["k"] for r in run(flow).rows("out")) == sorted(r["k"] for r in rows)


def test_an_object_that_is_written_again_ends_the_flow_and_nothing_of_its_epoch_is_kept(
    s3: LocalS3, tmp_path: Path
) -> None:
    place = s3.folder()
    rows = arrive(place, "parquet", 0)
    arrive(place, "parquet", 1)

    def change(epoch: int) -> None:
        if epoch == 1:
            arrive(place, "parquet", 1, rows=400)

    with pytest.raises(SourceFileError, match="since Spark listed it") as raised:
        run(counts(place, "parquet", max_files=1), checkpoint=tmp_path, before_epoch=change)
    rows += arrive(place, "parquet", 1)
    done = run(counts(place, "parquet", max_files=1), checkpoint=tmp_path)

    assert raised.value.file == f"{place}/day={DAYS[1]}/1.parquet"
    assert {(r["k"], r["day"]): r["count"] for r in done.state("count")} == folded(rows)
