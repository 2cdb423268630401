"""The commit path: one winner per epoch, no operator twice, sinks until marked, retries bounded."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.unit.commit.parts import Calls, coordinator, program, quiet

from headgate import Count, Flow
from headgate.commit import faults
from headgate.commit.coordinator import ATTEMPTS_MAX, EngineAborted, EpochResult
from headgate.commit.facts import TuningFacts
from headgate.commit.journal import Journal
from headgate.commit.planning import Decision, Planning
from headgate.commit.publishing import publish, staging_uri
from headgate.commit.settings import Settings
from headgate.errors import (
    CustodyMismatch,
    EngineError,
    HeadgateError,
    OperatorFailed,
    Overtaken,
    SinkFailed,
    UnknownSlot,
)
from headgate.routing.table import hash_table, moves_between
from headgate.slot.compile import compile_flow
from headgate.slot.failure import to_record
from headgate.slot.plan import Control, EpochPlan
from headgate.state.storage import Storage
from headgate.testing import ListSource, ManualClock


def never(plan: EpochPlan) -> EpochResult:
    raise AssertionError("no operator may run")


def with_file(plan: EpochPlan) -> EpochResult:
    return quiet(plan, sinks={"out": [{"name": f"file-{plan.epoch}", "rows": 1, "bytes": 1}]})


class Failing:
    """An engine that fails so often before it works."""

    def __init__(self, times: int, failure: Callable[[EpochPlan], EpochResult]) -> None:
        self.times, self.failure, self.attempts = times, failure, 0

    def __call__(self, plan: EpochPlan) -> EpochResult:
        assert plan.attempt == self.attempts
        self.attempts += 1
        return self.failure(plan) if self.attempts <= self.times else quiet(plan)


def aborts(plan: EpochPlan) -> EpochResult:
    raise EngineAborted("an executor died")


def loses_rows(plan: EpochPlan) -> EpochResult:
    return quiet(plan, sent={"0:0>0": [1, 1, 1]})


# --- one winner -------------------------------------------------------------------------------


def test_a_driver_that_was_overtaken_runs_nothing_and_says_who_took_over(tmp_path: Path) -> None:
    calls = Calls()
    old = coordinator(tmp_path, deliver=calls)
    new = coordinator(tmp_path)

    with pytest.raises(
        Overtaken, match=f"process {os.getpid()} of .* on .*, started 1970"
    ) as caught:
        old.run_epoch(0, "q", never)

    assert (caught.value.generation, caught.value.newest) == (1, 2)
    assert calls.made == []
    new.run_epoch(0, "q", quiet)


@pytest.mark.parametrize("committed_first", [False, True])
def test_a_driver_overtaken_in_mid_epoch_delivers_nothing_and_its_manifest_gives_way(
    tmp_path: Path, committed_first: bool
) -> None:
    calls = Calls()
    slow = coordinator(tmp_path, deliver=calls)
    fast = []

    def overtaken(plan: EpochPlan) -> EpochResult:
        fast.append(coordinator(tmp_path, slots=3))
        if committed_first:
            fast[0].run_epoch(0, "q", quiet)
        return quiet(plan)

    with pytest.raises(Overtaken):
        slow.run_epoch(0, "q", overtaken)

    assert calls.made == []
    if not committed_first:
        fast[0].run_epoch(0, "q", quiet)
    manifest = fast[0].checkpoint.last_manifest()
    assert manifest is not None and (manifest.generation, manifest.slots) == (2, 3)


def test_what_a_driver_committed_before_it_was_overtaken_is_gone_on_from(tmp_path: Path) -> None:
    """Created before the newcomer looked: it counts, and the newcomer calls the sinks."""
    lost, calls = Calls(), Calls()
    slow = coordinator(tmp_path, deliver=lost)

    def reach(point: str, epoch: int) -> None:
        if point == "manifest-written" and not newcomers:
            newcomers.append(coordinator(tmp_path, deliver=calls))

    newcomers: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headgate.commit.faults.reach", reach)
        with pytest.raises(Overtaken):
            slow.run_epoch(0, "q", with_file)

    newcomers[0].run_epoch(0, "q", never)

    assert lost.made == [] and calls.made == [("out", 0, ["file-0"])]


def test_a_start_that_is_refused_overtakes_nobody(tmp_path: Path) -> None:
    running = coordinator(tmp_path)
    with pytest.raises(HeadgateError):
        coordinator(tmp_path, of=program("another flow"))

    running.run_epoch(0, "q", quiet)


def test_an_old_manifest_that_a_paused_driver_made_once_more_is_swept(
    tmp_path: Path,
) -> None:
    slow = coordinator(tmp_path)

    def overtaken(plan: EpochPlan) -> EpochResult:
        fast = coordinator(tmp_path, keep_manifests=2)
        for epoch in range(6):
            fast.run_epoch(epoch, "q", quiet)
        return quiet(plan)

    with pytest.raises(Overtaken):
        slow.run_epoch(0, "q", overtaken)
    assert slow.checkpoint.epochs() == [0, 4, 5]

    again = coordinator(tmp_path, keep_manifests=2)
    again.run_epoch(5, "q", never)
    again.run_epoch(6, "q", quiet)

    assert again.checkpoint.epochs() == [5, 6]


# --- replay -----------------------------------------------------------------------------------


def test_a_replayed_epoch_runs_no_operator_and_calls_only_unmarked_sinks(tmp_path: Path) -> None:
    of, calls = program(sinks=("one", "two", "three")), Calls()
    calls.fail = "two"
    first = coordinator(tmp_path, of=of, deliver=calls)
    files = {"two": [{"name": "a file", "rows": 1, "bytes": 1}]}
    with pytest.raises(SinkFailed, match="same rows") as caught:
        first.run_epoch(0, "q", lambda plan: quiet(plan, sinks=files))
    assert (caught.value.sink, caught.value.epoch) == ("two", 0)
    assert caught.value.reason == "RuntimeError: two is down"
    assert [name for name, _, _ in calls.made] == ["one", "two"]

    again = Calls()
    second = coordinator(tmp_path, of=of, deliver=again)
    second.run_epoch(0, "q", never)

    assert again.made == [("two", 0, ["a file"]), ("three", 0, [])]
    once_more = Calls()
    coordinator(tmp_path, of=of, deliver=once_more).run_epoch(0, "q", never)
    assert once_more.made == []


def test_sinks_get_the_files_of_their_epoch_after_it_is_committed(tmp_path: Path) -> None:
    calls = Calls()
    at = coordinator(tmp_path, deliver=calls)

    def deliver(sink: Any, epoch: int, files: Any) -> None:
        assert at.checkpoint.manifest(epoch) is not None
        assert not at.checkpoint.is_marked(epoch, "out")
        calls(sink, epoch, files)

    at._deliver = deliver
    at.run_epoch(0, "q", with_file)
    at.run_epoch(1, "q", with_file)

    assert calls.made == [("out", 0, ["file-0"]), ("out", 1, ["file-1"])]


def test_a_restarted_driver_writes_the_journal_line_that_the_dead_one_did_not(
    tmp_path: Path,
) -> None:
    calls = Calls()
    calls.fail = "out"
    dying = coordinator(tmp_path, deliver=calls)
    with pytest.raises(SinkFailed):
        dying.run_epoch(0, "q", quiet)
    assert dying.journal.read() == []

    born = coordinator(tmp_path)
    born.run_epoch(0, "q", never)
    born.run_epoch(1, "q", quiet)

    assert [r["epoch"] for r in Journal(born.checkpoint.journal).read()] == [0, 1]


# --- retries ----------------------------------------------------------------------------------


@pytest.mark.parametrize("failure", [aborts, loses_rows])
def test_an_epoch_that_fails_for_no_fault_of_the_user_is_run_again(
    tmp_path: Path, failure: Callable[[EpochPlan], EpochResult]
) -> None:
    engine = Failing(ATTEMPTS_MAX - 1, failure)
    at = coordinator(tmp_path)

    facts = at.run_epoch(0, "q", engine)

    assert (engine.attempts, facts.attempts) == (ATTEMPTS_MAX, ATTEMPTS_MAX)
    retries = [r for r in at.journal.read() if r["kind"] == "retry"]
    assert [r["attempt"] for r in retries] == list(range(ATTEMPTS_MAX - 1))


@pytest.mark.parametrize(
    ("failure", "error"), [(aborts, EngineError), (loses_rows, CustodyMismatch)]
)
def test_retries_end_and_nothing_is_committed(
    tmp_path: Path, failure: Callable[[EpochPlan], EpochResult], error: type[Exception]
) -> None:
    engine, calls = Failing(99, failure), Calls()
    at = coordinator(tmp_path, deliver=calls)

    with pytest.raises(error):
        at.run_epoch(0, "q", engine)

    assert engine.attempts == ATTEMPTS_MAX
    assert at.checkpoint.last_epoch() is None
    assert calls.made == []
    at.run_epoch(0, "q", quiet)  # and the same driver may try again


def test_an_error_of_user_code_is_never_retried(tmp_path: Path) -> None:
    def broken(plan: EpochPlan) -> EpochResult:
        error = to_record(OperatorFailed("broken", operator="parse"))
        return EpochResult([Control(error=error)])

    engine = Failing(99, broken)
    at = coordinator(tmp_path)

    with pytest.raises(OperatorFailed):
        at.run_epoch(0, "q", engine)

    assert engine.attempts == 1
    assert at.checkpoint.last_epoch() is None


def test_a_slot_that_did_not_answer_is_an_error_of_the_engine(tmp_path: Path) -> None:
    with pytest.raises(EngineError):
        coordinator(tmp_path).run_epoch(0, "q", lambda plan: EpochResult([Control(tasks=[[1, 0]])]))


# --- ticks ------------------------------------------------------------------------------------


@pytest.mark.parametrize("at_start", [True, False])
def test_sinks_that_a_tick_did_not_reach_are_called_before_the_next_epoch(
    tmp_path: Path, at_start: bool
) -> None:
    """Nobody tells a driver of a tick again, as Spark does of a batch."""
    of, calls = program(sinks=("one", "two")), Calls()
    at = coordinator(tmp_path, of=of, deliver=calls)
    at.run_epoch(0, "q", quiet)
    calls.fail = "two"
    with pytest.raises(SinkFailed):
        at.tick(quiet, silent=True)

    again = Calls()
    born = coordinator(tmp_path, of=of, deliver=again)
    if at_start:
        born.settle()
    born.run_epoch(1, "q", quiet)

    assert again.made == [("two", 1, []), ("one", 2, []), ("two", 2, [])]
    told = [r.get("tick", False) for r in Journal(born.checkpoint.journal).read()]
    assert told == [False, True, False]


@pytest.mark.parametrize("silent", [True, False])
def test_a_tick_counts_as_silence_only_if_it_is_told_to(tmp_path: Path, silent: bool) -> None:
    at = coordinator(tmp_path)
    at.run_epoch(0, "q", lambda plan: quiet(plan, source_rows={"in": 3}))

    at.tick(quiet, silent=silent)

    assert at.last is not None
    assert at.last.sources["in"].silent_epochs == int(silent)
    assert (at.last.epoch, at.last.batch, at.last.ticks) == (1, 0, 1)


# --- the plan ---------------------------------------------------------------------------------


def test_a_restarted_driver_plans_what_the_dead_one_would_have_planned(tmp_path: Path) -> None:
    clock = ManualClock(5)
    at = coordinator(tmp_path, clock=clock)
    at.run_epoch(0, "q", quiet)
    clock.advance(10)

    mine, its = at.plan(1), coordinator(tmp_path, clock=clock).plan(1)

    assert replace(mine, routes={}) == replace(its, routes={})
    assert all(mine.routes[op].table.same_routes(its.routes[op].table) for op in mine.routes)


def test_time_never_goes_back_in_the_plan(tmp_path: Path) -> None:
    clock = ManualClock(100)
    at = coordinator(tmp_path, clock=clock)
    at.run_epoch(0, "q", quiet)
    clock.now_ms = 40

    assert at.plan(1).clock.now_ms == 100


def test_the_watermark_of_an_epoch_follows_from_the_manifest_before(tmp_path: Path) -> None:
    flow = Flow("f")
    rows = flow.source(ListSource("k bigint, t timestamp", []), event_time="t", name="in")
    rows.key_by("k").process(Count(), name="count")
    at = coordinator(tmp_path, of=compile_flow(flow.graph()))
    assert at.plan(0).clock.watermark_us is None

    for epoch, time in enumerate((50, 30, 70)):
        facts = {"event_time": {"in": time}, "source_rows": {"in": 1}}
        at.run_epoch(epoch, "q", lambda plan, facts=facts: quiet(plan, **facts))

    clock = at.plan(3).clock
    assert (clock.watermark_us, clock.previous_watermark_us) == (70, 50)


# --- tables -----------------------------------------------------------------------------------


def test_without_a_table_a_flow_starts_with_hash_grouping_and_keeps_what_it_has(
    tmp_path: Path,
) -> None:
    at = coordinator(tmp_path)
    assert at.tables["count"].same_routes(hash_table(2))
    given = hash_table(2).with_buckets(np.ones(1024, np.int32))
    told = coordinator(tmp_path / "other", tables={"count": given})
    told.run_epoch(0, "q", quiet)

    assert coordinator(tmp_path / "other").tables["count"].same_routes(given)


def test_a_change_of_slots_is_planned_as_a_move_and_only_until_it_is_committed(
    tmp_path: Path,
) -> None:
    coordinator(tmp_path).run_epoch(0, "q", quiet)
    at = coordinator(tmp_path, slots=3)
    plans: list[EpochPlan] = []

    at.run_epoch(1, "q", lambda plan: plans.append(plan) or quiet(plan))
    at.run_epoch(2, "q", lambda plan: plans.append(plan) or quiet(plan))

    grown = hash_table(2).resized(3)
    assert plans[0].routes["count"].table.same_routes(grown)
    assert len(plans[0].moves["count"].buckets) == len(moves_between(hash_table(2), grown).buckets)
    assert plans[1].moves == {}


def test_slots_change_between_two_epochs_of_one_run(tmp_path: Path) -> None:
    """2 -> 4 -> 2: each change is one line in the journal and moves what must move, once."""
    at = coordinator(tmp_path)
    plans: list[EpochPlan] = []

    for epoch, wanted in enumerate([None, 4, None, 2, 2]):
        if wanted is not None:
            at.resize(wanted, "a test")
        at.run_epoch(epoch, "q", lambda plan: plans.append(plan) or quiet(plan))

    assert [plan.slots for plan in plans] == [2, 4, 4, 2, 2]
    moved = [len(plan.moves["count"].buckets) if plan.moves else 0 for plan in plans]
    assert moved == [0, 512, 0, 512, 0]
    assert plans[3].moves["count"].old_slots == 4  # tasks drop the warm copies of slots 2 and 3
    told = [r for r in at.journal.read() if r["kind"] == "scale"]
    assert [(r["epoch"], r["before"], r["slots"], r["why"]) for r in told] == [
        (1, 2, 4, "a test"),
        (3, 4, 2, "a test"),
    ]


def test_instances_come_with_the_slots_they_are_for(tmp_path: Path) -> None:
    at = coordinator(tmp_path)
    at.run_epoch(0, "q", quiet)
    at.resize(4, "a test", {"count": (1, 3)})
    plans: list[EpochPlan] = []

    at.run_epoch(1, "q", lambda plan: plans.append(plan) or quiet(plan))

    assert (plans[0].slots, plans[0].slots_of("count")) == (4, (1, 3))
    table = plans[0].routes["count"].table
    assert {*table.bucket_slots.tolist()} == {1, 3}
    assert plans[0].moves["count"].old_slots == 2
    assert at.last is not None and at.last.instances == {"count": (1, 3)}


def test_batches_are_as_chosen_where_the_user_says_nothing(tmp_path: Path) -> None:
    edge = "in->count"
    chosen = {"chosen_batch_rows": {edge: 500}}

    def rows(**options: Any) -> list[int]:
        return [*coordinator(tmp_path, **options).batching.rows.values()]

    assert rows() == [] and rows(**chosen) == [500]
    assert rows(**chosen, batch_rows={edge: 9}) == [9] == rows(**chosen, batch_rows=9)


def test_a_decision_about_batches_holds_from_the_next_epoch_on(tmp_path: Path) -> None:
    decided = Decision(tuning=TuningFacts(0, batch_rows={"in->count": 70}))
    loop = SimpleNamespace(
        statistics_bytes=0, born_local=frozenset(), step=lambda observed, tables: decided
    )
    at = coordinator(tmp_path, planning=Planning(loop, beside=False))
    plans: list[EpochPlan] = []

    for epoch in range(2):
        at.run_epoch(epoch, "q", lambda plan: plans.append(plan) or quiet(plan))

    assert [[*plan.batching.rows.values()] for plan in plans] == [[], [70]]
    [told] = [r for r in at.journal.read() if r["kind"] == "tuning"]
    assert told["batch_rows"] == {"in->count": 70}


def test_of_two_sizes_asked_for_the_last_counts(tmp_path: Path) -> None:
    at = coordinator(tmp_path)
    at.resize(5)
    at.resize(3)

    assert at.run_epoch(0, "q", quiet).slots == 3
    with pytest.raises(EngineError):
        at.resize(0)


def test_a_change_of_slots_that_a_crash_undid_starts_from_the_last_manifest(tmp_path: Path) -> None:
    at = coordinator(tmp_path)
    at.run_epoch(0, "q", quiet)
    at.resize(4)

    with pytest.raises(HeadgateError):
        at.run_epoch(1, "q", aborts)  # four times
    plans: list[EpochPlan] = []
    again = coordinator(tmp_path, slots=3)
    again.run_epoch(1, "q", lambda plan: plans.append(plan) or quiet(plan))

    assert plans[0].routes["count"].table.same_routes(hash_table(2).resized(3))


@pytest.mark.parametrize(
    "tables",
    [
        {"nobody": hash_table(2)},
        {"out": hash_table(2)},
        {"count": hash_table(3)},
        {"count": hash_table(2, buckets=64)},
    ],
)
def test_a_table_that_does_not_fit_is_refused(tmp_path: Path, tables: dict[str, Any]) -> None:
    with pytest.raises(UnknownSlot):
        coordinator(tmp_path, tables=tables)


@pytest.mark.parametrize(
    "settings", [{"slots": 0}, {"slots": 1, "buckets": 100}, {"slots": 1, "buckets": 1 << 17}]
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(EngineError):
        Settings(**settings)


# --- crash points -----------------------------------------------------------------------------


def test_every_named_crash_point_is_on_the_commit_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed: list[str] = []
    monkeypatch.setattr(faults, "reach", lambda point, _: passed.append(point))
    staging = staging_uri(str(tmp_path / "published"), "f", "out")
    name = "e000000000-a.parquet"
    Storage.at(staging).write(name, b"rows")

    def deliver(sink: Any, epoch: int, files: Any) -> None:
        publish("f", sink.name, epoch, files, staging)

    files = {"out": [{"name": name, "rows": 1, "bytes": 1}]}
    at = coordinator(tmp_path, deliver=deliver)
    at.run_epoch(0, "q", lambda plan: quiet(plan, sinks=files))

    assert passed == list(faults.CRASH_POINTS)


def test_a_crash_point_kills_only_where_and_when_it_is_told_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr("headgate.commit.faults.signal.pthread_kill", lambda *a: killed.append(a))
    monkeypatch.setenv(faults.VARIABLE, "planned@3")

    faults.reach("planned", 2)
    faults.reach("tasks-done", 3)
    assert killed == []
    faults.reach("planned", 3)
    assert len(killed) == 1
