"""Which slot a row goes to: a route's dispatch at work, one dispatcher per edge in a task.

A dispatcher is a function of the rows of its edge in order, and of the plan: it may keep counts
from chunk to chunk, starts from nothing with every task, and does not notice where a chunk ends.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from headgate.routing.hashing import I32, U64, hash_columns
from headgate.routing.route import Choose, HereUnlessPinned, Route, Shares, Stop
from headgate.routing.table import RoutingTable
from headgate.slot.plan import EpochPlan
from headgate.topology.graph import Edge

Dispatcher = Callable[[pa.RecordBatch, U64], I32]


def make_dispatcher(
    plan: EpochPlan, edge: Edge, consumer: str, producer: int, slot: int | None
) -> Dispatcher:
    """Gives rows of an edge, with the hashes of their keys, the slots they go to.

    `slot` is the task's own, `producer` its number; a source task is in no slot.
    """
    route = plan.routes[consumer]
    owner_of = route.table.route
    match route.dispatch:
        case HereUnlessPinned(stops):
            if slot is not None:
                owner_of = _staying(route, slot).route
            elif edge.id in stops:
                return lambda batch, h: look_ahead(plan, consumer, stops[edge.id], batch, h)
        case Choose() | Shares():
            # Imported late: it is compiled, and few flows need it.
            from headgate.routing.chooser import Chooser

            choose = Chooser(route, producer).choose
            return lambda batch, h: choose(h, owner_of(h))
    return lambda batch, h: owner_of(h)


def look_ahead(
    plan: EpochPlan, consumer: str, stops: tuple[Stop, ...], batch: pa.RecordBatch, h: U64
) -> I32:
    """Where source rows go: those of keys without a pin to the first stop that has an owner.

    Where no key needs a pin, every key has an owner.
    """
    targets, pinned = plan.routes[consumer].table.look_up(h)
    lost = np.flatnonzero(~pinned)
    for stop in stops:
        if not len(lost):
            break
        columns = [batch.column(name).take(pa.array(lost)) for name in stop.key]
        route = plan.routes[stop.operator]
        slots, known = route.table.look_up(hash_columns(columns, len(lost)))
        if not isinstance(route.dispatch, HereUnlessPinned):
            known = np.ones(len(lost), np.bool_)
        mine = plan.slots_of(consumer)
        if len(mine) < plan.slots:  # its instance there, or none
            known &= np.isin(slots, mine)
        targets[lost[known]] = slots[known]
        lost = lost[~known]
    return targets


def _staying(route: Route, slot: int) -> RoutingTable:
    """The table as a slot uses it that keeps all keys without a pin, if it has an instance."""
    if route.slots and slot not in route.slots:
        return route.table
    return route.table.with_buckets(np.full(route.table.buckets, slot, np.int32))
