"""Plans from scratch: when most keys are new to the planner, and else where they pay."""

from __future__ import annotations

from dataclasses import replace

from headgate.planner.placing import KeyLoads, Observation, make_placing
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
