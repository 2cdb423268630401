"""Latency of rows from arrival to the last sink, with a clock that tests move by hand."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import headgate as hg
from headgate.errors import SinkFailed
from headgate.testing import ListSource, LocalRun, ManualClock, run

START_MS = 1_000_000


def at(ms: int | None) -> datetime | None:
    return None if ms is None else datetime.fromtimestamp(ms / 1e3, UTC)


def rows_aged(*ages: int | None, clock_ms: int = START_MS) -> list[dict[str, Any]]:
    return [{"k": i, "at": at(None if a is None else clock_ms - a)} for i, a in enumerate(ages)]


class SlowSink:
    """Takes some time by the clock of the flow; may be down."""

    def __init__(self, clock: ManualClock, takes_ms: int) -> None:
        self.clock, self.takes_ms, self.is_down = clock, takes_ms, False

    def __call__(self, rows: Any, epoch: int) -> None:
        if self.is_down:
            raise RuntimeError("down")
        self.clock.advance(self.takes_ms)


def go(
    epochs: list[Any], *, sink: SlowSink, arrival: str | None = "at", **options: Any
) -> LocalRun:
    flow = hg.Flow("timed")
    rows = flow.source(ListSource("k bigint, at timestamp", epochs), arrival=arrival)
    rows.key_by("k").process(hg.Count(), name="count").to(sink, name="out")
    return run(flow, clock=sink.clock, **options)


def lateness(done: LocalRun) -> list[Any]:
    told = [record.get("latency") for record in done.records]
    assert told == [r.get("latency") for r in done.journal if r["kind"] == "epoch"]
    return told


def test_latency_is_the_age_when_the_epoch_began_and_the_way_to_the_sink() -> None:
    sink = SlowSink(ManualClock(START_MS), takes_ms=30)
    ages = [*range(0, 60), None, -5_000]  # the last is of the future: its clock is wrong
    (found,) = lateness(go([rows_aged(*ages)], sink=sink))

    assert found == {
        "p50_ms": 29.0 + 30,
        "p95_ms": 56.0 + 30,
        "p99_ms": 59.0 + 30,
        "mean_ms": pytest.approx(sum(range(60)) / 61 + 30, abs=0.1),
        "since": "arrival",
        "rows": 61,
        "rows_without_time": 1,
        "commit_ms": 30.0,
    }


def test_without_arrivals_rows_are_at_least_as_late_as_their_epoch_is_long() -> None:
    sink = SlowSink(ManualClock(START_MS), takes_ms=30)
    (found,) = lateness(go([rows_aged(1_000, 2_000)], sink=sink, arrival=None))

    assert (found["p50_ms"], found["p99_ms"], found["mean_ms"]) == (30.0, 30.0, 30.0)
    assert (found["since"], found["rows"]) == ("trigger", 2)


def test_epochs_without_rows_or_without_any_time_tell_nothing() -> None:
    sink = SlowSink(ManualClock(START_MS), takes_ms=30)
    assert lateness(go([[], rows_aged(None, None)], sink=sink, ticks=1)) == [None] * 3


def test_sources_add_up_and_one_without_arrivals_is_left_out() -> None:
    clock = ManualClock(START_MS)
    flow = hg.Flow("timed")
    schema = "k bigint, at timestamp"
    one = flow.source(ListSource(schema, [rows_aged(10, 10, 10)]), arrival="at")
    two = flow.source(ListSource(schema, [rows_aged(50)]), arrival="at")
    three = flow.source(ListSource(schema, [rows_aged(7, 7)]))
    one.union(two).union(three).key_by("k").process(hg.Count()).to_memory("out")
    (found,) = lateness(run(flow, clock=clock))

    assert (found["p50_ms"], found["p99_ms"], found["rows"]) == (10.0, 50.0, 4)
    assert (found["mean_ms"], found["since"]) == (20.0, "arrival")


def test_rows_that_a_dead_driver_left_behind_are_as_late_as_their_delivery(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    sink = SlowSink(clock, takes_ms=0)
    sink.is_down = True
    with pytest.raises(SinkFailed):
        go([rows_aged(40)], sink=sink, checkpoint=tmp_path)
    sink.is_down = False
    clock.advance(3_600_000)
    done = go([rows_aged(40)], sink=sink, checkpoint=tmp_path)

    (told,) = [r["latency"] for r in done.journal if r["kind"] == "epoch"]
    assert (told["p50_ms"], told["commit_ms"]) == (3_600_040.0, 3_600_000.0)
    again = go([rows_aged(40)], sink=sink, checkpoint=tmp_path)
    assert again.journal == done.journal
