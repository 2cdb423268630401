"""What leaves a flow on Spark: rows to sinks, errors of sinks, progress to listeners."""

from __future__ import annotations

import threading
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQueryListener
from tests.spark.feeding import ONCE, read_files, write_epoch
from tests.waiting import PATIENCE_S

import headgate as hg
from headgate.commit import published
from headgate.errors import SinkFailed, StateFileError, UnknownName

SCHEMA = "k bigint, v bigint"
WIDER = pa.schema(
    {
        "a": pa.uint8(),
        "b": pa.uint32(),
        "c": pa.uint64(),
        "d": pa.list_(pa.uint16()),
        "e": pa.string_view(),
        "f": pa.date64(),
        "g": pa.duration("us"),
    }
)


def _wide(batch: pa.RecordBatch) -> pa.RecordBatch:
    rows = [
        {"a": 255, "b": 2**32 - 1, "c": 2**64 - 1, "d": [2**16 - 1], "e": "x", "f": 0, "g": 5}
        for _ in range(batch.num_rows)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=WIDER)


def test_types_that_spark_has_no_word_for_reach_sinks_as_wider_ones(
    spark: SparkSession, tmp_path: Path
) -> None:
    flow = hg.Flow("wide")
    rows = flow.source(spark.createDataFrame([(1, 1)], SCHEMA)).map(_wide, WIDER, name="wide")
    got: list[Any] = []
    rows.to(lambda frame, epoch: got.extend(frame.collect()), name="function")
    rows.to_table("table")

    query = flow.start(spark, slots=1, checkpoint=tmp_path / "checkpoint")
    query.awaitTermination()

    for row in (*got, *query.table("table").collect()):
        assert (row.a, row.b, row.c, row.d) == (255, 2**32 - 1, Decimal(2**64 - 1), [2**16 - 1])
        assert (row.e, row.f.isoformat(), row.g.microseconds) == ("x", "1970-01-01", 5)
    assert len(got) == 1


def _listed_files(spark: SparkSession) -> set[str]:
    """The files whose listing Spark keeps in its driver."""
    name = "org.apache.spark.sql.execution.datasources.FileStatusCache"
    java: Any = spark.sparkContext._jvm
    keeper = java.java.lang.Class.forName(f"{name}$").getField("MODULE$").get(None)
    shared = next(f for f in keeper.getClass().getDeclaredFields() if "sharedCache" in f.getName())
    shared.setAccessible(True)
    kept = shared.get(keeper)
    if kept is None:
        return set()
    cache = next(f for f in kept.getClass().getDeclaredFields() if f.getName().endswith("cache"))
    cache.setAccessible(True)
    return {entry.toString() for entry in cache.get(kept).asMap().keySet()}


def test_spark_keeps_nothing_of_the_files_that_it_reads_for_sinks(
    spark: SparkSession, tmp_path: Path
) -> None:
    """An epoch's files are read once; what it remembered of them grew up to 250 MB."""
    for epoch in range(2):
        write_epoch(tmp_path / "in", SCHEMA, epoch, [{"k": epoch, "v": 1}])
    seen: list[int] = []
    flow = hg.Flow("once")
    source = flow.source(read_files(spark, tmp_path / "in", SCHEMA), name="in")
    source.to(lambda frame, epoch: seen.append(frame.count()), name="function")
    source.to_table("table")
    source.to_parquet(str(tmp_path / "out"), name="parquet")

    query = flow.start(spark, slots=1, checkpoint=tmp_path / "checkpoint", trigger=ONCE)
    query.awaitTermination()

    assert seen == [1, 1]
    assert query.table("table").count() == query.table("parquet").count() == 2
    listed = [name for name in _listed_files(spark) if str(tmp_path) in name]
    assert listed and all(f"{tmp_path}/in" in name for name in listed), "sources' files are Spark's"


