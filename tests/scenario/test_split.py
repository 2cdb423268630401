"""Split operators under faults: what is split, and who owns which key, changes with every start.

Some operators are split, some born local, some neither. A failing seed is replayed with
`pytest -k "seed[17]"`.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.scenario.born_local import born_local, deep
from tests.scenario.fault_engine import TAMPERINGS, Faults, Killed
from tests.scenario.oracle import CASES
from tests.scenario.splitting import splitting
from tests.scenario.test_born_local import MovingDriver, chosen_by

from strategies import quick_folder, seeds


@pytest.mark.parametrize("seed", seeds(16, of=40))
def test_any_seed(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    case = rng.choice([deep, *CASES])(rng)
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
        splitting(lambda name: coin.random() < 0.6),
    ):
        driver = MovingDriver(case, faults, folder, warm=rng.random() < 0.5)
        faults.wrap_storage(monkeypatch)
        done = driver.run()
        faults.kill_write = 0.0
        driver.check_all(done)


@pytest.mark.parametrize("level", [0, 1])
@pytest.mark.parametrize("how", TAMPERINGS)
def test_every_tampering_with_partials_is_noticed(
    how: str, level: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that source tasks send is partials; all that slots send is partials and carries."""
    rng = random.Random(how)
    case = deep(rng)
    faults = Faults(rng, twice=0.0, zombie=0.0, abort=0.0, tamper=1.0, tamper_level=level)
    choose = rng.choice
    with quick_folder() as folder, splitting(lambda name: level == 0 or name != "first"):
        driver = MovingDriver(case, faults, Path(folder), warm=True)
        driver.first_slots = 3
        monkeypatch.setattr(
            rng, "choice", lambda options: how if options is TAMPERINGS else choose(options)
        )
        done = driver.run()

        driver.check_all(done)
    assert driver.program.levels == level + 1
    assert faults.log.count("tamper") == 2 * sum(bool(rows) for rows in case.epochs["rows"])
