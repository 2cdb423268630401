"""Flows on real Spark give what a plain fold gives, and what the local engine gives."""

from __future__ import annotations

import random
from collections import Counter
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import StreamingQueryProgress
from tests.scenario.oracle import (
    CASES,
    Case,
    bag,
    chain,
    chained_windows,
    random_table,
    windows,
)
from tests.spark.feeding import (
    ONCE,
    Collected,
    check,
    declare,
    frames,
    read_files,
    run_case,
    state_rows,
    write_case,
    write_epoch,
)
from tests.waiting import PATIENCE_S

import headgate as hg
from headgate.errors import DeclarationError, OperatorFailed
from headgate.testing import ListSource, run


@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
def test_state_and_output_are_those_of_a_plain_fold(
    make: Any, spark: SparkSession, tmp_path: Path
) -> None:
    """Chains, branches and unions of two sources, order, windows with a watermark.

    After the last rows of a flow with windows one epoch without rows follows, if it emits any.
    """
    timed = make in (windows, chained_windows)
    more = {"epochs": 5, "quiet": (4,)} if timed else {"epochs": 4}
    case: Case = make(random.Random(1), rows=300, **more)
    write_case(case, tmp_path / "in", range(4))
    collected = Collected()

    query = run_case(spark, case, tmp_path, collected=collected, files=True)

    ticked = timed and any(case.expected[4].output.values())
    check(query, case, collected, upto=4 if ticked else 3)
    assert query.exception() is None
    assert len(collected.calls) == len(set(collected.calls)), "no sink is called twice"


