"""Kafka through Spark's Python data source: offsets on the driver, Arrow batches in tasks.

An offset is `{topic: {partition: next offset}}`. Spark writes the end of an epoch down before it
runs it, so an epoch that is run again reads the same rows. A task reads one range of one partition;
offsets within it that hold no row (removed by compaction, marks of transactions) are passed over.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from headgate.errors import EngineError
from headgate.topology.kafka import COLUMNS, FORMAT, HEADERS

Offsets = dict[str, dict[str, int]]
BATCH_ROWS = 10_000
EARLIEST, LATEST = -2, -1


class KafkaDataSource(DataSource):
    """The format that `hg.Kafka` reads with; `told` is what it says, as JSON."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def _told(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(self.options["told"])
        return told

    def schema(self) -> StructType:
        return from_arrow_schema(_schema(self._told()))

    def streamReader(self, schema: StructType) -> KafkaReader:
        return KafkaReader(self._told())


class KafkaRange(InputPartition):
    """Rows of a partition from one offset up to another."""

    def __init__(self, topic: str, partition: int, start: int, end: int) -> None:
        super().__init__(None)
        self.topic, self.partition, self.start, self.end = topic, partition, start, end


class KafkaReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """On the driver: which offsets an epoch has. In a task: their rows."""

    def __init__(self, told: dict[str, Any]) -> None:
        self._told = told
        self._until: Offsets | None = None

    # --- offsets -------------------------------------------------------------------------------
    def initialOffset(self) -> Offsets:
        starting = self._told["starting"]
        found: Offsets = {}
        for topic, partitions in self._bounds().items():
            for partition, (low, high) in partitions.items():
                said = starting
                if not isinstance(starting, str):
                    said = starting.get(topic, {}).get(partition, EARLIEST)
                at = {"earliest": low, "latest": high, EARLIEST: low, LATEST: high}.get(said, said)
                found.setdefault(topic, {})[partition] = int(at)
        return found

    def getDefaultReadLimit(self) -> ReadLimit:
        limit = self._told["limit"]
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:
        end = self._until if self._until is not None else self._ends()
        if not isinstance(limit, ReadMaxRows):
            return end
        return limited(start, end, limit.max_rows)

    def prepareForTriggerAvailableNow(self) -> None:
        self._until = self._ends()

    def reportLatestOffset(self) -> Offsets | None:
        return self._ends()

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[KafkaRange]:
        bounds = self._bounds()
        ranges = []
        for topic, partitions in end.items():
            for partition, stop in partitions.items():
                begin = start.get(topic, {}).get(partition, 0)
                low, high = bounds.get(topic, {}).get(partition, (0, 0))
                begin = self._present(topic, partition, begin, stop, low, high)
                if begin < stop:
                    ranges.append(KafkaRange(topic, int(partition), begin, min(stop, high)))
        return ranges

    def _present(
        self, topic: str, partition: str, begin: int, stop: int, low: int, high: int
    ) -> int:
        """Where to begin; raises if rows of the range are gone, unless that is allowed."""
        if begin >= stop or (low <= begin and stop <= high):
            return begin
        if self._told["fail"]:
            raise EngineError(
                f"Kafka topic {topic!r}, partition {partition}: offsets {begin} to {stop} are to "
                f"be read, and it holds {low} to {high}: rows are gone (by its retention, or it "
                "was made anew). To go on without them: hg.Kafka(fail_on_data_loss=False)"
            )
        return max(begin, low)

    def _ends(self) -> Offsets:
        return {
            topic: {partition: high for partition, (_, high) in partitions.items()}
            for topic, partitions in self._bounds().items()
        }

    def _bounds(self) -> dict[str, dict[str, tuple[int, int]]]:
        """First and next offset of every partition."""
        from confluent_kafka import TopicPartition

        consumer, timeout = self._consumer(), self._told["timeout"]
        try:
            found: dict[str, dict[str, tuple[int, int]]] = {}
            for topic in self._told["topics"]:
                about = consumer.list_topics(topic, timeout=timeout).topics[topic]
                if about.error is not None:
                    raise EngineError(f"Kafka topic {topic!r}: {about.error.str()}")
                for partition in sorted(about.partitions):
                    place = TopicPartition(topic, partition)
                    bounds = consumer.get_watermark_offsets(place, timeout=timeout)
                    found.setdefault(topic, {})[str(partition)] = bounds
            return found
        finally:
            consumer.close()

    def _consumer(self) -> Any:
        from confluent_kafka import Consumer

        return Consumer(
            {
                "isolation.level": "read_committed",
                **self._told["config"],
                "group.id": "headgate",  # offsets are Spark's: nothing is ever committed here
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "error",
            }
        )

    # --- rows ----------------------------------------------------------------------------------
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from confluent_kafka import TopicPartition

        assert isinstance(partition, KafkaRange)
        place = TopicPartition(partition.topic, partition.partition, partition.start)
        consumer, timeout = self._consumer(), self._told["timeout"]
        try:
            consumer.assign([place])
            at, waiting_since = partition.start, time.monotonic()
            while at < partition.end:
                messages = consumer.consume(BATCH_ROWS, timeout=0.2)
                for message in messages:
                    if message.error() is not None:
                        raise EngineError(f"Kafka {_told(partition)}: {message.error().str()}")
                rows = [m for m in messages if m.offset() < partition.end]
                if rows:
                    yield _batch(rows, _schema(self._told))
                before = at
                at = max(at, consumer.position([place])[0].offset)
                if messages:
                    at = max(at, messages[-1].offset() + 1)
                if at > before:
                    waiting_since = time.monotonic()
                elif time.monotonic() - waiting_since > timeout:
                    raise EngineError(
                        f"Kafka {_told(partition)}: no row came for {timeout} s at offset {at}; "
                        "see to its brokers, or give hg.Kafka a longer timeout_s="
                    )
        finally:
            consumer.close()


