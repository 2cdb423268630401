"""On Spark: sources come and go, state columns are added, and every row counts once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.spark.feeding import ONCE, read_files, write_epoch

import headgate as hg
from headgate.commit import faults
from headgate.errors import IncompatibleFlow

SCHEMA = "k bigint, v bigint"
OUT = pa.schema({"k": pa.int64()})


def summed(key: Any, rows: Any, state: Any) -> Any:
    state = state or {"total": 0}
    return {**state, "total": state["total"] + sum(row["v"] for row in rows)}, None


def counted(key: Any, rows: Any, state: Any) -> Any:
    state = state or {"total": 0, "rows": 0}
    total = state["total"] + sum(row["v"] for row in rows)
    return {"total": total, "rows": state["rows"] + len(rows)}, None


def start(
    spark: SparkSession,
    folder: Path,
    sources: dict[str, Any],
    operator: Any,
    slots: int,
    **says: Any,
) -> dict[int, tuple[Any, ...]]:
    flow = hg.Flow("changing")
    rows = [flow.source(frame, name=name) for name, frame in sources.items()]
    joined = rows[0].union(*rows[1:]) if len(rows) > 1 else rows[0]
    joined.key_by("k").process(operator, name="op").to_memory("out")
    query = flow.start(
        spark,
        checkpoint=folder / "checkpoint",
        slots=slots,
        trigger=ONCE,
        manager=None,
        options=hg.Options(**says),
    )
    query.awaitTermination()
    return {row["k"]: tuple(row.values())[1:] for row in query.state("op").to_pylist()}


def test_sources_come_and_go_while_the_state_grows(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """a; then b and a, with another column, and the driver dies; then b, as c; then a again."""
    before = hg.Update(summed, OUT, "dicts", state="total bigint")
    after = hg.Update(counted, OUT, "dicts", state="total bigint, rows int", defaults={"rows": 50})
    told: dict[str, Any] = {"renamed": {"summed": "counted"}}

    def files(name: str) -> hg.Files:
        return hg.Files(tmp_path / name, schema=SCHEMA)

    def arrive(name: str, epoch: int, v: int) -> None:
        write_epoch(tmp_path / name, SCHEMA, epoch, [{"k": k, "v": v} for k in range(3)])

    arrive("a", 0, 1)
    assert start(spark, tmp_path, {"a": files("a")}, before, 2) == dict.fromkeys(range(3), (1,))

    arrive("a", 1, 10)
    arrive("b", 1, 100)
    two = {"b": files("b"), "a": files("a")}

    def die(at: str, epoch: int) -> None:
        if (at, epoch) == ("tasks-done", 1):
            raise RuntimeError("the driver is dead")

    with monkeypatch.context() as patch:
        patch.setattr(faults, "reach", die)
        with pytest.raises(Exception, match="the driver is dead"):
            start(spark, tmp_path, two, after, 3, **told)
    assert start(spark, tmp_path, two, after, 3, **told) == dict.fromkeys(range(3), (111, 52))

    arrive("b", 2, 1000)
    arrive("a", 2, 10_000)
    told = {"renamed": {"b": "c"}}
    one = start(spark, tmp_path, {"c": files("b")}, after, 2, **told)
    assert one == dict.fromkeys(range(3), (1111, 53))

    back = start(spark, tmp_path, {"a": files("a"), "c": files("b")}, after, 1, **told)
    assert back == dict.fromkeys(range(3), (11_111, 54))


def test_a_flow_goes_on_under_its_old_names_if_others_never_committed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = hg.Files(tmp_path / "a", schema=SCHEMA)
    write_epoch(tmp_path / "a", SCHEMA, 0, [{"k": k, "v": 1} for k in range(3)])
    start(spark, tmp_path, {"a": files}, hg.Sum("v"), 2)
    write_epoch(tmp_path / "a", SCHEMA, 1, [{"k": k, "v": 10} for k in range(3)])

    def die(at: str, epoch: int) -> None:
        if (at, epoch) == ("tasks-done", 1):
            raise RuntimeError("the driver is dead")

    with monkeypatch.context() as patch:
        patch.setattr(faults, "reach", die)
        with pytest.raises(Exception, match="the driver is dead"):
            start(spark, tmp_path, {"b": files}, hg.Sum("v"), 2, renamed={"a": "b"})
    held = start(spark, tmp_path, {"a": files}, hg.Sum("v"), 2)

    assert held == dict.fromkeys(range(3), (11,)), "no row is read twice"


def test_data_frames_without_names_cannot_come_or_go(spark: SparkSession, tmp_path: Path) -> None:
    write_epoch(tmp_path / "a", SCHEMA, 0, [{"k": 1, "v": 1}])
    write_epoch(tmp_path / "b", SCHEMA, 0, [{"k": 1, "v": 1}])
    frame = read_files(spark, tmp_path / "a", SCHEMA)
    files = hg.Files(tmp_path / "b", schema=SCHEMA)
    start(spark, tmp_path / "by place", {"a": frame}, hg.Sum("v"), 1)
    start(spark, tmp_path / "by name", {"b": files}, hg.Sum("v"), 1)

    with pytest.raises(IncompatibleFlow, match="belong to sources by their position"):
        start(spark, tmp_path / "by place", {"a": frame, "b": files}, hg.Sum("v"), 1)
    with pytest.raises(IncompatibleFlow, match=r"spark.readStream.name\('its name'\)"):
        start(spark, tmp_path / "by name", {"a": frame, "b": files}, hg.Sum("v"), 1)
