"""The edits and the airline job as flows: units that move change no result."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from headgate.commit.facts import EngineFacts, EpochFacts, OutcomeFacts, PlanFacts
from headgate.demo import write_epochs
from headgate.errors import EngineError
from headgate.routing.hashing import bucket_of, hash_columns
from headgate.routing.table import hash_table
from headgate.testing import run
from headgate_lab.bench.placed_runs import Budget, distance_of_slots, lines_of
from headgate_lab.papers import airline_flow, airline_job, edits_flow, edits_job

GROUPS, SLOTS, K = 8, 3, 2
BUDGET = Budget(units_max=4, distance_max_pct=1.0, seconds=0.1)


def state_of(result, operator):
    return {tuple(row.values())[:-1]: [*row.values()][-1] for row in result.state(operator)}


def test_the_edits_job_is_a_plain_fold_while_units_move(tmp_path: Path):
    day = edits_job.generated_day(900, seed=1)
    how = edits_flow.Played(speed=480.0, period_minutes=1, periods=4, groups=GROUPS)
    periods = edits_flow.played_periods(day, how)
    write_epochs(periods, tmp_path / "in")
    table = hash_table(SLOTS, GROUPS)

    result = run(
        edits_flow.edits_flow(tmp_path / "in", GROUPS, K, tmp_path / "out"),
        slots=SLOTS,
        checkpoint=tmp_path / "c",
        tables=dict.fromkeys(edits_flow.OPERATORS, table),
        buckets=GROUPS,
        manager=BUDGET.manager("milp", edits_flow.OPERATORS, 1),
        ticks=3,
    )

    editors, ranked = edits_flow.fold(periods, GROUPS, K)
    assert state_of(result, "geohash") == {(editor,): n for editor, n in editors.items()}
    found = [row for _, row in result.outputs["top"]]
    minute = [int(row["window_start"].timestamp() // 60) for row in found]
    rest = [(row["cell"], row["title"], row["rank"], row["edits"]) for row in found]
    assert {(at, *row) for at, row in zip(minute, rest, strict=True)} == ranked
    assert len(found) == len(ranked)
    assert sum(sum(r["moved_rows"].values()) for r in result.records) > 0


def test_the_airline_job_is_a_plain_fold_while_units_move(tmp_path: Path):
    days = airline_flow.days_of(airline_job.generated_flights(3, per_day=400), 4)
    write_epochs(days, tmp_path / "in")
    rng = np.random.default_rng(0)
    tables = {
        op: hash_table(SLOTS, GROUPS).with_owners(rng.permutation(GROUPS) % SLOTS)
        for op in airline_job.OPERATORS
    }

    result = run(
        airline_flow.airline_flow(tmp_path / "in"),
        slots=SLOTS,
        checkpoint=tmp_path / "c",
        tables=tables,
        buckets=GROUPS,
        manager=BUDGET.manager("headgate", airline_job.OPERATORS, 1),
    )

    for operator, sums in airline_flow.fold(days).items():
        assert state_of(result, operator) == dict(sums), operator
    assert sum(sum(r["moved_rows"].values()) for r in result.records) > 0


def test_a_day_is_played_again_when_it_is_over():
    day = edits_job.generated_day(500, seed=2)
    minutes = 86_400 // 480 // 60
    how = edits_flow.Played(480.0, minutes, periods=2, groups=GROUPS)
    first, again, end = edits_flow.played_periods(day, how)
    assert again.column("article").equals(first.column("article"))
    ts = [period.column("ts").cast(pa.int64()).to_numpy() for period in (first, again, end)]
    assert (ts[1] - ts[0] == minutes * 60_000_000).all()
    assert ts[2][0] > ts[1].max() + 60_000_000
    assert len(first) == len(day)


def test_every_key_group_has_one_key():
    keys = pa.array(edits_flow.cells(64))
    assert bucket_of(hash_columns([keys], 64), 64).tolist() == list(range(64))


def test_a_geohash_is_one_per_editor_and_spreads_over_the_world():
    codes = edits_flow.geohash(pa.array([*range(4_000), 7])).to_pylist()
    assert codes[-1] == codes[7]
    assert {len(code) for code in codes} == {6}
    assert {*"".join(codes)} == {*"0123456789bcdefghjkmnpqrstuvwxyz"}
    first = Counter(code[0] for code in codes)
    assert max(first.values()) < 2 * 4_000 / 32


def epoch(number: int, rows: int, by_slot=(3, 1)) -> EpochFacts:
    return EpochFacts(
        number,
        slots=2,
        rows=rows,
        loads={"a": by_slot},
        operator_ms={"a": (2.0, 2.0)},
        engine=EngineFacts(task_ms={1: 8.0}),
    )


def test_a_plan_belongs_to_the_period_it_was_made_of():
    plan = PlanFacts(epoch=3, moves={"a": 2}, predicted_distance_pct=0.5, seconds=0.1)
    outcome = OutcomeFacts(error=0.0, epoch=3, achieved_distance_pct=9.0)
    facts = [epoch(0, 4), epoch(1, 0), epoch(2, 4), outcome, plan, epoch(3, 4), epoch(4, 0)]

    first, second, third = lines_of([said.to_json() for said in facts])

    assert (first["moves"], first["planned"]) == (0.0, None)
    assert (second["moves"], second["planned"], second["measured"]) == (2.0, 0.5, 9.0)
    assert third["moves"] == 0.0
    assert [line["task_ms"] for line in (first, second)] == [4_000.0, 2_000.0]


def test_distances_are_by_rows_or_by_the_clock():
    assert distance_of_slots([epoch(0, 4)], timed=False) == pytest.approx(50.0)
    assert distance_of_slots([epoch(0, 4)], timed=True) == 0.0


def test_a_plan_that_failed_is_not_passed_over():
    facts = [epoch(0, 4), PlanFacts(epoch=1, failed="no solver"), epoch(1, 4)]
    with pytest.raises(EngineError, match="no solver"):
        lines_of([said.to_json() for said in facts])
