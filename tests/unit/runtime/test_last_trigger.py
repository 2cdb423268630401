"""Progress as Spark writes it; Kafka's offsets as its documentation shows them."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from pyspark.sql.streaming.listener import StreamingQueryProgress

from headgate.commit.facts import LastTrigger
from headgate.runtime.last_trigger import last_trigger


def progress(
    *offsets: tuple[Any, Any], batch: int = 6, durations: dict[str, int] | None = None
) -> StreamingQueryProgress:
    rates = {"numInputRows": 10, "inputRowsPerSecond": 1.0, "processedRowsPerSecond": 1.0}
    sources = [
        {"description": "s", "startOffset": None, "endOffset": end, "latestOffset": latest} | rates
        for end, latest in offsets
    ]
    known = durations or {"addBatch": 900, "walCommit": 20, "triggerExecution": 1_172}
    told = {
        "id": str(uuid.uuid4()),
        "runId": str(uuid.uuid4()),
        "name": None,
        "timestamp": "2026-01-01T00:00:00.000Z",
        "batchId": batch,
        "batchDuration": 1_172,
        "durationMs": known,
        "stateOperators": [],
        "sources": sources,
        "sink": {"description": "x", "numOutputRows": -1},
    }
    return StreamingQueryProgress.fromJson(told | rates)


def test_a_source_that_reports_no_latest_offset_says_only_how_long_it_took():
    assert last_trigger(progress(('{"logOffset": 3}', None)), 7) == LastTrigger(1_172)


@pytest.mark.parametrize(
    ("end", "waits"),
    [({"posts": {"0": 5, "1": 9}}, True), ({"posts": {"1": 9, "0": 7}}, False)],
    ids=["behind", "abreast"],
)
def test_a_source_whose_end_is_not_its_latest_offset_has_rows_that_wait(end, waits):
    latest = {"posts": {"0": 7, "1": 9}}

    assert last_trigger(progress((end, latest)), 7).last_rows_wait is waits
    both = progress(('{"logOffset": 3}', None), (end, latest))
    assert last_trigger(both, 7).last_rows_wait is waits


def test_nothing_is_said_of_any_other_trigger():
    assert last_trigger(None, 7) == LastTrigger()
    assert last_trigger(progress(batch=5), 7) == LastTrigger()
    idle = {"latestOffset": 3, "triggerExecution": 5}
    assert last_trigger(progress(durations=idle), 7) == LastTrigger()