def limited(start: Offsets, end: Offsets, rows: int) -> Offsets:
    """An end at most so many rows ahead: every partition gets its share of them by what it has.

    Examples:
        >>> limited({"t": {"0": 0, "1": 5}}, {"t": {"0": 30, "1": 15}}, 8)
        {'t': {'0': 6, '1': 7}}
    """
    waiting = {
        (topic, partition): stop - start.get(topic, {}).get(partition, 0)
        for topic, partitions in end.items()
        for partition, stop in partitions.items()
    }
    total = sum(waiting.values())
    if total <= rows:
        return end
    shares = {place: max(0, count) * rows // total for place, count in waiting.items()}
    left = rows - sum(shares.values())
    for place, count in waiting.items():  # what rounding left over
        more = min(left, count - shares[place])
        shares[place], left = shares[place] + more, left - more
    return {
        topic: {
            partition: start.get(topic, {}).get(partition, 0) + shares[topic, partition]
            for partition in partitions
        }
        for topic, partitions in end.items()
    }


def _schema(told: dict[str, Any]) -> pa.Schema:
    return COLUMNS.append(HEADERS) if told["headers"] else COLUMNS


def _told(part: KafkaRange) -> str:
    return f"topic {part.topic!r}, partition {part.partition}"


def _batch(messages: Sequence[Any], schema: pa.Schema) -> pa.RecordBatch:
    """A Python call per value: the client knows no columns."""
    times = [message.timestamp() for message in messages]
    columns: list[Any] = [
        [message.key() for message in messages],
        [message.value() for message in messages],
        [message.topic() for message in messages],
        [message.partition() for message in messages],
        [message.offset() for message in messages],
        [ms * 1000 if kind else None for kind, ms in times],
        [kind - 1 if kind else None for kind, _ in times],  # Spark counts from 0
    ]
    if "headers" in schema.names:
        columns.append([_headers(message.headers()) for message in messages])
    arrays = [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _headers(given: Any) -> list[dict[str, Any]] | None:
    return None if given is None else [{"key": name, "value": value} for name, value in given]
