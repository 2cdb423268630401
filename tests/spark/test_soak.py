"""A flow that runs on and on holds no more than it did: no byte, descriptor or file per epoch.

Short here; `make soak` runs thousands of epochs of the same (HEADGATE_SOAK_EPOCHS), prints what it
read, and bounds growth per epoch as much tighter as it has more epochs.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark.session import LOCAL, session_on
from tests.spark.soak import ALLOWED, SOAK_CONF, Held, Watch, allowed, check, declared, growth
from tests.waiting import wait_until

import headgate as hg
from headgate.planner.allocation.integrated import compile_allocation_kernels
from headgate.planner.incremental_placing import compile_kernels

EPOCHS = int(os.environ.get("HEADGATE_SOAK_EPOCHS", "60"))
SHORTEST = 60
READINGS = 30 if EPOCHS == SHORTEST else 120


@pytest.fixture(scope="module")
def spark() -> SparkSession:
    return session_on(LOCAL, SOAK_CONF)


@pytest.mark.parametrize(("planner", "share"), [("headgate", 1), ("milp", 4)])
def test_nothing_grows_with_the_epochs(
    spark: SparkSession, tmp_path: Path, planner: str, share: int
) -> None:
    epochs = EPOCHS // share
    if epochs < SHORTEST:
        pytest.skip("only in make soak")
    compile_kernels()  # else a driver without compiled ones grows when it first plans
    compile_allocation_kernels()
    watch = Watch(spark, tmp_path / "checkpoint", every=-(-epochs // READINGS), rescale=10)
    query = declared(spark, watch.after_epoch).start(
        spark,
        slots=2,
        checkpoint=str(tmp_path / "checkpoint"),
        options=hg.Options(tick=False, keep_journal=100, clock_ms=lambda: watch.now_ms),
        manager=hg.Manager(planner, every=3, tuning=hg.PlannerSettings(pins_max=500)),
    )
    watch.query = query
    try:
        while query.isActive and (epoch := watch.epoch) < epochs:
            wait_until(lambda: watch.epoch > epoch or not query.isActive, f"epoch {epoch + 1}")
        assert query.exception() is None
    finally:
        query.stop()

    check(query)
    happened = {record["kind"] for record in query.journal()}
    assert {"scale", "plan", "outcome"} <= happened
    settled = [held for held in watch.seen if held.epoch >= epochs // 3]
    print(f"\n{planner}, {epochs} epochs:", *told(settled), sep="\n")
    for what in ALLOWED:
        assert growth(settled, what) <= allowed(settled, what), "\n".join(told(settled))


def told(seen: list[Held]) -> list[str]:
    lines = [f"{'':18}{'first':>12}{'last':>12}{'per epoch':>12}{'allowed':>12}"]
    for what in ALLOWED:
        ends = f"{getattr(seen[0], what):>12,}{getattr(seen[-1], what):>12,}"
        lines.append(f"{what:18}{ends}{growth(seen, what):>12,.2f}{allowed(seen, what):>12,.2f}")
    return lines
