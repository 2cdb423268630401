"""librdkafka's mock broker in a process of its own: it ends with its standard input."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

PROGRAM = """
import sys
from confluent_kafka import Producer
producer = Producer({"test.mock.num.brokers": 1, "log_level": 0})
broker = next(iter(producer.list_topics(timeout=30).brokers.values()))
print(f"{broker.host}:{broker.port}", flush=True)
sys.stdin.read()
"""


@contextmanager
def mock_broker() -> Iterator[str]:
    """The address of a broker that forgets all afterwards."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None and process.stdin is not None
        try:
            yield process.stdout.readline().decode().strip()
        finally:
            process.stdin.close()
