"""The commit protocol on an object store: what holds on a disk holds on S3."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
from tests.scenario.fault_engine import Faults, Killed
from tests.scenario.oracle import CASES, Case, chain, chained_windows
from tests.scenario.test_seeded_faults import POINTS, Driver

from headgate import Count, Flow, Sum
from headgate.errors import Overtaken
from headgate.testing import ListSource, run
from object_store import LocalS3

EPOCHS = [[{"k": (7 * e + i) % 5, "v": i} for i in range(6)] for e in range(6)]


def totals(epochs: list[list[dict[str, int]]]) -> Flow:
    flow = Flow("totals")
    rows = flow.source(ListSource("k bigint, v bigint", epochs))
    rows.key_by("k").process(Sum("v"), name="sums").to_memory("out")
    rows.key_by("v").process(Count(), name="counts").to_memory("counted")
    return flow


def test_a_flow_is_restarted_and_rescaled_on_s3_as_on_a_disk(s3: LocalS3, tmp_path: Path) -> None:
    place = s3.folder()
    for slots, upto in ((2, 2), (3, 4), (1, 6)):
        on_s3 = run(totals(EPOCHS[:upto]), slots=slots, checkpoint=place)
        on_disk = run(totals(EPOCHS[:upto]), slots=slots, checkpoint=tmp_path / "disk")
        for operator in ("sums", "counts"):
            assert on_s3.state(operator) == on_disk.state(operator)
        for sink in ("out", "counted"):
            assert on_s3.rows(sink) == on_disk.rows(sink)
    truth = {k: sum(r["v"] for e in EPOCHS for r in e if r["k"] == k) for k in range(5)}
    assert {r["k"]: r["sum"] for r in on_s3.state("sums")} == truth
    assert [r["epoch"] for r in on_s3.journal if r["kind"] == "epoch"] == list(range(6))


@pytest.mark.parametrize("round_", range(3))
def test_of_two_drivers_on_one_checkpoint_one_goes_on_and_every_epoch_is_delivered(
    s3: LocalS3, round_: int
) -> None:
    """They start at once, and claim, commit and deliver as fast as they can."""
    place, together = s3.folder(), Barrier(2)
    called: list[tuple[int, int, list[tuple[int, int]]]] = []

    def drive(me: int) -> str:
        flow = Flow("totals")
        rows = flow.source(ListSource("k bigint, v bigint", EPOCHS))
        sums = rows.key_by("k").process(Sum("v"), name="sums")

        def sink(got: list[dict[str, int]], epoch: int) -> None:
            called.append((epoch, me, sorted((row["k"], row["sum"]) for row in got)))

        sums.to(sink, name="out")
        together.wait()
        try:
            run(flow, slots=1 + me, checkpoint=place)
        except Overtaken:
            return "overtaken"
        return "done"

    with ThreadPoolExecutor(2) as drivers:
        ends = list(drivers.map(drive, (0, 1)))

    assert "done" in ends  # both, if one had ended before the other began
    totals_by_epoch, held = [], dict.fromkeys(range(5), 0)
    for rows in EPOCHS:
        for row in rows:
            held[row["k"]] += row["v"]
        totals_by_epoch.append(sorted((k, held[k]) for k in {row["k"] for row in rows}))
    assert {epoch for epoch, _, _ in called} == set(range(len(EPOCHS)))
    assert all(got == totals_by_epoch[epoch] for epoch, _, got in called)
    assert len({(epoch, me) for epoch, me, _ in called}) == len(called)
    repeated = [epoch for epoch in range(len(EPOCHS)) if sum(e == epoch for e, _, _ in called) > 1]
    assert len(repeated) <= 1, "only the epoch in which the one was overtaken may be told twice"


@pytest.mark.parametrize("seed", range(3))
def test_any_seed_on_s3(
    seed: int, s3: LocalS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(f"s3 {seed}")
    case = CASES[seed % len(CASES)](rng)
    faults = Faults(rng, kill_write=0.02)
    faults.wrap_storage(monkeypatch)

    def reach(point: str, epoch: int) -> None:
        if faults.happens(0.04, f"driver dies: {point}@{epoch}"):
            raise Killed(f"{point}@{epoch}")

    monkeypatch.setattr("headgate.commit.faults.reach", reach)
    driver = Driver(case, faults, tmp_path, warm=bool(seed % 2), checkpoint=s3.folder())

    done = driver.run()

    faults.kill_write = 0.0
    driver.check_all(done)


@pytest.mark.parametrize("make", [chain, chained_windows])
def test_the_driver_dies_at_every_point_on_s3(
    make: Callable[..., Case], s3: LocalS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after the other, each in the start that follows the last death."""
    rng = random.Random(f"s3 {make.__name__}")
    faults = Faults(rng, twice=0.0, zombie=0.0, abort=0.0, tamper=0.0)
    died: list[str] = []

    def reach(at: str, of: int) -> None:
        if of and at in POINTS[len(died) : len(died) + 1]:
            died.append(at)
            raise Killed(at)

    monkeypatch.setattr("headgate.commit.faults.reach", reach)
    driver = Driver(make(rng), faults, tmp_path, warm=True, checkpoint=s3.folder())

    done = driver.run()

    assert died == POINTS
    driver.check_all(done)
