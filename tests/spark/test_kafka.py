"""Kafka on Spark, against a mock broker in another process: rows in and out, once each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from tests.mock_kafka import mock_broker
from tests.spark.feeding import ONCE

import headgate as hg
from headgate.commit import faults
from headgate.errors import DeclarationError, EngineError, SchemaMismatch, UnknownColumn
from headgate.runtime.kafka_source import KafkaReader, limited
from headgate.runtime.query import FlowQuery
from headgate.topology.kafka_sink import KafkaSink

kafka = pytest.importorskip("confluent_kafka")
QUIET = {"log_level": "0"}
COUNTS = pa.schema([("key", pa.binary()), ("value", pa.string())])


@pytest.fixture(scope="module")
def broker() -> Iterator[str]:
    with mock_broker() as address:
        yield address


def send(broker: str, topic: str, values: range) -> None:
    producer = kafka.Producer({"bootstrap.servers": broker, **QUIET})
    for i in values:
        headers = [("n", b"%d" % i)]
        producer.produce(topic, b"%d" % i, b"k%d" % (i % 5), partition=i % 3, headers=headers)
    assert producer.flush(30) == 0


def received(broker: str, topic: str) -> list[tuple[bytes, bytes]]:
    told = {"topics": [topic], "starting": "earliest", "limit": None, "headers": False}
    told |= {"fail": True, "timeout": 30, "config": {"bootstrap.servers": broker, **QUIET}}
    reader = KafkaReader(told)
    parts = reader.partitions(reader.initialOffset(), reader.latestOffset({}, None))
    batches = [batch for part in parts for batch in reader.read(part)]
    return [(row["key"], row["value"]) for b in batches for row in b.to_pylist()]


def as_value(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [batch.column("key"), batch.column("count").cast(pa.string())], schema=COUNTS
    )


def run_to_its_end(start: Callable[[], FlowQuery]) -> FlowQuery:
    """Start again, as a supervisor would, if the machine was too busy for the source's process: it
    has ten seconds to call back, which is no setting of Spark's.
    """
    for _ in range(5):
        query = start()
        try:
            query.awaitTermination()
        except StreamingQueryException as problem:
            if "failed to connect back" not in str(problem):
                raise
        else:
            return query
    raise AssertionError("Python workers never came up")


@pytest.mark.parametrize("point", ["tasks-done", "manifest-written", "sink-called"])
def test_rows_come_and_go_once_wherever_the_driver_dies(
    spark: SparkSession, tmp_path: Path, broker: str, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    topic, out = f"in-{point}", f"out-{point}"
    send(broker, topic, range(30))

    def start() -> FlowQuery:
        flow = hg.Flow("kafka")
        rows = flow.source(
            hg.Kafka(topic, servers=broker, max_rows_per_epoch=12, config=QUIET), name=topic
        )
        counts = rows.key_by("key").process(hg.Count(), name="counts")
        counts.map(as_value, COUNTS, name="as_value").to_kafka(
            out, servers=broker, marks=f"marks-{point}", config=QUIET, name="sink"
        )
        return run_to_its_end(
            lambda: flow.start(
                spark, checkpoint=tmp_path / "checkpoint", slots=2, trigger=ONCE, manager=None
            )
        )

    def die(at: str, epoch: int) -> None:
        if (at, epoch) == (point, 1):
            raise RuntimeError("the driver is dead")

    with monkeypatch.context() as patch:
        patch.setattr(faults, "reach", die)
        with pytest.raises(Exception, match="the driver is dead"):
            start()
    start()
    send(broker, topic, range(30, 40))
    query = start()

    held = {row["key"]: row["count"] for row in query.state("counts").to_pylist()}
    assert held == {b"k%d" % k: 8 for k in range(5)}
    found = received(broker, out)
    assert max(Counter(found).values()) == 1, "an epoch was sent twice"
    assert {value for key, value in found if key == b"k0"} >= {b"8"}
    epochs = [int(value) for _, value in received(broker, f"marks-{point}")]
    assert epochs == list(range(len(epochs)))


def test_columns_are_those_of_sparks_connector(broker: str) -> None:
    send(broker, "columns", range(3))
    at = {"columns": {"0": -1, "1": 0, "2": -2}}
    reader = KafkaReader(
        {"topics": ["columns"], "starting": at, "limit": None, "headers": True, "fail": True,
         "timeout": 30, "config": {"bootstrap.servers": broker, **QUIET}}
    )  # fmt: skip
    parts = reader.partitions(reader.initialOffset(), reader.latestOffset({}, None))
    rows = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
    assert [(r["key"], r["value"], r["partition"], r["offset"]) for r in rows] == [
        (b"k1", b"1", 1, 0),
        (b"k2", b"2", 2, 0),
    ]
    assert rows[0]["headers"] == [{"key": "n", "value": b"1"}]
    assert rows[0]["timestamp"].year >= 2026 and rows[0]["timestampType"] == 0


def test_rows_that_are_gone_are_told(broker: str) -> None:
    send(broker, "gone", range(3))
    told = {"topics": ["gone"], "starting": "earliest", "limit": None, "headers": False,
            "timeout": 30, "config": {"bootstrap.servers": broker, **QUIET}}  # fmt: skip
    beyond = {"gone": {"0": 50, "1": 1, "2": 1}}

    with pytest.raises(EngineError, match="fail_on_data_loss=False"):
        KafkaReader({**told, "fail": True}).partitions({"gone": {"0": 0}}, beyond)
    parts = KafkaReader({**told, "fail": False}).partitions({"gone": {"0": 0}}, beyond)

    assert [(part.partition, part.start, part.end) for part in parts] == [
        (0, 0, 1), (1, 0, 1), (2, 0, 1)
    ]  # fmt: skip


def test_a_sink_that_is_called_again_sends_nothing_again(broker: str) -> None:
    sink = KafkaSink("again", broker, "flow-sink", "again-marks", config=QUIET)
    other = KafkaSink("again", broker, "flow-other", "again-marks", config=QUIET)
    rows = [{"key": "a", "value": "0"}, {"key": None, "value": b"1"}]

    for epoch in (0, 0, 1, 0, 1):
        sink(rows, epoch)
    other(rows[:1], 0)
    replace(sink, checkpoint="a new one")(rows[1:], 0)

    assert Counter(received(broker, "again")) == {(b"a", b"0"): 3, (None, b"1"): 3}


def test_mistakes_are_told_where_they_are_made() -> None:
    with pytest.raises(DeclarationError, match="'earliest', 'latest' or offsets"):
        hg.Kafka("t", servers="h:1", starting="last")
    with pytest.raises(DeclarationError, match=r"group\.id, which headgate sets"):
        hg.Kafka("t", servers="h:1", config={"group.id": "mine"})
    rows = hg.Flow("f").source(hg.Kafka("t", servers="h:1"))
    with pytest.raises(SchemaMismatch, match="this stream has 'topic'"):
        rows.to_kafka("out", servers="h:1")
    with pytest.raises(UnknownColumn, match="needs a column 'value'"):
        rows.select("key").to_kafka("out", servers="h:1")


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=6), st.integers(1, 80))
def test_a_limit_is_kept_and_used(ranges: list[tuple[int, int]], rows: int) -> None:
    start = {"t": {str(i): low for i, (low, _) in enumerate(ranges)}}
    end = {"t": {str(i): low + more for i, (low, more) in enumerate(ranges)}}

    taken = limited(start, end, rows)

    counts = {p: taken["t"][p] - start["t"][p] for p in start["t"]}
    assert all(0 <= counts[p] <= end["t"][p] - start["t"][p] for p in counts)
    assert sum(counts.values()) == min(rows, sum(more for _, more in ranges))
