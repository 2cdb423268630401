"""Groupings for hot keys, and operators split now and then, under faults and moves.

Which grouping, what is split and spread, and who owns which key, changes with every start or epoch;
the results never do. A failing seed is replayed with `pytest -k "seed[17]"`.
"""

from __future__ import annotations

import random

import pytest
from tests.scenario.born_local import born_local, deep
from tests.scenario.choosing import choosing, restless_plans
from tests.scenario.fault_engine import Faults, Killed
from tests.scenario.oracle import CASES
from tests.scenario.test_born_local import MovingDriver, chosen_by

from strategies import quick_folder

WAYS = ("pkg", "d_choices", "w_choices", "split", "dkg", "auto", "hash")


@pytest.mark.parametrize("seed", range(14))
def test_any_seed(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    case = rng.choice([deep, deep, *CASES])(rng)
    faults = Faults(rng, kill_write=rng.choice([0.0, 0.005, 0.02]))
    crash = rng.choice([0.0, 0.02, 0.05])

    def reach(point: str, epoch: int) -> None:
        if faults.happens(crash, f"driver dies: {point}@{epoch}"):
            raise Killed(f"{point}@{epoch}")

    monkeypatch.setattr("headgate.control.coordinator.reach", reach)
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