def test_routing_tables_change_where_keys_live_and_nothing_else(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Invariants 2 and 6, and: locality is what the local engine says for these rows."""
    case = chain(random.Random(2), epochs=2, rows=400, empty=False)
    write_case(case, tmp_path / "in")
    rng = random.Random(3)
    tables = {name: random_table(rng, case, name, 2, 1024) for name in case.keys}
    collected = Collected()

    query = run_case(spark, case, tmp_path, collected=collected, tables=tables, manager=None)

    check(query, case, collected)
    flow, streams = case.flow()
    for name, stream in streams.items():
        stream.to_memory(f"to_{name}")
    local = run(flow, slots=2, partitions=1, tables=tables)
    told = [r for r in query.journal() if r["kind"] == "epoch"]
    for ours, theirs in zip(told, local.records, strict=True):
        for fact in ("locality", "loads", "edges", "rows", "routing_version", "sink_rows"):
            assert ours[fact] == theirs[fact], fact
    hashed = run(case_with_memory(case), slots=2)
    assert bag(hashed.state("second")) == bag(local.state("second"))


def case_with_memory(case: Case) -> hg.Flow:
    flow, streams = case.flow()
    for name, stream in streams.items():
        stream.to_memory(f"to_{name}")
    return flow


def test_slots_change_between_starts_and_state_follows(spark: SparkSession, tmp_path: Path) -> None:
    case = chain(random.Random(4), epochs=6, rows=300, empty=False)
    collected = Collected()
    for number, slots in enumerate([2, 3, 1]):
        write_case(case, tmp_path / "in", range(2 * number, 2 * number + 2))
        query = run_case(spark, case, tmp_path, slots=slots, collected=collected, manager=None)
        check(query, case, collected, upto=2 * number + 1)

    records = [r for r in query.journal() if r["kind"] == "epoch"]
    assert [r["slots"] for r in records] == [2, 2, 3, 3, 1, 1]
    assert sum(records[2]["moved_rows"].values()) > 0
    assert not sum(records[3]["moved_rows"].values())


def test_every_kind_of_sink_gets_every_row_once(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schema, text = "k bigint, v string", "\x1b]0;owned\x07\n"
    rows = [[{"k": i % 7, "v": text} for i in range(50)], [{"k": i % 5} for i in range(20)]]
    for epoch, given in enumerate(rows):
        write_epoch(tmp_path / "in", schema, epoch, given)
    flow = hg.Flow("sinks")
    source = flow.source(read_files(spark, tmp_path / "in", schema))
    source.to_console(rows=1, name="raw")
    counts = source.key_by("k").process(hg.Count(), name="counts")
    collected = Collected()
    counts.to(collected.sink("function"), name="function")
    counts.to_parquet(str(tmp_path / "out"), name="parquet")
    counts.to_memory("memory")
    counts.to_table("table")
    counts.to_console(rows=3, name="console")
    counts.filter(pc.field("count") > 10**6).to_parquet(str(tmp_path / "never"), name="never")

    query = flow.start(spark, slots=2, checkpoint=str(tmp_path / "checkpoint"), trigger=ONCE)
    query.awaitTermination()

    counted: Counter[int] = Counter()
    expected = []
    for given in rows:
        counted.update(row["k"] for row in given)
        expected.append(bag({"k": k, "count": counted[k]} for k in {row["k"] for row in given}))
    assert [collected.rows["function"][e] for e in (0, 1)] == expected
    everything = expected[0] + expected[1]
    assert bag(query.rows("memory")) == everything
    assert bag(query.table("table").toArrow().to_pylist()) == everything
    assert bag(query.table("parquet").toArrow().to_pylist()) == everything
    assert bag(spark.read.parquet(str(tmp_path / "out")).toArrow().to_pylist()) == everything
    assert query.table("never").count() == 0
    shown = capsys.readouterr().out
    assert "console, epoch 0: 7 rows" in shown and shown.count("  k=") == 8
    assert r"v=\x1b]0;owned\x07\n" in shown and "\x1b" not in shown


def test_groupings_and_key_types_of_a_batch_source(spark: SparkSession, tmp_path: Path) -> None:
    """One epoch over a batch DataFrame: key types, null keys, the five groupings, and its end."""
    schema = "i int, s string, d date, b binary, v bigint"
    rng = random.Random(5)
    rows = [
        {
            "i": rng.choice([None, -1, 0, 7]),
            "s": rng.choice([None, "", "a", "ä" * 20]),
            "d": rng.choice([None, date(1969, 12, 31), date(2024, 2, 29)]),
            "b": rng.choice([None, b"", b"\x00\xff", b"x" * 40]),
            "v": v,
        }
        for v in range(600)
    ]
    frame = spark.createDataFrame(rows, schema).repartition(3)
    flow = hg.Flow("keys")
    source = flow.source(frame, event_time="d")
    keys = [("i",), ("s",), ("d",), ("b",), ("s", "i", "d")]
    for key in keys:
        source.key_by(*key).process(hg.Count(), name="by_" + "_".join(key))
    source.key_by("i", nulls="drop").process(hg.Count(), name="no_nulls").to_memory("no_nulls_out")
    source.shuffle().map(_double, "v bigint").to_memory("shuffled")
    source.local_or_shuffle().filter(pc.field("v") < 10).select("v").to_memory("local")
    source.broadcast().select("v").globally().process(hg.Count(), name="copies")
    source.globally().process(hg.Sum("v"), name="total").to_memory("total_out")
    days = hg.Count(window=hg.Tumbling("1 day", time="d"))
    weeks = hg.Sum("count", window=hg.Tumbling("1 week", time="window_start"))
    dated = source.filter(pc.field("d").is_valid()).key_by("i").process(days, name="days")
    dated.globally().process(weeks, name="weeks").to_memory("weeks_out")

    query = flow.start(spark, slots=2, checkpoint=str(tmp_path / "checkpoint"))
    assert query.awaitTermination(600) is True
    assert sum(row["sum"] for row in query.rows("weeks_out")) == sum(
        r["d"] is not None for r in rows
    )
    assert query.state("days").num_rows == query.state("weeks").num_rows == 0

    for key in keys:
        counts = Counter(tuple(row[k] for k in key) for row in rows)
        expected = bag(
            {**dict(zip(key, values, strict=True)), "count": n} for values, n in counts.items()
        )
        assert bag(query.state("by_" + "_".join(key)).to_pylist()) == expected, key
    held = Counter(row["i"] for row in rows if row["i"] is not None)
    assert bag(query.rows("no_nulls_out")) == bag({"i": i, "count": n} for i, n in held.items())
    assert sorted(r["v"] for r in query.rows("shuffled")) == [2 * v for v in range(600)]
    assert sorted(r["v"] for r in query.rows("local")) == list(range(10))
    assert query.state("copies").to_pylist() == [{"count": 2 * 600}]
    assert query.rows("total_out") == [{"sum": sum(range(600))}]
    assert not query.isActive and query.lastProgress is not None
    assert query.lastProgress["numInputRows"] == 600


def _double(batch: pa.RecordBatch) -> dict[str, Any]:
    return {"v": pc.multiply(batch.column("v"), 2)}


def test_a_key_that_was_long_silent_starts_again(spark: SparkSession, tmp_path: Path) -> None:
    """TTL goes by the plan's clock: 10 s pass with every epoch here."""
    given = [["a", "b"], ["a"], ["a", "b"], ["b"]]
    for epoch, names in enumerate(given):
        write_epoch(tmp_path / "in", "k string", epoch, [{"k": name} for name in names])
    flow = hg.Flow("ttl")
    source = flow.source(read_files(spark, tmp_path / "in", "k string"))
    counts = source.key_by("k").process(hg.Count(ttl=timedelta(seconds=15)), name="counts")
    collected = Collected()
    counts.to(collected.sink("out"), name="out")

    query = flow.start(
        spark,
        slots=2,
        checkpoint=str(tmp_path / "checkpoint"),
        trigger=ONCE,
        options=hg.Options(tick=False, clock_ms=lambda: 10_000 * len(collected.calls)),
    )
    query.awaitTermination()

    wanted = [{"a": 1, "b": 1}, {"a": 2}, {"a": 3, "b": 1}, {"b": 2}]
    assert collected.rows["out"] == {
        epoch: bag({"k": k, "count": n} for k, n in counted.items())
        for epoch, counted in enumerate(wanted)
    }


def test_a_flow_that_ticks_acts_on_an_idle_stream(spark: SparkSession, tmp_path: Path) -> None:
    """With a TTL the flow has epochs although no row comes; its rows stay what they are."""
    write_epoch(tmp_path / "in", "k string", 0, [{"k": "a"}, {"k": "b"}, {"k": "a"}])
    flow = hg.Flow("tick")
    source = flow.source(read_files(spark, tmp_path / "in", "k string"))
    source.key_by("k").process(hg.Count(ttl=timedelta(hours=1)), name="counts").to_memory("out")

    query = flow.start(spark, slots=2, checkpoint=str(tmp_path / "checkpoint"))
    try:
        while query.isActive and len(query.recentProgress) < 3:
            query.awaitTermination(0.2)
        assert query.exception() is None
    finally:
        query.stop()

    assert bag(query.rows("out")) == bag([{"k": "a", "count": 2}, {"k": "b", "count": 1}])
    assert sum(p["numInputRows"] for p in query.recentProgress) == 3


def test_the_handle_is_like_a_streaming_query(spark: SparkSession, tmp_path: Path) -> None:
    case = chain(random.Random(6), epochs=3, rows=100, empty=False)
    write_case(case, tmp_path / "in", range(2))
    collected = Collected()
    flow = declare(case, frames(spark, case, tmp_path / "in"), collected)

    query = flow.start(spark, slots=2, checkpoint=str(tmp_path / "checkpoint"))
    try:
        query.processAllAvailable()
        assert query.isActive and query.exception() is None
        assert query.awaitTermination(0.01) is False
        assert {"message", "isDataAvailable", "isTriggerActive"} <= set(query.status)
        assert query.name == "chain" and query.id != query.runId
        assert [p["batchId"] for p in query.recentProgress] == [0, 1]
        assert query.lastProgress is not None and query.lastProgress["batchId"] == 1
        told = [StreamingQueryProgress.fromJson(p) for p in query.recentProgress]
        assert [(str(p.id), str(p.runId)) for p in told] == [(query.id, query.runId)] * 2
        check(query, _upto(case, 2), collected)
    finally:
        query.stop()

    assert not query.isActive and query.exception() is None
    query.awaitTermination()
    assert query.awaitTermination(1) is True
    query.stop()  # again is no error


def _upto(case: Case, epochs: int) -> Case:
    case.expected = case.expected[:epochs]
    case.epochs = {name: given[:epochs] for name, given in case.epochs.items()}
    return case


def test_stop_does_not_wait_for_an_epoch_that_hangs(spark: SparkSession, tmp_path: Path) -> None:
    """What is committed stays, the epoch that was cut off is run after the next start."""
    gate, begun = tmp_path / "gate", tmp_path / "begun"
    for epoch in range(2):
        write_epoch(tmp_path / "in", "k bigint", epoch, [{"k": epoch}, {"k": 5}])

    def build() -> hg.Flow:
        flow = hg.Flow("gate")
        source = flow.source(read_files(spark, tmp_path / "in", "k bigint"))
        passed = source.map(_WaitAt(1, str(gate), str(begun)), "k bigint")
        passed.key_by("k").process(hg.Count(), name="counts").discard()
        return flow

    checkpoint = str(tmp_path / "checkpoint")
    query = build().start(spark, slots=2, checkpoint=checkpoint)
    while not begun.exists():
        assert not query.awaitTermination(0.1)
    query.stop()

    assert not query.isActive and query.exception() is None
    assert query.state("counts").num_rows == 2
    assert not [r for r in query.journal() if r["kind"] == "retry"], "stopping is no failure"
    gate.touch()
    again = build().start(spark, slots=2, checkpoint=checkpoint, trigger=ONCE)
    again.awaitTermination()
    assert bag(again.state("counts").to_pylist()) == bag(
        [{"k": 0, "count": 1}, {"k": 1, "count": 1}, {"k": 5, "count": 2}]
    )


class _WaitAt:
    """Passes rows on; a batch that holds the key waits until the gate is there."""

    def __init__(self, key: int, gate: str, begun: str) -> None:
        self.key, self.gate, self.begun = key, gate, begun

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        import time

        if self.key in batch.column("k").to_pylist():
            Path(self.begun).touch()
            deadline = time.monotonic() + PATIENCE_S
            while not Path(self.gate).exists() and time.monotonic() < deadline:
                time.sleep(0.02)
        return batch


def test_declarations_that_spark_cannot_follow_are_refused_at_start(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_epoch(tmp_path / "in", "k bigint", 0, [{"k": 1}])
    place = {"slots": 1, "checkpoint": str(tmp_path / "checkpoint")}

    def flow_of(*sources: tuple[Any, Any]) -> hg.Flow:
        flow = hg.Flow("wrong")
        for number, (frame, schema) in enumerate(sources):
            stream = flow.source(frame, schema=schema)
            stream.key_by("k").process(hg.Count(), name=f"c{number}").discard()
        return flow

    def batch(session: SparkSession) -> DataFrame:
        return session.range(3).withColumnRenamed("id", "k")

    stream = read_files(spark, tmp_path / "in", "k bigint")
    with pytest.raises(DeclarationError, match="all streaming or all batch"):
        flow_of((stream, None), (batch, "k bigint")).start(spark, **place)
    with pytest.raises(DeclarationError, match="declared int32"):
        flow_of((batch, "k int")).start(spark, **place)
    with pytest.raises(DeclarationError, match="declares column"):
        flow_of((batch, "k bigint, other string")).start(spark, **place)
    with pytest.raises(DeclarationError, match="trigger="):
        flow_of((batch, "k bigint")).start(spark, trigger=ONCE, **place)


def test_an_error_of_user_code_ends_the_flow_with_all_its_facts(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Nothing of the epoch is committed; with the function mended no row is lost."""
    for epoch in range(3):
        rows = [{"k": i % 3, "v": i} for i in range(10 * epoch, 10 * epoch + 10)]
        write_epoch(tmp_path / "in", "k bigint, v bigint", epoch, rows)

    def build(bad: int | None) -> hg.Flow:
        flow = hg.Flow("mended")
        source = flow.source(read_files(spark, tmp_path / "in", "k bigint, v bigint"))
        checked = source.key_by("k").process(hg.Count(emit="rows"), name="counts")
        shuffled = checked.shuffle().map(_RaiseAt(bad), "v bigint", name="fragile")
        shuffled.key_by("v").process(hg.Count(), name="values").discard()
        return flow

    checkpoint = str(tmp_path / "checkpoint")
    query = build(17).start(spark, slots=2, checkpoint=checkpoint, trigger=ONCE)
    with pytest.raises(OperatorFailed, match="17 is bad luck") as caught:
        query.awaitTermination()

    error = caught.value
    assert (error.operator, error.epoch) == ("fragile", 1)
    assert error.slot in (0, 1) and "'v': 17" in error.sample
    assert isinstance(query.exception(), OperatorFailed) and not query.isActive
    assert query.coordinator.last is not None and query.coordinator.last.epoch == 0
    assert not [r for r in query.journal() if r["kind"] == "retry"]
    mended = build(None).start(spark, slots=2, checkpoint=checkpoint, trigger=ONCE)
    mended.awaitTermination()
    assert bag(mended.state("values").to_pylist()) == bag({"v": v, "count": 1} for v in range(30))
    assert sum(row["count"] for row in state_rows(mended.coordinator, "counts")) == 30


class _RaiseAt:
    def __init__(self, bad: int | None) -> None:
        self.bad = bad

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self.bad in batch.column("v").to_pylist():
            raise ValueError(f"{self.bad} is bad luck")
        return batch.select(["v"])


def test_the_local_engine_and_spark_name_the_same_state_files(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Invariant 7 across engines: names hold content digests."""
    case = chain(random.Random(8), epochs=2, rows=100, empty=False)
    write_case(case, tmp_path / "in")
    query = run_case(spark, case, tmp_path, clock_ms=lambda: 0, manager=None)
    flow = hg.Flow(case.name)
    source = flow.source(ListSource(case.schemas["rows"], case.epochs["rows"]), name="rows")
    for name, stream in case.declare(flow, {"rows": source}).items():
        stream.to_memory(f"to_{name}")

    identity = query.coordinator.identity  # the secret of the keys is part of what files hold
    run(flow, slots=2, partitions=1, checkpoint=tmp_path / "local", identity=identity)

    def names(folder: Path) -> list[str]:
        return sorted(p.name for p in (folder / "state").rglob("*.arrow"))

    assert names(tmp_path / "local") == names(tmp_path / "checkpoint") != []
    assert query.coordinator.last is not None
