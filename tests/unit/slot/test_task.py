"""Sink files are named by epoch, task and content: writing again writes the same."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from tests.unit.slot.parts import batch, compiled, plan_for, source

from headgate import Flow
from headgate.slot.rows import Rows
from headgate.slot.sink_files import SinkFiles
from headgate.topology.graph import SinkSpec


def files(folder: Path, level: int = 1, producer: int = 2) -> SinkFiles:
    flow = Flow("f")
    source(flow).to_memory("out")
    plan = plan_for(compiled(flow), sink_uris={"a": str(folder / "a"), "b": str(folder / "b")})
    return SinkFiles({name: SinkSpec("memory") for name in "ab"}, plan, level, producer)


def test_rows_of_a_sink_are_one_file_and_say_how_many(tmp_path: Path) -> None:
    sink = files(tmp_path)
    sink.add("a", Rows(batch(k=[1, 2])))
    sink.add("b", Rows(batch(k=[9])))
    sink.add("a", Rows(batch(k=[3])))

    told = sink.write()

    (file,) = told["a"]
    path = tmp_path / "a" / file["name"]
    assert pq.read_table(path).column("k").to_pylist() == [1, 2, 3]
    assert (file["rows"], file["bytes"]) == (3, path.stat().st_size)
    assert file["name"].startswith("e000000004-L01-00002-")
    assert [f["rows"] for f in told["b"]] == [1]


def test_writing_the_same_rows_again_writes_the_same_file(tmp_path: Path) -> None:
    for _ in range(2):
        sink = files(tmp_path)
        sink.add("a", Rows(batch(k=[1, 2])))
        sink.write()

    assert len(list((tmp_path / "a").iterdir())) == 1


def test_other_rows_are_another_file(tmp_path: Path) -> None:
    for value in (1, 2):
        sink = files(tmp_path)
        sink.add("a", Rows(batch(k=[value])))
        sink.write()

    assert len(list((tmp_path / "a").iterdir())) == 2


def test_no_rows_are_no_file(tmp_path: Path) -> None:
    sink = files(tmp_path)
    sink.add("a", Rows(batch(k=pa.array([], pa.int64()))))

    assert sink.write() == {}
    assert not (tmp_path / "a").exists()
