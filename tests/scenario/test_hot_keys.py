"""Groupings for hot keys, and operators split now and then, under faults and moves.

Which grouping, what is split and spread, and who owns which key, changes with every start or epoch;
the results never do. A failing seed is replayed with `pytest -k "seed[17]"`.
"""

from __future__ import annotations

import random

import pytest
from tests.scenario.born_local import born_local, deep
from tests.scenario.choosing import WAYS, choosing, restless_plans
from tests.scenario.fault_engine import Faults, Killed
from tests.scenario.oracle import CASES, chain
from tests.scenario.restless import Restless
from tests.scenario.test_born_local import MovingDriver, chosen_by
from tests.scenario.test_seeded_faults import BUCKETS

from headgate.commit.planning import Planning
from headgate.control.hot_keys import HotKeys, HotKeySettings
from headgate.control.loop import plan_with
from headgate.control.settings import Manager
from headgate.slot.program import Program
from strategies import quick_folder, seeds


class Eager(HotKeys):
    """Plans from a few rows on."""

    def __init__(self, program: Program, slots: int, *, folds: bool) -> None:
        super().__init__(program, slots, HotKeySettings(learning_rows=20), folds=folds)


class DecidingDriver(MovingDriver):
    """What is spread, split and placed by load is decided as on Spark; a start knows nothing."""

    def planning(self) -> Planning | None:
        manager: Manager | Restless = Manager("hash")
        if self.rng.random() < 0.3:
            manager = Restless(self.rng, self.case, self.program, BUCKETS)
        return plan_with(manager, self.program, 1, beside=self.rng.random() < 0.3)


@pytest.mark.parametrize("seed", seeds(8, of=14))
def test_any_seed(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    case = rng.choice([deep, deep, *CASES])(rng)
    faults = Faults(rng, kill_write=rng.choice([0.0, 0.005, 0.02]))
    crash = rng.choice([0.0, 0.02, 0.05])

    def reach(point: str, epoch: int) -> None:
        if faults.happens(crash, f"driver dies: {point}@{epoch}"):
            raise Killed(f"{point}@{epoch}")

    monkeypatch.setattr("headgate.commit.faults.reach", reach)
    coin = random.Random(seed)
    with (
        quick_folder() as folder,
        born_local(chosen_by(rng)),
        restless_plans(case, seed),
        choosing(lambda name: coin.choice(WAYS)),
    ):
        driver = MovingDriver(case, faults, folder, warm=rng.random() < 0.5)
        faults.wrap_storage(monkeypatch)
        done = driver.run()
        faults.kill_write = 0.0
        driver.check_all(done)


@pytest.mark.parametrize("seed", range(8))
def test_decided_by_seed(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(f"decided {seed}")
    case = rng.choice([chain, deep])(rng, epochs=5, rows=60)
    faults = Faults(rng, kill_write=rng.choice([0.0, 0.005]))
    crash = rng.choice([0.0, 0.01, 0.03])

    def reach(point: str, epoch: int) -> None:
        if faults.happens(crash, f"driver dies: {point}@{epoch}"):
            raise Killed(f"{point}@{epoch}")

    monkeypatch.setattr("headgate.commit.faults.reach", reach)
    monkeypatch.setattr("headgate.control.loop.HotKeys", Eager)
    coin = random.Random(seed)
    with (
        quick_folder() as folder,
        choosing(lambda name: coin.choice(("cut", "cut", "dkg", "auto"))),
    ):
        driver = DecidingDriver(case, faults, folder, warm=rng.random() < 0.5)
        driver.first_slots = rng.randrange(2, 5)
        faults.wrap_storage(monkeypatch)
        done = driver.run()
        faults.kill_write = 0.0
        driver.check_all(done)
