"""The commit protocol on an object store: what holds on a disk holds on S3."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.scenario.fault_engine import Faults, Killed
from tests.scenario.oracle import CASES
from tests.scenario.test_seeded_faults import POINTS, Driver

from headgate import Count, Flow, Sum
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


@pytest.mark.parametrize("seed", range(4))
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

    monkeypatch.setattr("headgate.control.coordinator.reach", reach)
    driver = Driver(case, faults, tmp_path, warm=bool(seed % 2), checkpoint=s3.folder())

    done = driver.run()

    faults.kill_write = 0.0
    driver.check_all(done)


@pytest.mark.parametrize("point", POINTS)
def test_the_driver_dies_at_every_point_on_s3(
    point: str, s3: LocalS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(f"s3 {point}")
    case = rng.choice(CASES)(rng)
    faults = Faults(rng, twice=0.0, zombie=0.0, abort=0.0, tamper=0.0)
    died: list[str] = []

    def reach(at: str, of: int) -> None:
        if (at, of) == (point, 1) and not died:
            died.append(at)
            raise Killed(at)

    monkeypatch.setattr("headgate.control.coordinator.reach", reach)
    driver = Driver(case, faults, tmp_path, warm=True, checkpoint=s3.folder())

    done = driver.run()

    assert died == [point]
    driver.check_all(done)
