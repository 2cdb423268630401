"""The rows of an epoch in one Kafka transaction, with a mark that says which epoch it was.

A sink is called at least once per epoch, always with the same rows. What makes that exactly once
for readers that read committed rows: the transaction also writes a record with the epoch's number
to a topic of marks, under the key of this sink and checkpoint. A call first takes over the
transactional id, which ends what a dead driver left open and shuts out one that is merely slow;
then it reads the last mark. An epoch that is marked is there, as a whole, and is not sent again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from headgate.errors import SchemaMismatch, SinkFailed, UnknownColumn
from headgate.topology.kafka import check_config, needs_confluent

MARKS = "headgate-epochs"


@dataclass
class KafkaSink:
    """Call it with an epoch's rows; they have columns `value`, and perhaps `key` and `partition`.

    Rows are a DataFrame, taken partition by partition, or a list of dicts (`headgate.testing`).
    """

    topic: str
    servers: str
    transactional_id: str
    marks: str = MARKS
    timeout_s: int = 60
    config: Mapping[str, str] = field(default_factory=dict, repr=False)
    checkpoint: str = (
        ""  # its id: another one begins at epoch 0 again, and must not be taken for it
    )

    def __post_init__(self) -> None:
        needs_confluent("to_kafka(...)")
        check_config(self.config, "to_kafka(...)")

    def __call__(self, rows: Any, epoch: int) -> None:
        producer = self._client("Producer", {"transactional.id": self.transactional_id})
        try:
            producer.init_transactions(self.timeout_s)
            last = self._last_epoch()
            if last is not None and last >= epoch:
                return
            producer.begin_transaction()
            failed: list[Any] = []

            def told(error: Any, message: Any) -> None:
                if error is not None:
                    failed.append(error)

            for row in rows if isinstance(rows, list) else rows.toLocalIterator():
                self._send(producer, row if isinstance(row, dict) else row.asDict(), told)
            producer.produce(
                self.marks,
                key=self._mark,
                value=str(epoch),
                partition=0,
                on_delivery=told,
            )
            left = producer.flush(self.timeout_s)
            if left or failed:
                producer.abort_transaction(self.timeout_s)
                why = failed[0].str() if failed else f"{left} rows were not taken in time"
                raise SinkFailed(
                    f"Kafka topic {self.topic!r} did not take the rows of epoch {epoch}: {why}. "
                    "The epoch is committed and nothing is lost: the next start sends it",
                    epoch=epoch,
                    reason=why,
                )
            producer.commit_transaction(self.timeout_s)
        finally:
            producer.flush(0)

    @property
    def _mark(self) -> str:
        return f"{self.transactional_id} {self.checkpoint}"

    def _send(self, producer: Any, row: dict[str, Any], told: Callable[..., None]) -> None:
        where = {} if row.get("partition") is None else {"partition": int(row["partition"])}
        key, value = _bytes(row.get("key")), _bytes(row["value"])
        while True:
            try:
                producer.produce(self.topic, value, key, on_delivery=told, **where)
                producer.poll(0)
                return
            except BufferError:  # the queue is full: let it be sent
                producer.poll(0.1)

    def _last_epoch(self) -> int | None:
        """The last epoch that is marked; all that was begun has ended, so this is final."""
        from confluent_kafka import TopicPartition

        reader = self._client("Consumer", {"group.id": "headgate", "enable.auto.commit": False,
                                           "isolation.level": "read_committed"})  # fmt: skip
        try:
            known = reader.list_topics(timeout=self.timeout_s).topics
            if self.marks not in known:
                return None
            place = TopicPartition(self.marks, 0)
            low, high = reader.get_watermark_offsets(place, timeout=self.timeout_s)
            reader.assign([TopicPartition(self.marks, 0, low)])
            last, at, deadline = None, low, time.monotonic() + self.timeout_s
            while at < high:
                for message in reader.consume(1000, timeout=0.2):
                    if message.error() is None and message.key() == self._mark.encode():
                        last = int(message.value())
                at = max(at, reader.position([place])[0].offset)
                if time.monotonic() > deadline:
                    raise SinkFailed(
                        f"the marks of epochs in Kafka topic {self.marks!r} could not be read in "
                        f"{self.timeout_s} s: see to its brokers, or give a longer timeout_s=",
                        reason="timeout",
                    )
            return last
        finally:
            reader.close()

    def _client(self, kind: str, more: Mapping[str, Any]) -> Any:
        import confluent_kafka

        given = {**self.config, "bootstrap.servers": self.servers, **more}
        return getattr(confluent_kafka, kind)(given)


def check_rows(schema: pa.Schema) -> None:
    """Can rows with these columns be sent?"""
    types = pa.types
    for name in schema.names:
        kind = schema.field(name).type
        is_text = types.is_string(kind) or types.is_binary(kind) or types.is_large_string(kind)
        fits = types.is_integer(kind) if name == "partition" else is_text
        if name not in ("key", "value", "partition") or not fits:
            raise SchemaMismatch(
                f"to_kafka(...) sends key and value (text or binary) and partition (a number), and "
                f"this stream has {name!r} ({kind}): make value of it before, with map(...), and "
                "select the columns",
                column=name,
            )
    if "value" not in schema.names:
        raise UnknownColumn(
            f"to_kafka(...) needs a column 'value'; the stream has {', '.join(schema.names)}",
            column="value",
        )


def _bytes(value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else bytes(value)
