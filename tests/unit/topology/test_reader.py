"""Rows per epoch in the words of each source; what the user has set stays."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headgate as hg
from headgate.errors import DeclarationError


class Recorder:
    """Takes the calls of a DataStreamReader and keeps them."""

    def __init__(self) -> None:
        self.calls: dict[str, Any] = {}

    @property
    def readStream(self) -> Recorder:
        return self

    def format(self, name: str) -> Recorder:
        self.calls["format"] = name
        return self

    def options(self, **given: str) -> Recorder:
        self.calls["options"] = given
        return self

    def schema(self, given: str) -> Recorder:
        self.calls["schema"] = given
        return self

    def load(self, path: str | None = None) -> dict[str, Any]:
        return self.calls | {"path": path}


@pytest.mark.parametrize(
    ("reader", "limit"),
    [
        (hg.Reader("kafka"), {"maxOffsetsPerTrigger": "900"}),
        (hg.Reader("iceberg"), {"streaming-max-rows-per-micro-batch": "900"}),
        (hg.Reader("csv", path="in", rows_per_file=300), {"maxFilesPerTrigger": "3"}),
        (hg.Reader("csv", path="in", rows_per_file=5_000), {"maxFilesPerTrigger": "1"}),
        (hg.Reader("csv", path="in"), {}),
        (hg.Reader("socket"), {}),
        (hg.Reader("mine", rows_option="rowsAtOnce"), {"rowsAtOnce": "900"}),
        (hg.Reader("kafka", {"maxoffsetspertrigger": "7"}), {}),
    ],
)
def test_limit_is_an_option_of_the_source(reader, limit):
    assert reader.limit(900) == limit
    assert reader.takes_rows == bool(limit)


def test_rows_of_parquet_files_are_read_from_their_footers(tmp_path):
    for number, rows in enumerate((10, 30)):
        pq.write_table(pa.table({"k": range(rows)}), tmp_path / f"{number}.parquet")
    reader = hg.Reader("parquet", path=str(tmp_path), schema="k bigint")

    assert reader.limit(100) == {"maxFilesPerTrigger": "5"}


def test_parquet_files_that_are_not_there_yet_can_be_told_later(tmp_path, caplog):
    reader = hg.Reader("parquet", path=str(tmp_path), schema="k bigint")

    assert reader.takes_rows and reader.limit(100) == {}
    assert "epochs are not limited to 100 rows" in caplog.text and "rows_per_file" in caplog.text
    pq.write_table(pa.table({"k": range(50)}), tmp_path / "0.parquet")
    assert reader.limit(100) == {"maxFilesPerTrigger": "2"}


def test_a_reader_opens_with_and_without_a_wish():
    reader = hg.Reader("kafka", {"subscribe": "posts"})

    assert reader(Recorder(), None) == {
        "format": "kafka",
        "options": {"subscribe": "posts"},
        "path": None,
    }
    assert reader(Recorder(), 5)["options"]["maxOffsetsPerTrigger"] == "5"
    files = hg.Reader("parquet", path="in", schema="k bigint")
    assert files(Recorder(), None)["schema"] == "k bigint"


def test_a_reader_with_a_schema_needs_no_other(tmp_path):
    flow = hg.Flow("f")
    stream = flow.source(hg.Reader("parquet", path=str(tmp_path), schema="k bigint, v double"))

    assert stream.schema.names == ["k", "v"]


@pytest.mark.parametrize("wrong", [{"rows_per_file": 0}, {"rows_option": "n", "rows_per_file": 1}])
def test_a_reader_that_cannot_be_meant_is_refused(wrong):
    with pytest.raises(DeclarationError):
        hg.Reader("json", path="in", **wrong)