def test_a_table_reads_the_same_while_and_after_its_files_are_merged(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(published, "FANOUT", 2)
    monkeypatch.setattr(published, "STAGING_GRACE_EPOCHS", 1)

    def start(epochs: range) -> Any:
        for epoch in epochs:
            rows = [{"k": epoch, "v": row} for row in range(4)]
            write_epoch(tmp_path / "in", SCHEMA, epoch, rows)
        flow = hg.Flow("a-b")
        source = flow.source(read_files(spark, tmp_path / "in", SCHEMA), name="in")
        source.to_table("rows")
        source.map(_wide, WIDER, name="widen").to_table("wide")
        query = flow.start(spark, slots=2, checkpoint=tmp_path / "checkpoint", trigger=ONCE)
        query.awaitTermination()
        truth = [(epoch, row) for epoch in range(epochs.stop) for row in range(4)]
        assert sorted(map(tuple, query.table("rows").collect())) == truth
        wide = query.table("wide").collect()
        assert len(wide) == len(truth) and len({str(row) for row in wide}) == 1
        return query

    start(range(6))
    folder = tmp_path / "checkpoint" / "tables" / "rows"
    assert list(folder.glob("part-a--b-rows-e*-e*.parquet")), "nothing was merged"
    before = len(list(folder.glob("*.parquet")))
    monkeypatch.setattr(published, "GRACE_S", 0.0)
    start(range(6, 7))

    assert len(list(folder.glob("*.parquet"))) < before


def test_a_parquet_sink_is_read_back_without_what_others_put_into_its_folder(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Two flows whose names and sinks, joined, are the same; another sink; files of nobody."""
    folder = tmp_path / "out"
    spark.createDataFrame([("x",)], "other string").write.parquet(str(folder / "x=1"))
    spark.createDataFrame([("x",)], "k string").write.mode("append").parquet(str(folder))
    queries = []
    for value, (name, sinks) in enumerate([("a", ["b-c", "d"]), ("a-b", ["c"]), ("e-f", ["g"])]):
        flow = hg.Flow(name)
        rows = flow.source(spark.createDataFrame([(value, 5)], SCHEMA))
        for sink in sinks:
            rows.to_parquet(str(folder), name=sink)
        queries.append(flow.start(spark, slots=1, checkpoint=tmp_path / name))
        queries[-1].awaitTermination()
    first, second, third = queries

    assert [tuple(row) for row in first.table("b-c").collect()] == [(0, 5)]
    assert [tuple(row) for row in first.table("d").collect()] == [(0, 5)]
    assert [tuple(row) for row in second.table("c").collect()] == [(1, 5)]
    assert [tuple(row) for row in third.table("g").collect()] == [(2, 5)]
    assert third.table("g").columns == ["k", "v"]


def test_files_that_vanish_or_are_damaged_after_they_were_published_are_noticed(
    spark: SparkSession, tmp_path: Path
) -> None:
    flow = hg.Flow("kept")
    rows = flow.source(spark.createDataFrame([(k, k) for k in range(20)], SCHEMA))
    rows.to_table("table")
    rows.to_parquet(str(tmp_path / "out"), name="files")
    options = {"slots": 1, "checkpoint": tmp_path / "checkpoint"}
    query = flow.start(spark, **options)
    query.awaitTermination()
    for sink, folder in (
        ("table", tmp_path / "checkpoint/tables/table"),
        ("files", tmp_path / "out"),
    ):
        assert query.table(sink).count() == 20
        path = next(iter(sorted(folder.glob("part-*"))))
        whole = path.read_bytes()
        path.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
        with pytest.raises(StateFileError, match="cannot be used") as caught:
            query.table(sink)
        assert (caught.value.sink, caught.value.file) == (sink, path.name)
        path.unlink()
        if sink == "table":
            with pytest.raises(StateFileError, match="of 20 rows are missing"):
                query.table(sink)
        assert query.table(sink, verify=False).count() < 20

    again = flow.start(spark, **options)
    again.awaitTermination()
    (noted,) = [record for record in again.journal() if record["kind"] == "damage"]
    assert noted["sink"] == "files" and noted["file"] == str(path)


@pytest.mark.parametrize("streaming", [True, False])
def test_a_sink_that_raises_is_named_and_called_again_at_the_next_start(
    spark: SparkSession, tmp_path: Path, streaming: bool
) -> None:
    write_epoch(tmp_path / "in", SCHEMA, 0, [{"k": 1, "v": 2}] * 3)
    calls: list[tuple[int, int]] = []

    def store(frame: Any, epoch: int) -> None:
        calls.append((epoch, frame.count()))
        if len(calls) == 1:
            raise RuntimeError("db down")

    def start() -> Any:
        flow = hg.Flow("stored")
        if streaming:
            rows = flow.source(
                lambda spark, folder=tmp_path / "in": read_files(spark, folder, SCHEMA),
                schema=SCHEMA,
            )
        else:
            rows = flow.source(spark.read.parquet(str(tmp_path / "in")))
        rows.to(store, name="db")
        place = f"file:{tmp_path / 'checkpoint'}"
        return flow.start(spark, slots=1, checkpoint=place, trigger=ONCE if streaming else None)

    broken = start()
    with pytest.raises(SinkFailed, match="committed") as caught:
        broken.awaitTermination()
    start().awaitTermination()

    assert (caught.value.sink, caught.value.epoch) == ("db", 0)
    assert caught.value.reason == "RuntimeError: db down"
    assert broken.exception() is caught.value
    assert calls == [(0, 3), (0, 3)]
    assert (tmp_path / "checkpoint" / "headgate.json").exists()


class _Heard(StreamingQueryListener):
    def __init__(self) -> None:
        self.progress: dict[int, Any] = {}
        self.ended = threading.Event()

    def onQueryStarted(self, event: Any) -> None: ...

    def onQueryProgress(self, event: Any) -> None:
        self.progress[event.progress.batchId] = event.progress

    def onQueryTerminated(self, event: Any) -> None:
        self.ended.set()


def test_a_listener_of_the_users_sees_the_flow_and_its_rows(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Also with two sources and a sink that reads its rows twice: no row is counted twice."""
    for epoch in range(2):
        write_epoch(tmp_path / "a", SCHEMA, epoch, [{"k": k, "v": 1} for k in range(20)])
        write_epoch(tmp_path / "b", SCHEMA, epoch, [{"k": k, "v": 1} for k in range(5)])
    flow = hg.Flow("heard")
    both = [flow.source(read_files(spark, tmp_path / n, SCHEMA), name=n) for n in ("a", "b")]
    rows = both[0].union(both[1])
    rows.to(lambda frame, epoch: (frame.count(), frame.collect()), name="twice")
    counts = rows.key_by("k").process(hg.Count(), name="counts")
    counts.to_memory("out")
    heard = _Heard()
    spark.streams.addListener(heard)
    try:
        query = flow.start(spark, slots=2, checkpoint=tmp_path / "checkpoint", trigger=ONCE)
        query.awaitTermination()
        assert heard.ended.wait(PATIENCE_S)
    finally:
        spark.streams.removeListener(heard)

    assert {p.name for p in heard.progress.values()} == {"heard"}
    ours = {p["batchId"]: p for p in query.recentProgress}
    assert [ours[epoch]["numInputRows"] for epoch in (0, 1)] == [25, 25]
    for epoch, theirs in heard.progress.items():
        assert theirs.numInputRows == ours[epoch]["numInputRows"]
        assert (str(theirs.id), str(theirs.runId)) == (query.id, query.runId)
    for ask, there in ((query.rows, "out"), (query.state, "counts"), (query.table, "none")):
        with pytest.raises(UnknownName, match=f"it has {there}"):
            ask("nope")
    with pytest.raises(UnknownName, match="no table or Parquet sink 'out'"):
        query.table("out")


def test_a_parquet_sink_with_folders_is_read_whole_by_the_query_and_by_spark(
    spark: SparkSession, tmp_path: Path
) -> None:
    out, given = str(tmp_path / "out"), ["a", "b/c", None, "a", "7"]
    rows = [(key, number, number % 2 == 0) for number, key in enumerate(given)]
    flow = hg.Flow("folders")
    source = flow.source(spark.createDataFrame(rows, "k string, n bigint, even boolean"), name="in")
    source.to_parquet(out, name="out", partition_by=["k", "even"], epoch_column="epoch")
    source.to_parquet(out, name="plain")

    for _ in range(2):  # the second start finds the batch done
        query = flow.start(spark, checkpoint=str(tmp_path / "checkpoint"), slots=2)
        query.awaitTermination()

    assert repr(query) == "<FlowQuery 'folders': ended, epoch 0, 2 slots>"
    assert "sink: parquet" in str(query.explain()) and "<table>" in query._repr_html_()
    assert "coordinator" not in dir(query) and "explain" in dir(query)
    wanted = sorted((str(k), n, even, 0) for k, n, even in rows)
    assert sorted((str(r.k), r.n, r.even, r.epoch) for r in query.table("out").collect()) == wanted
    assert query.table("out").columns == ["k", "n", "even", "epoch"]
    assert query.table("plain").count() == len(rows)
    found = spark.read.option("basePath", out).parquet(f"{out}/k=*")
    assert sorted((str(r.k), r.n) for r in found.collect()) == [row[:2] for row in wanted]
