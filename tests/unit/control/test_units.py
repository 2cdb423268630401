"""A manager of units on whole flows, without a JVM: loads even out, slots go, nothing is lost."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest

import headgate as hg
from headgate.control.loop import DecisionLoop
from headgate.control.units import UnitPlacement
from headgate.errors import DeclarationError
from headgate.testing import ListSource, LocalRun, run

pytestmark = pytest.mark.usefixtures("row_time")

BUCKETS, SLOTS, EPOCHS = 64, 3, 10
ROWS = [
    [{"a": int(a), "b": int(a * 7 % 50)} for a in np.random.default_rng(epoch).integers(0, 90, 300)]
    for epoch in range(EPOCHS)
]


@dataclass
class Ticking:
    """A clock that moves by itself whenever it is read."""

    step_ms: int
    now_ms: int = 0

    def __call__(self) -> int:
        self.now_ms += self.step_ms
        return self.now_ms


def managed(
    step_ms: int,
    planner: str = "milp",
    scaling: hg.Scaling | None = None,
    **settings: object,
) -> LocalRun:
    """All buckets start on slot 0."""
    flow = hg.Flow("units")
    rows = flow.source(ListSource("a bigint, b bigint", ROWS))
    first = rows.key_by("a").process(hg.Count(emit="rows"), name="first")
    first.key_by("b").process(hg.Count(), name="second").to_memory("out")
    heap = hg.hash_table(SLOTS, BUCKETS).with_buckets(np.zeros(BUCKETS, np.int32))
    given = {"every": 2, "migration_seconds_max": 60.0, **settings}
    manager = hg.Manager(planner, **given)  # type: ignore[arg-type]
    units = UnitPlacement(("first", "second"), manager, scaling=scaling)
    return run(
        flow,
        slots=SLOTS,
        buckets=BUCKETS,
        tables={"first": heap, "second": heap},
        manager=DecisionLoop(placing=units),
        clock=Ticking(step_ms),
        check_purity=False,
    )


def check_fold(done: LocalRun) -> None:
    for operator, key in (("first", "a"), ("second", "b")):
        fold = Counter(row[key] for epoch in ROWS for row in epoch)
        assert {r[key]: r["count"] for r in done.state(operator)} == fold


def test_units_on_one_slot_are_shared_out_and_the_journal_says_why() -> None:
    done = managed(1000)

    check_fold(done)
    first, last = done.records[0], done.records[-1]
    assert first["loads"]["first"][1:] == [0, 0]
    assert max(last["loads"]["first"]) + max(last["loads"]["second"]) < 1.5 * 600 / SLOTS
    plans = [r for r in done.journal if r["kind"] == "plan"]
    assert plans[0]["planner"] == "milp" and plans[0]["resource"] == "time"
    assert sum(plans[0]["moves"].values()) > 0
    assert all("evens loads" in line for line in plans[0]["top_moves"][:8])
    assert plans[0]["top_moves"][8].startswith("and ")
    assert plans[0]["gap_pct"] == pytest.approx(
        max(0, plans[0]["predicted_distance_pct"] - plans[0]["bound_pct"]), abs=0.011
    )
    assert plans[0]["migration_s_per_mb"] == pytest.approx(0.02), "50 MB/s, until state has moved"
    assert [r for r in done.journal if r["kind"] == "outcome"]


def test_an_idle_flow_gives_its_slots_back() -> None:
    scaling = hg.Scaling(min_slots=1, max_slots=4, hold_periods=1)
    done = managed(3_600_000, every=1, scaling=scaling)

    check_fold(done)
    assert done.records[-1]["slots"] == 1
    told = [(r["before"], r["slots"], r["why"]) for r in done.journal if r["kind"] == "scale"]
    assert told == [(3, 1, "slots 1, 2 are released: drained, nothing lives there")]
    scaled = next(r["epoch"] for r in done.journal if r["kind"] == "scale")
    assert sum(done.records[scaled]["moved_rows"].values()) == 0, "a drained slot has nothing"


def test_a_budget_of_nothing_is_refused() -> None:
    with pytest.raises(DeclarationError, match="migration_seconds_max"):
        hg.Manager("milp", migration_seconds_max=0)


def test_every_operator_is_evened_if_asked_for() -> None:
    done = managed(1000, "headgate", balance="operator", alpha=1.2)

    check_fold(done)
    for operator in ("first", "second"):
        loads = done.records[-1]["loads"][operator]
        assert max(loads) < 1.5 * sum(loads) / SLOTS, operator
    told = [line for r in done.journal if r["kind"] == "plan" for line in r["top_moves"]]
    assert any("evens loads of first" in line for line in told)
    with pytest.raises(DeclarationError, match='planner="headgate"'):
        hg.Manager("milp", balance="operator")
    with pytest.raises(DeclarationError, match="balance"):
        hg.Manager("headgate", balance="all")  # type: ignore[arg-type]


def hot(planner: str) -> LocalRun:
    """Half of all rows have key 0 of an operator whose keys may be cut: two slots' worth."""
    flow = hg.Flow("hot")
    rows = flow.source(ListSource("k bigint", HOT_ROWS))
    rows.key_by("k", grouping="cut").process(hg.Count(), name="second").to_memory("out")
    return run(
        flow,
        slots=4,
        buckets=BUCKETS,
        manager=hg.Manager(planner, every=2, migration_seconds_max=60.0),
        clock=Ticking(1000),
        check_purity=False,
    )


def _hot_rows(epoch: int) -> list[dict[str, int]]:
    draw = np.random.default_rng([5, epoch])
    keys = np.where(draw.random(1000) < 0.5, 0, draw.integers(1, 300, 1000))
    return [{"k": int(k)} for k in keys]


HOT_ROWS = [_hot_rows(epoch) for epoch in range(EPOCHS)]


def test_a_hot_key_is_cut_whoever_places_units() -> None:
    done = hot("milp")

    fold = Counter(row["k"] for epoch in HOT_ROWS for row in epoch)
    assert {r["k"]: r["count"] for r in done.state("second")} == fold
    told = [r for r in done.journal if r["kind"] == "plan" and "hot_keys" in r]
    assert told and done.records[-1]["spread_keys"] == {"second": 1}
