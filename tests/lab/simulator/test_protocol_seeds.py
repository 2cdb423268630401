"""The reconfiguration protocol under seeded delay, loss, reordering and crashes.

For every seed: no tuple lost, none processed twice, none without its state, one owner per key at
every moment, one routing version at the end. And the other way round: each of a list of mistakes
is caught, so the judge is awake.

HEADGATE_SEEDS sets how many seeds run per topology (150). A seed that fails is replayed with
`headgate-lab simulate --seed N --topology NAME --trace`.
"""

from __future__ import annotations

import os
from collections import Counter
from itertools import product

import pytest

from headgate_lab.simulator.broken import BROKEN, VARIANTS
from headgate_lab.simulator.faults import (
    CRASHING_INSTANCE,
    CRASHING_MANAGER,
    RECOVERING,
    RESTARTING,
    Crash,
    Faults,
)
from headgate_lab.simulator.run import SOUND, Parts, simulate
from headgate_lab.simulator.shape import SHAPES

SEEDS = int(os.environ.get("HEADGATE_SEEDS", "150"))
SEEDS_SLOW = 4000
CAUGHT_WITHIN = 1000


def run_all(
    seeds: range, topology: str = "any", parts: Parts = SOUND, planner: str = "seeded"
) -> Counter[str]:
    """Figures over all seeds, none of which may fail."""
    figures: Counter[str] = Counter()
    for seed in seeds:
        report = simulate(seed, topology=topology, parts=parts, planner=planner)
        replay = (
            f"headgate-lab simulate --seed {seed} --topology {topology} --planner {planner} --trace"
        )
        assert report.ok, f"{report.violation}; replay with: {replay}"
        figures.update(report.figures)
    return figures


@pytest.mark.parametrize("topology", SHAPES)
def test_every_invariant_holds_for_every_seed(topology: str) -> None:
    figures = run_all(range(SEEDS), topology)

    assert figures["tuples"] == 40 * SEEDS


@pytest.mark.parametrize("planner", ["headgate", "online"])
def test_what_the_manager_of_real_flows_decides_is_carried_out_for_every_seed(planner: str) -> None:
    figures = run_all(range(SEEDS), planner=planner)

    assert figures["keys_moved"] > SEEDS
    assert figures["held"] > SEEDS
    assert figures["manager_crashes"] > SEEDS / 10


def test_the_seeds_reach_what_they_are_meant_to_test() -> None:
    """Tuples that come early, keys that move twice, crashes, and recoveries from them."""
    figures = run_all(range(10_000, 10_200))

    for name in (
        "held",
        "during",
        "keys_moved_again",
        "recoveries",
        "snapshots",
        "frames_lost",
        "frames_doubled",
        "frames_fenced",
    ):
        assert figures[name] > 50, name


@pytest.mark.parametrize("kind", [*CRASHING_INSTANCE, *CRASHING_MANAGER])
def test_a_crash_at_any_message_and_after_any_instruction_does_no_harm(kind: str) -> None:
    crashes: Counter[str] = Counter()
    for seed, (nth, after) in enumerate(product((1, 1, 4), (0, 1, 2, 4, 99))):
        earlier = [Crash("Data", 30, 0, 20.0)] if kind in RECOVERING else []
        earlier += [Crash("AckReconf", 1, 1, 20.0, acting=True)] if kind in RESTARTING else []
        plan = Faults(crashes=(*earlier, Crash(kind, nth, after, 30.0, acting=seed % 2 == 0)))
        report = simulate(seed, faults=plan)
        assert report.ok, (seed, nth, after, report.violation)
        crashes.update(report.figures)

    assert crashes[f"crash at {kind}"] > 3


@pytest.mark.parametrize("mistake", BROKEN)
def test_every_mistake_is_caught(mistake: str) -> None:
    found = (simulate(seed, parts=BROKEN[mistake]).violation for seed in range(CAUGHT_WITHIN))

    assert next(filter(None, found), None), f"{mistake} went unnoticed in {CAUGHT_WITHIN} seeds"


@pytest.mark.parametrize(
    "mistake", ["no-buffering", "migrates-early", "out-of-order", "overtaking", "forgets-plan"]
)
def test_a_broken_order_shows_as_a_tuple_without_its_state(mistake: str) -> None:
    """Not only in some late consequence."""
    found = (simulate(seed, parts=BROKEN[mistake]).violation for seed in range(CAUGHT_WITHIN))

    assert any("without its state" in violation for violation in found if violation)


@pytest.mark.parametrize("variant", VARIANTS)
def test_other_ways_that_should_hold_do(variant: str) -> None:
    run_all(range(20_000, 20_000 + SEEDS // 2), parts=VARIANTS[variant])


@pytest.mark.slow
@pytest.mark.parametrize("topology", SHAPES)
def test_many_more_seeds(topology: str) -> None:
    run_all(range(100_000, 100_000 + SEEDS_SLOW), topology)
