"""Plans from scratch: when most keys or rows are new to the planner, and else where they pay."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from headgate.arrays import I32
from headgate.planner.fresh_look import worth_for_others
from headgate.planner.key_graph import KeyGraph
from headgate.planner.partition import partition
from headgate.planner.placing import KeyLoads, Observation, Pairs, make_placing
from headgate.routing.hashing import mix
from headgate.routing.table import hash_table
from unit.planner.test_hosts_change import SLOTS, TASK, seen

OPERATORS = ("a", "b")


def first_keys(epoch: Observation, share: float) -> Observation:
    """Only the rows between keys whose hash is in the first part of all."""
    most = int(share * 2**64) - 1
    pairs, loads = epoch.pairs[OPERATORS], epoch.loads
    known = (pairs.a <= most) & (pairs.b <= most)
    pairs = pairs._replace(a=pairs.a[known], b=pairs.b[known], rows=pairs.rows[known])
    kept = {op: KeyLoads(*(x[loads[op].h <= most] for x in loads[op])) for op in OPERATORS}
    return replace(epoch, pairs={OPERATORS: pairs}, loads=kept)


def looks(observed: list[Observation]) -> list[int]:
    """The epochs after which a plan from scratch was installed."""
    placing = make_placing("headgate", replace(TASK, memory_epochs=2))
    tables, found = {name: hash_table(SLOTS) for name in OPERATORS}, []
    for number, epoch in enumerate(observed):
        placing.observe(epoch, tables)
        proposal = placing.propose(epoch, tables)
        if proposal is None:
            continue
        if proposal.reason.startswith("plan from scratch"):
            found.append(number)
        for name, pins in proposal.pins.items():
            tables[name] = tables[name].pin_hashes(pins.h, pins.slot)
    return found


def test_a_plan_is_made_anew_when_twice_as_many_keys_are_known_and_not_before() -> None:
    """Keys meet by chance within two groups, so after a plan that knows most keys nothing pays."""
    some = [first_keys(seen(n, ()), 0.3) for n in range(8)]
    most = [first_keys(seen(n, ()), 0.9) for n in range(8, 16)]
    everything = [seen(n, ()) for n in range(16, 24)]

    assert looks(some + most) == [0, 8]
    assert looks(most + everything) == [0]


def drawn(epoch: int, kept: float, rows: int) -> Observation:
    """Rows between keys of as many groups as slots; a share of them stays in its group."""
    draw = np.random.default_rng([7, epoch])
    group = draw.integers(0, SLOTS, rows)
    after = np.where(draw.random(rows) < kept, group, draw.integers(0, SLOTS, rows))
    a, b = (mix((x * 50 + draw.integers(0, 50, rows)).astype(np.uint64)) for x in (group, after))
    loads = {}
    for name, h in zip(OPERATORS, (a, b), strict=True):
        keys, count = np.unique(h, return_counts=True)
        loads[name] = KeyLoads(keys, count.astype(np.float64), np.zeros(len(keys), np.int32))
    even = np.full(SLOTS, rows / SLOTS)
    return Observation(
        epoch=epoch,
        epochs=1,
        rows=rows,
        now_ms=0,
        pairs={OPERATORS: Pairs(a, b, np.ones(rows))},
        loads=loads,
        slot_rows=dict.fromkeys(OPERATORS, even),
    )


@pytest.mark.parametrize("rows", [300, 600])
def test_a_plan_of_few_rows_is_outgrown_and_one_of_chance_is_not(rows: int) -> None:
    """All keys are known early; until the next look no plan saves what its moves cost."""
    assert looks([drawn(epoch, 0.6, rows) for epoch in range(16)]) == [0, 6]
    assert looks([drawn(epoch, 0.0, rows) for epoch in range(16)]) == [0]


@pytest.mark.parametrize(
    ("rows", "kept"), [(2_000, 0.0), (4_000, 0.0), (16_000, 0.0), (4_000, 0.6), (16_000, 0.6)]
)
def test_what_a_plan_is_worth_on_rows_it_was_not_made_from(rows: int, kept: float) -> None:
    """Of rows that meet by chance the plan keeps up to half, and of others a quarter."""
    now, others = (
        KeyGraph.build(OPERATORS, [(0, 1, *drawn(n, kept, rows).pairs[OPERATORS])]) for n in (0, 1)
    )
    assert np.array_equal(now.h, others.h), "all keys are in both"

    def plan(graph: KeyGraph) -> I32:
        return partition(graph, SLOTS, seed=1).slot

    planned = plan(now)
    assert kept or now.locality(planned) > others.locality(planned) + 0.05
    found = worth_for_others(now, planned, plan, seed=1)
    assert found == pytest.approx(others.locality(planned), abs=0.04)
