"""An epoch's progress, as Spark's own class reads it."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql.streaming.listener import StreamingQueryProgress

import headgate as hg
from headgate.commit.facts import EngineFacts, EpochFacts
from headgate.runtime.query import progress_of
from headgate.runtime.stream import EpochRun
from headgate.testing import ListSource, run

QUERY, RUN = str(uuid.uuid4()), str(uuid.uuid4())


def facts_of(epoch: int = 0, **changes: Any) -> EpochFacts:
    flow = hg.Flow("watched")
    rows = [[{"k": i % 3} for i in range(30)], []]
    source = flow.source(ListSource("k bigint", rows), name="in")
    source.key_by("k").process(hg.Count(), name="counts").to_memory("out")
    return replace(EpochFacts.from_json(run(flow, slots=2).records[epoch]), **changes)


def test_sparks_own_class_reads_it_whole() -> None:
    engine = EngineFacts(job_ms=500.0, plan_ms=3.2, levels_ms={0: 12.6, 1: 7.4})
    facts = facts_of(engine=engine, watermark_us=1_500_000)

    told = StreamingQueryProgress.fromJson(
        progress_of(EpochRun(facts, QUERY, RUN, 1_000.0, 0.75, before_s=990.0))
    )

    assert (str(told.id), str(told.runId), told.name, told.batchId) == (QUERY, RUN, "watched", 0)
    assert (told.timestamp, told.batchDuration) == ("1970-01-01T00:16:40.000Z", 750)
    assert told.numInputRows == 30
    assert (told.inputRowsPerSecond, told.processedRowsPerSecond) == (3.0, 60.0)
    assert told.durationMs == {
        "triggerExecution": 750, "planning": 3, "job": 500, "level0": 13, "level1": 7,
    }  # fmt: skip
    assert told.eventTime == {"watermark": "1970-01-01T00:00:01.500Z"}
    (state,) = told.stateOperators
    assert (state.operatorName, state.numRowsTotal, state.numRowsUpdated) == ("counts", 3, 30)
    assert state.memoryUsedBytes > 0 and state.numStateStoreInstances == 2
    (source,) = told.sources
    assert (source.description, source.numInputRows) == ("in", 30)
    assert (told.sink.description, told.sink.numOutputRows) == ("out", 3)


def test_an_empty_epoch_is_read_too_and_still_tells_the_state() -> None:
    facts = facts_of(epoch=1)

    told = StreamingQueryProgress.fromJson(progress_of(EpochRun(facts, QUERY, RUN, 1.0, 0.1)))

    assert (told.numInputRows, told.inputRowsPerSecond, told.sources) == (0, 0.0, [])
    assert told.eventTime == {} and told.sink.numOutputRows == 0
    assert told.stateOperators[0].numRowsTotal == 3


@pytest.mark.parametrize("far", [2**62, -(2**62)])
def test_a_watermark_of_no_year_does_no_harm(far: int) -> None:
    facts = facts_of(watermark_us=far)

    assert progress_of(EpochRun(facts, QUERY, RUN, 1.0, 0.1))["eventTime"] == {}
