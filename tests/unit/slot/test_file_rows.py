"""Rows of files: every row of every format in exactly one piece, whatever the cuts."""

from __future__ import annotations

import gzip
import os
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import csv, ipc, orc

import headgate as hg
from headgate.errors import DeclarationError, SourceFileError
from headgate.slot.compile import compile_flow
from headgate.slot.file_rows import read_pieces
from headgate.slot.program import Program
from headgate.testing import run
from headgate.topology.files import Files, pieces_of

TABLE = pa.table(
    {
        "name": [f"user-{i}" if i % 7 else None for i in range(1000)],
        "amount": pa.array([None if i % 11 == 0 else i for i in range(1000)], pa.int64()),
        "ratio": [i / 8 for i in range(1000)],
    }
)
SCHEMA = "name string, amount bigint, ratio double"


def write(kind: str, table: pa.Table, path: Path) -> None:
    if kind == "parquet":
        pq.write_table(table, path, row_group_size=max(1, table.num_rows // 3))
    elif kind == "orc":
        orc.write_table(table, path)
    elif kind == "arrow":
        with ipc.new_file(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=300)
    elif kind == "csv":
        csv.write_csv(table, path, csv.WriteOptions(include_header=True))
    else:
        path.write_text("".join(json_line(row) for row in table.to_pylist()))


def json_line(row: dict[str, Any]) -> str:
    import json

    return json.dumps({k: v for k, v in row.items() if v is not None}) + "\n"


def program_of(files: Files, *columns: str) -> Program:
    flow = hg.Flow("f")
    rows = flow.source(files)
    (rows.select(*columns) if columns else rows).to_memory("out")
    return compile_flow(flow.graph())


def rows_in(files: Files, tasks: int) -> list[dict[str, Any]]:
    program = program_of(files)
    found = []
    for pieces in pieces_of(files.list(), {0: files}, tasks, least_bytes=1):
        for _, batch, _ in read_pieces(program, pieces):
            found += batch.to_pylist()
    return found


@pytest.mark.parametrize("kind", ["parquet", "csv", "json", "arrow", "orc"])
@pytest.mark.parametrize("tasks", [1, 2, 3, 7, 50])
def test_every_row_is_read_once_in_order(tmp_path: Path, kind: Any, tasks: int) -> None:
    for number in range(2):
        write(kind, TABLE.slice(number * 400, 400), tmp_path / f"{number}.{kind}")
        os.utime(tmp_path / f"{number}.{kind}", (number, number))

    files = Files(tmp_path, kind, SCHEMA, header=kind == "csv")

    assert rows_in(files, tasks) == TABLE.slice(0, 800).to_pylist()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(
    lines=st.lists(st.text(st.characters(codec="utf-8", exclude_characters='\r\n"'), max_size=40)),
    tasks=st.integers(1, 40),
)
def test_lines_are_cut_where_they_begin(tmp_path: Path, lines: list[str], tasks: int) -> None:
    text = [f"{i}\x01x{line}" for i, line in enumerate(lines)]
    (tmp_path / "a.csv").write_bytes("\n".join(text).replace("\x01", "\x1f").encode())

    files = Files(tmp_path, "csv", "n bigint, line string", sep="\x1f")

    wanted = [{"n": i, "line": f"x{line}"} for i, line in enumerate(lines) if "\x1f" not in line]
    if len(wanted) == len(lines):
        assert rows_in(files, tasks) == wanted


def test_groups_too_large_to_decode_at_once_are_cut_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headgate.slot.file_rows.AT_ONCE_BYTES", 0)
    monkeypatch.setattr("headgate.slot.file_rows.BATCH_BYTES", 1000)
    write("parquet", TABLE, tmp_path / "a.parquet")

    assert rows_in(Files(tmp_path), 5) == TABLE.to_pylist()


def test_a_path_may_name_one_file_or_a_pattern(tmp_path: Path) -> None:
    for name in ("a.parquet", "b.parquet"):
        write("parquet", TABLE, tmp_path / name)

    assert rows_in(Files(tmp_path / "a.parquet"), 2) == TABLE.to_pylist()
    assert rows_in(Files(tmp_path / "b*.parquet"), 2) == TABLE.to_pylist()


def test_a_compressed_file_is_read_by_one_task(tmp_path: Path) -> None:
    (tmp_path / "a.json.gz").write_bytes(
        gzip.compress("".join(json_line(row) for row in TABLE.to_pylist()).encode())
    )

    assert rows_in(Files(tmp_path, "json", SCHEMA), 9) == TABLE.to_pylist()


def test_times_decimals_and_nulls_of_text_are_those_of_spark(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(
        'name,at,day,price\n"",2026-01-02 03:04:05,2026-01-02,1.50\n'
        ",2026-01-02T03:04:05.5+02:00,,\nx,2026-01-02T03:04:05Z,2026-01-02,2\n"
    )
    files = Files(
        tmp_path,
        "csv",
        "name string, at timestamp, day date, price decimal(5,2)",
        header=True,
        time_zone="Europe/Berlin",
    )

    assert rows_in(files, 1) == [
        {
            "name": "",
            "at": datetime(2026, 1, 2, 2, 4, 5, tzinfo=UTC),
            "day": date(2026, 1, 2),
            "price": Decimal("1.50"),
        },
        {
            "name": None,
            "at": datetime(2026, 1, 2, 1, 4, 5, 500000, tzinfo=UTC),
            "day": None,
            "price": None,
        },
        {
            "name": "x",
            "at": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
            "day": date(2026, 1, 2),
            "price": Decimal("2.00"),
        },
    ]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("csv", "1.50\n2\n1.005\n-1.005\n1e2\n"),
        ("json", '{"d":1.50}\n{"d":"2"}\n{"d":1.005}\n{"d":"-1.005"}\n{"d":1e2}\n{"d":null}'),
    ],
)
def test_decimals_are_numbers_or_texts_and_are_rounded_as_spark_does(
    tmp_path: Path, kind: Any, text: str
) -> None:
    (tmp_path / f"a.{kind}").write_text(text)

    found = [row["d"] for row in rows_in(Files(tmp_path, kind, "d decimal(5,2)"), 1)]

    assert found[:5] == [Decimal(d) for d in ("1.50", "2.00", "1.01", "-1.01", "100.00")]
    assert found[5:] == [None] * (kind == "json")


@pytest.mark.parametrize(
    ("kind", "text", "schema"),
    [
        ("csv", "1\nx", "v int"),
        ("csv", "3000000000", "v int"),
        ("csv", "1234.5", "v decimal(5,2)"),
        ("csv", "1,2", "v int"),
        ("json", '{"v":2.0}', "v int"),
        ("json", '{"v":1}', "v string"),
        ("json", '{"v":1234.5}', "v decimal(5,2)"),
        ("json", "{", "v int"),
    ],
)
def test_a_value_that_cannot_be_read_is_an_error_and_no_null(
    tmp_path: Path, kind: Any, text: str, schema: str
) -> None:
    (tmp_path / f"a.{kind}").write_text(text)

    with pytest.raises(SourceFileError, match=f"cannot be read as {kind}"):
        rows_in(Files(tmp_path, kind, schema), 1)


def test_columns_are_found_by_name_in_any_case_or_are_null(tmp_path: Path) -> None:
    pq.write_table(pa.table({"B": [1, 2], "x": [0, 0], "a": ["p", "q"]}), tmp_path / "1.parquet")

    files = Files(tmp_path, schema="a string, b bigint, c double")

    assert rows_in(files, 1) == [
        {"a": "p", "b": 1, "c": None},
        {"a": "q", "b": 2, "c": None},
    ]


def test_folders_name_columns(tmp_path: Path) -> None:
    for day in ("1", "__HIVE_DEFAULT_PARTITION__"):
        (tmp_path / f"day={day}").mkdir()
        pq.write_table(pa.table({"a": ["p"]}), tmp_path / f"day={day}" / "1.parquet")
    (tmp_path / "_temporary").mkdir()
    (tmp_path / "_temporary" / "2.parquet").write_text("not yet")

    files = Files(tmp_path, schema="a string, day int")
    flow = hg.Flow("f")
    flow.source(files).to_memory("out")

    assert sorted(map(str, run(flow).rows("out"))) == [
        "{'a': 'p', 'day': 1}",
        "{'a': 'p', 'day': None}",
    ]


def test_only_columns_that_are_read_are_decoded(tmp_path: Path) -> None:
    write("parquet", TABLE, tmp_path / "a.parquet")
    files = Files(tmp_path)
    flow = hg.Flow("f")
    flow.source(files).key_by("name").process(hg.Count(), name="c").to_memory("out")
    program = compile_flow(flow.graph())

    (pieces,) = pieces_of(files.list(), {0: files}, 1)
    batches = [batch for _, batch, _ in read_pieces(program, pieces)]

    assert {tuple(batch.schema.names) for batch in batches} == {("name",)}


def test_row_groups_that_a_filter_rules_out_are_not_read(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": range(1000)}), tmp_path / "a.parquet", row_group_size=100)
    files = Files(tmp_path)

    def read(event_time: str | None = None) -> int:
        flow = hg.Flow("f")
        flow.source(files).filter(pc.field("n") >= 750).to_memory("out")
        program = compile_flow(flow.graph())
        (pieces,) = pieces_of(files.list(), {0: files}, 1)
        assert len(run(flow).rows("out")) == 250
        return sum(batch.num_rows for _, batch, _ in read_pieces(program, pieces))

    assert read() == 300


@pytest.mark.parametrize("change", ["gone", "longer", "again"])
def test_a_file_that_is_not_the_listed_one_is_an_error(tmp_path: Path, change: str) -> None:
    path = tmp_path / "a.parquet"
    write("parquet", TABLE, path)
    files = Files(tmp_path)
    (pieces,) = pieces_of(files.list(), {0: files}, 1)
    program = program_of(files)
    if change == "gone":
        path.unlink()
    elif change == "longer":
        path.write_bytes(path.read_bytes() + b"x")
    else:
        os.utime(path, (1, 1))

    with pytest.raises(SourceFileError, match="since Spark listed it") as raised:
        list(read_pieces(program, pieces))

    assert raised.value.file == str(path)


def test_a_file_of_another_kind_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_text("no Parquet at all")
    flow = hg.Flow("f")
    flow.source(Files(tmp_path, schema="a string")).to_memory("out")

    with pytest.raises(SourceFileError, match=r"a\.parquet cannot be read as parquet"):
        run(flow)


def test_the_types_of_a_file_are_those_that_spark_reads(tmp_path: Path) -> None:
    table = pa.table(
        {
            "u": pa.array([1], pa.uint32()),
            "t": pa.array([datetime(2026, 1, 1)], pa.timestamp("ms")),
            "z": pa.array([datetime(2026, 1, 1)], pa.timestamp("ns", "Europe/Berlin")),
            "d": pa.array(["a"]).dictionary_encode(),
            "l": pa.array(["a"], pa.large_string()),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")

    schema = Files(tmp_path).schema

    assert schema.types == [
        pa.int64(),
        pa.timestamp("us"),
        pa.timestamp("us", "UTC"),
        pa.string(),
        pa.string(),
    ]
    assert rows_in(Files(tmp_path), 1)[0]["d"] == "a"


def test_int96_times_are_instants(tmp_path: Path) -> None:
    moment = datetime(2026, 1, 1, 12, tzinfo=UTC)
    table = pa.table({"t": pa.array([moment], pa.timestamp("us", "UTC"))})
    pq.write_table(table, tmp_path / "a.parquet", use_deprecated_int96_timestamps=True)
    flow = hg.Flow("f")
    flow.source(Files(tmp_path)).to_memory("out")

    assert Files(tmp_path).schema.field("t").type == pa.timestamp("us", "UTC")
    assert run(flow).rows("out") == [{"t": moment}]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"format": "csv"}, "has no types"),
        ({}, "is not there yet"),
        ({"max_files": 0, "schema": "a int"}, "max_files= of Files is 0"),
        ({"max_files": 1, "max_bytes": 1, "schema": "a int"}, "one limit"),
        ({"header": True, "schema": "a int"}, "for CSV files"),
        ({"format": "xml", "schema": "a int"}, "choose 'parquet'"),
    ],
)
def test_a_declaration_says_what_is_wrong(tmp_path: Path, given: Any, said: str) -> None:
    with pytest.raises(DeclarationError, match=said):
        Files(tmp_path, **given)


