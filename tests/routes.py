"""Plans with other routes than somebody decided."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from headgate.routing.route import Dispatch
from headgate.slot.plan import EpochPlan
from headgate.slot.program import Program


def dispatched(plan: EpochPlan, chosen: Mapping[str, Dispatch]) -> EpochPlan:
    """The plan with rows of these operators dispatched so."""
    routes = {
        op: replace(route, dispatch=chosen.get(op, route.dispatch))
        for op, route in plan.routes.items()
    }
    return replace(plan, routes=routes)


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
    return dispatched(plan, chosen)
