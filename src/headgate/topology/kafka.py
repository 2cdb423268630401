"""Kafka as a source: declared here, read by `runtime/kafka_source.py`.

`confluent-kafka` is an extra. It is loaded by what reads and writes, never here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import pyarrow as pa

from headgate.errors import DeclarationError
from headgate.topology.arguments import check_count

FORMAT = "headgate_kafka"
COLUMNS = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestampType", pa.int32()),
    ]
)
_HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
HEADERS = pa.field("headers", pa.list_(_HEADER))
OURS = ("bootstrap.servers", "enable.auto.commit", "group.id", "transactional.id")


@dataclass(frozen=True)
class Kafka:
    """Topics as a source, for `flow.source`; read as Arrow with `confluent-kafka`, without a jar.

    Rows have the columns of Spark's own connector: key, value, topic, partition, offset, timestamp,
    timestampType, and headers if asked for. Spark keeps the offsets of every epoch.

    Args:
        topics: One name, or several with commas.
        servers: `bootstrap.servers`, such as "host:9092".
        starting: Where a new checkpoint begins: "earliest" (default), "latest", or offsets as
            `{"topic": {"0": 23, "1": -2}}` (-2 earliest, -1 latest).
        max_rows_per_epoch: Over all partitions (default: as `flow.start(rows_per_epoch=)` says).
        headers: Also a column of headers.
        fail_on_data_loss: Stop if rows are gone that were not read yet (retention, a topic made
            anew); else go on from the first that is there.
        timeout_s: How long a broker may take to answer, and to send rows that it has.
        config: Settings of librdkafka: security, `fetch.*`, ….

    Examples:
        >>> Kafka("posts", servers="localhost:9092").schema.names[:3]
        ['key', 'value', 'topic']
    """

    topics: str
    servers: str
    starting: str | Mapping[str, Mapping[str, int]] = "earliest"
    max_rows_per_epoch: int | None = None
    headers: bool = False
    fail_on_data_loss: bool = True
    timeout_s: int = 60
    config: Mapping[str, str] = field(default_factory=dict, repr=False)  # it may have passwords

    def __post_init__(self) -> None:
        if not isinstance(self.topics, str) or not all(self.names):
            raise DeclarationError(f"Kafka({self.topics!r}): give a topic's name, or 'one,other'")
        if isinstance(self.starting, str) and self.starting not in ("earliest", "latest"):
            raise DeclarationError(
                f"starting={self.starting!r} of Kafka; choose 'earliest', 'latest' or offsets such "
                "as {'topic': {'0': 23}}"
            )
        if self.max_rows_per_epoch is not None:
            check_count(self.max_rows_per_epoch, "max_rows_per_epoch= of Kafka")
        check_count(self.timeout_s, "timeout_s= of Kafka")
        check_config(self.config, "Kafka")
        needs_confluent("hg.Kafka")

    @property
    def names(self) -> list[str]:
        return [name.strip() for name in self.topics.split(",")]

    @property
    def schema(self) -> pa.Schema:
        return COLUMNS.append(HEADERS) if self.headers else COLUMNS

    @property
    def takes_rows(self) -> bool:
        """Can epochs be limited to a number of rows? Not if they are already."""
        return self.max_rows_per_epoch is None

    def __call__(self, spark: Any, rows_per_epoch: int | None, name: str | None = None) -> Any:
        """A streaming DataFrame of the rows; `name` is what Spark's checkpoint calls it.

        The format is registered by whoever asks (`runtime/connectors.py`).
        """
        limit = self.max_rows_per_epoch or rows_per_epoch
        told = {
            "topics": self.names,
            "starting": self.starting,
            "limit": limit,
            "headers": self.headers,
            "fail": self.fail_on_data_loss,
            "timeout": self.timeout_s,
            "config": {**self.config, "bootstrap.servers": self.servers},
        }
        reader = spark.readStream.format(FORMAT).option("told", json.dumps(told))
        return (reader if name is None else reader.name(name)).load()


def check_config(config: Mapping[str, str], who: str) -> None:
    """Some settings are what exactly-once rests on."""
    taken = [name for name in OURS if name in config]
    if taken:
        raise DeclarationError(f"config= of {who} has {', '.join(taken)}, which headgate sets")


def needs_confluent(who: str) -> None:
    if find_spec("confluent_kafka") is None:
        raise DeclarationError(f"{who} needs confluent-kafka: pip install 'headgate[kafka]'")
