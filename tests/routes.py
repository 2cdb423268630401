"""Plans with other routes than somebody decided."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np

from headgate.routing.route import Dispatch, Route, Shares
from headgate.routing.table import hash_table
from headgate.slot.levels import levels_of
from headgate.slot.plan import EpochPlan
from headgate.slot.program import Program


def routed(program: Program, plan: EpochPlan, routes: Mapping[str, Route]) -> EpochPlan:
    """The plan with these routes, and the tasks that they need."""
    levels = levels_of(program, routes, plan.slots, plan.moves)
    return replace(plan, routes=routes, at_work=levels.at_work, ends=levels.ends)


def dispatched(program: Program, plan: EpochPlan, chosen: Mapping[str, Dispatch]) -> EpochPlan:
    """The plan with rows of these operators dispatched so."""
    routes = {
        op: replace(route, dispatch=chosen.get(op, route.dispatch))
        for op, route in plan.routes.items()
    }
    return routed(program, plan, routes)


def with_few_instances(program: Program, plan: EpochPlan, coin: random.Random) -> EpochPlan:
    """The plan with instances of most operators in some slots only: owners, and a few others."""
    routes = {}
    for node in program.graph.nodes:
        if node.kind in ("source", "sink") or coin.random() < 0.3:
            continue
        route = plan.routes.get(node.name)
        some = set(coin.sample(range(plan.slots), coin.randint(1, plan.slots)))
        if route is None:
            owners = np.resize(np.array(sorted(some), np.int32), plan.buckets)
            route = Route(hash_table(plan.slots, plan.buckets).with_buckets(owners))
        some |= {*route.table.bucket_slots.tolist(), *route.table.pinned_slots.tolist()}
        if isinstance(route.dispatch, Shares):
            some |= set(route.dispatch.spread.slots.tolist())
        routes[node.name] = replace(route, slots=tuple(sorted(some)))
    return routed(program, plan, {**plan.routes, **routes})


def may_be_local(program: Program) -> frozenset[str]:
    """Operators whose rows may stay where they are if their key has no pin."""
    return frozenset(program.operators(lambda may: may.local is not None))


def local_only(program: Program, plan: EpochPlan, operators: Collection[str]) -> EpochPlan:
    """The plan with these of the operators that may be, and no others, born local."""
    chosen: dict[str, Dispatch] = {}
    for op in may_be_local(program):
        may = program.dispatches[op]
        assert may.local is not None
        chosen[op] = may.local if op in operators else may.usual
    return dispatched(program, plan, chosen)