def test_rows_of_an_epoch_become_files(tmp_path: Path) -> None:
    write("parquet", TABLE, tmp_path / "a.parquet")

    assert Files(tmp_path).limit(3000) == {"maxFilesPerTrigger": "3"}
    assert not Files(tmp_path, max_files=2).takes_rows
    assert not Files(tmp_path, "json", "a int").takes_rows
    assert Files(tmp_path, "json", "a int", rows_per_file=10).limit(100) == {
        "maxFilesPerTrigger": "10"
    }


def test_epochs_of_the_kit_have_their_limits_and_go_on(tmp_path: Path) -> None:
    place = tmp_path / "in"
    place.mkdir()
    for number in range(4):
        pq.write_table(pa.table({"k": [number] * 10}), place / f"{number}.parquet")
        os.utime(place / f"{number}.parquet", (number, number))

    def flow() -> hg.Flow:
        made = hg.Flow("f")
        counted = made.source(Files(place, max_files=2)).key_by("k").process(hg.Count(), name="c")
        counted.to_memory("out")
        return made

    first = run(flow(), checkpoint=tmp_path / "cp")
    pq.write_table(pa.table({"k": [3] * 10}), place / "9.parquet")
    again = run(flow(), checkpoint=tmp_path / "cp")

    assert [r["source_rows"] for r in first.records] == [{"source_1": 20}, {"source_1": 20}]
    assert {r["k"]: r["count"] for r in again.state("c")} == {0: 10, 1: 10, 2: 10, 3: 20}
