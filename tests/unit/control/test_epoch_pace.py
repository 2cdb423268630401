"""Waiting rows and steady streams, told apart; idle time, seen or not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.commit.facts import EngineFacts, EpochFacts, TriggerFacts
from headgate.commit.latency import LatencyFacts
from headgate.control.pace import measured_p95_s, overhead_s, pace_of

BESIDE_S = 0.2


def facts(epoch: int, rows: int, now_s: float, job_s: float, trigger_s: float | None) -> EpochFacts:
    return EpochFacts(
        epoch,
        rows=rows,
        now_ms=1e3 * now_s,
        engine=EngineFacts(job_ms=1e3 * job_s),
        trigger=TriggerFacts(None if trigger_s is None else 1e3 * trigger_s),
    )


def epochs(
    *,
    limit: int | None,
    rate: float = 1_000.0,
    noise: float = 0.05,
    count: int = 64,
    seed: int = 1,
    every_s: float = 0.0,
    tells: bool = True,
) -> list[EpochFacts]:
    """Epochs of a backlog behind a limit, or of a stream that brings what has come meanwhile."""
    rng = np.random.default_rng(seed)
    made, now, rows, trigger = [], 0.0, limit or round(rate), 0.0
    for epoch in range(count):
        job = (0.4 + rows * 2e-4) * np.exp(rng.normal(0, noise))
        made.append(facts(epoch, rows, now, job, trigger if tells and epoch else None))
        trigger = job + BESIDE_S
        apart = max(trigger, every_s)
        now += apart
        rows = limit or max(1, round(rate * apart * np.exp(rng.normal(0, noise))))
    return made


@settings(max_examples=30)
@given(
    seed=st.integers(0, 10_000),
    noise=st.floats(0.05, 0.3),
    limited=st.booleans(),
    tells=st.booleans(),
)
def test_rows_wait_behind_a_limit_and_never_in_a_stream(seed, noise, limited, tells):
    told = epochs(limit=1_000 if limited else None, noise=noise, seed=seed, tells=tells)

    found = pace_of(told).rows_wait
    assert found is not (not limited)
    assert noise < 0.15 or not limited or found is True


@given(seed=st.integers(0, 100), noise=st.floats(0.0, 0.3), every_s=st.sampled_from([1.0, 1.5]))
def test_a_trigger_s_rhythm_is_no_limit(seed, noise, every_s):
    told = epochs(limit=None, noise=noise, every_s=every_s, seed=seed)

    assert pace_of(told, interval=True).rows_wait is not True


@pytest.mark.parametrize("noise", [0.0, 1e-9, 0.01])
def test_epochs_that_hardly_differ_say_nothing(noise):
    assert pace_of(epochs(limit=1_000, noise=noise)).rows_wait is None
    assert pace_of([]).rows_wait is None


@settings(max_examples=30)
@given(
    seed=st.integers(0, 10_000),
    noise=st.floats(0.0, 0.2),
    file_s=st.floats(0.02, 0.5),
    load=st.floats(0.1, 0.9),
)
def test_files_that_come_in_a_rhythm_do_not_wait(seed, noise, file_s, load):
    """Epochs take the files that are there, so their sizes move in steps.

    At the very pace of the epochs each takes as many: nothing tells that from a limit.
    """
    rng = np.random.default_rng(seed)
    told, now, seen, trigger = [], 0.0, 0, 0.0
    for epoch in range(64):
        wait = max(0.0, (seen + 1) * file_s - now)  # Spark waits for the next file
        now += wait
        files = int(now / file_s + 1e-9) - seen
        seen += files
        job = (0.3 + files * load * file_s) * np.exp(rng.normal(0, noise))
        told.append(facts(epoch, 100 * files, now, job, trigger if epoch else None))
        trigger = job + BESIDE_S
        now += trigger

    alike = len({e.rows for e in told[1:]}) == 1
    assert alike or pace_of(told).rows_wait is not True


def test_an_idle_flow_has_no_rows_that_wait():
    """Each epoch has what a burst brought, which is always the same."""
    told = epochs(limit=1_000, every_s=5.0)

    found = pace_of(told, limit=1_000)
    assert found.rows_wait is False and not found.is_busy
    assert found.idle_share == pytest.approx(0.85, abs=0.05)


@pytest.mark.parametrize(("told_rows", "waits"), [(1_000, True), (1_050, True), (5_000, False)])
def test_epochs_that_meet_what_sources_were_told(told_rows, waits):
    even = epochs(limit=1_000, noise=0.0)

    assert pace_of(even, limit=told_rows).rows_wait is waits


def test_what_the_source_says_counts_more_than_what_epochs_look_like():
    waits = TriggerFacts(last_rows_wait=True)
    behind = [replace(e, trigger=waits) for e in epochs(limit=None)]
    waits_not = TriggerFacts(last_rows_wait=False)
    abreast = [replace(e, trigger=waits_not) for e in epochs(limit=1_000)]

    assert pace_of(behind).rows_wait is True
    assert pace_of(abreast, limit=1_000).rows_wait is False


@pytest.mark.parametrize(("left", "waits"), [([9, 8, 7, 6], True), ([1, 0, 0, 0], None)])
def test_files_that_were_listed_and_left_wait_and_none_left_says_nothing(left, waits):
    """A listing that has come to its end may hide files that came since."""
    steady = epochs(limit=None, noise=0.0)[: len(left)]
    told = [
        replace(e, trigger=TriggerFacts(files_waiting=files))
        for e, files in zip(steady, left, strict=True)
    ]

    assert pace_of(told).rows_wait is waits


def test_all_rows_of_a_run_over_what_is_there_wait():
    assert pace_of(epochs(limit=None, every_s=5.0), all_there=True).rows_wait is True


def test_what_lies_between_jobs_is_what_spark_says_or_the_shorter_gaps():
    waiting = epochs(limit=1_000, every_s=5.0)
    silent = [replace(e, trigger=TriggerFacts()) for e in waiting]

    assert overhead_s(waiting) == pytest.approx(BESIDE_S)
    assert overhead_s(silent) == 1.0  # at most
    assert overhead_s(epochs(limit=1_000, tells=False)) == pytest.approx(BESIDE_S)


def late(epoch: int, p95_ms: float, since: str, commit_ms: float | None = 400.0) -> EpochFacts:
    latency = LatencyFacts(p95_ms, p95_ms, p95_ms, p95_ms, since, 10, commit_ms=commit_ms)
    return EpochFacts(epoch, rows=10, now_ms=1_000 * epoch, latency=latency)


def test_latency_is_what_sources_say_or_the_wait_for_an_epoch_and_the_epoch():
    assert measured_p95_s([late(n, 900.0, "arrival") for n in range(4)]) == pytest.approx(0.9)
    assert measured_p95_s([late(n, 400.0, "trigger") for n in range(4)]) == pytest.approx(1.35)


def test_without_a_latency_there_is_none():
    assert measured_p95_s([]) is None
    assert measured_p95_s([EpochFacts(n, rows=1) for n in range(3)]) is None
    assert measured_p95_s([late(n, 900.0, "arrival", commit_ms=None) for n in range(3)]) is None
