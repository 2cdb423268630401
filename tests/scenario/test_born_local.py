"""Born local under faults: partials are killed, doubled, lost and changed like all that is sent.

Which operators are born local, and who owns which key, changes with every epoch. A failing seed is
replayed with `pytest -k "seed[17]"`.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from tests.routes import may_be_local
from tests.scenario.born_local import born_local, deep
from tests.scenario.fault_engine import TAMPERINGS, Faults, Killed
from tests.scenario.oracle import CASES, random_table
from tests.scenario.test_seeded_faults import BUCKETS, Driver

from headgate.commit.coordinator import Coordinator
from headgate.slot.program import Program
from strategies import quick_folder, seeds


class MovingDriver(Driver):
    """Every epoch gets other tables, as from a manager that changes its mind all the time."""

    def start(self, number: int) -> Coordinator:
        coordinator = super().start(number)
        run_epoch = coordinator.run_epoch

        def with_other_tables(epoch: int, *given: Any) -> dict[str, Any]:
            slots = coordinator.slots
            coordinator._routing.tables.update(
                {
                    operator: random_table(self.rng, self.case, operator, slots, BUCKETS).resized(
                        slots, coordinator.instances[operator]
                    )
                    for operator in self.case.keys
                    if self.rng.random() < 0.5
                }
            )
            return run_epoch(epoch, *given)

        coordinator.run_epoch = with_other_tables  # type: ignore[method-assign]
        return coordinator


def chosen_by(rng: random.Random) -> Any:
    """Any of the operators that can, another choice in every epoch, the same in every attempt."""
    seed = rng.random()

    def choose(program: Program, epoch: int) -> frozenset[str]:
        coin = random.Random(f"{seed} {epoch}")
        return frozenset(name for name in sorted(may_be_local(program)) if coin.random() < 0.7)

    return choose


@pytest.mark.parametrize("seed", seeds(12, of=30))
def test_any_seed(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    case = rng.choice([deep, deep, *CASES])(rng)
    faults = Faults(rng, kill_write=rng.choice([0.0, 0.005, 0.02]))
    crash = rng.choice([0.0, 0.02, 0.05])

    def reach(point: str, epoch: int) -> None:
        if faults.happens(crash, f"driver dies: {point}@{epoch}"):
            raise Killed(f"{point}@{epoch}")

    monkeypatch.setattr("headgate.commit.faults.reach", reach)
    with quick_folder() as folder, born_local(chosen_by(rng)):
        driver = MovingDriver(case, faults, folder, warm=rng.random() < 0.5)
        faults.wrap_storage(monkeypatch)
        done = driver.run()
        faults.kill_write = 0.0
        driver.check_all(done)


@pytest.mark.parametrize("how", TAMPERINGS)
def test_every_tampering_with_partials_is_noticed(
    how: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No keys are pinned, so what the first level of slots sends is partials and carries."""
    rng = random.Random(how)
    case = deep(rng)
    case.keys = {"first": case.keys["first"]}
    faults = Faults(rng, twice=0.0, zombie=0.0, abort=0.0, tamper=1.0, tamper_level=1)
    driver = MovingDriver(case, faults, folder, warm=True)
    driver.first_slots = 3
    choose = rng.choice
    monkeypatch.setattr(
        rng, "choice", lambda options: how if options is TAMPERINGS else choose(options)
    )

    with born_local():
        done = driver.run()

    driver.check_all(done)
    assert faults.log.count("tamper") == 2 * sum(bool(rows) for rows in case.epochs["rows"])


@pytest.fixture
def folder() -> Any:
    with quick_folder() as path:
        yield path
