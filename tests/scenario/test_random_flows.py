"""Random flows, run in random ways: rows and state are those of the same flow in one slot.

Whatever is split, spread, moved, planned, started again with other slots or kept warm, what a flow
does is what it says. A failing seed tells its flow and how it ran, and is replayed with
`pytest -k "seed[17]"`.
"""

from __future__ import annotations

import random

import pytest
from tests.scenario.random_flows import Recipe, draw_recipe, draw_rows
from tests.scenario.random_setups import draw_starts, run_plainly, run_start_by_start

from headgate.slot.compile import compile_flow
from strategies import quick_folder, seeds


@pytest.mark.parametrize("seed", seeds(40, of=400))
def test_any_seed(seed: int) -> None:
    follow(seed, draw_recipe(seed))


@pytest.mark.parametrize("seed", seeds(10, of=200))
def test_any_seed_of_wide_rows_that_operators_pass_on(seed: int) -> None:
    follow(seed, draw_recipe(seed, passes=2))


def test_columns_wait_in_many_flows_of_wide_rows() -> None:
    recipes = [draw_recipe(seed, passes=2) for seed in range(20)]
    flows = [recipe.declare(draw_rows(recipe.seed), {}) for recipe in recipes]

    assert sum(bool(compile_flow(flow.graph()).parked.on) for flow in flows) >= 8


def follow(seed: int, recipe: Recipe) -> None:
    rng = random.Random(f"setup {seed}")
    epochs = draw_rows(seed)
    partitions = rng.randrange(1, 4)
    times = [10_000]
    for _ in epochs[1:]:
        times.append(times[-1] + rng.choice([0, 1000, 2999, 3000, 3001, 20_000]))
    with quick_folder() as folder:
        warm = str(folder / "warm") if rng.random() < 0.5 else None
        starts = draw_starts(rng, recipe, len(epochs), warm)
        try:
            plain = run_plainly(recipe, epochs, times, partitions)
            done = run_start_by_start(recipe, epochs, times, partitions, starts, folder, rng)
            assert done.rows == plain.rows
            assert done.late == plain.late
            assert done.state == plain.state
        except BaseException as problem:
            problem.add_note(f"seed {seed}, {partitions} partitions, warm: {warm is not None}")
            problem.add_note(str(recipe))
            problem.add_note("\n".join(map(str, starts)))
            raise
