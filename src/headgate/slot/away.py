"""Born local: a key that has no pin is processed where its row already is.

In an operator that the plan names in `away`, a row whose key has no pin does not leave its slot. If
the slot does not own the key, the row is *away*: it is folded into a partial state, and one merge
row per key goes to the owner in its stead. Who owns a key does not change, so nothing of migration
and recovery does either.

No level is added. Rows that are away skipped an exchange: they were processed one level before
those that took it, and their partials arrive with these, before the operator's `finish`.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from headgate.operator.base import Output, StatefulOperator, as_output
from headgate.operator.partial import Partials
from headgate.operator.rows import KeyedRows
from headgate.routing.table import I32, RoutingTable
from headgate.slot.failure import DeadLetters
from headgate.slot.plan import EpochPlan
from headgate.slot.program import Program
from headgate.slot.rows import Rows, joined
from headgate.slot.stateful import checked_carry, run_on
from headgate.state.session import StateSession
from headgate.topology.graph import Node


def staying(table: RoutingTable, slot: int) -> RoutingTable:
    """The table as a slot uses it that keeps all keys without a pin."""
    return table.with_buckets(np.full(table.buckets, slot, np.int32))


def divide(plan: EpochPlan, node: Node, rows: Rows, slot: int) -> tuple[Rows | None, Rows | None]:
    """Rows whose keys this slot owns, and rows that are away; None for none."""
    rows = rows.hashed_by(node.key)
    owned = plan.tables[node.name].route(rows.hashes_by(node.key)) == slot
    if owned.all():
        return rows, None
    if not owned.any():
        return None, rows
    return rows.take(np.flatnonzero(owned)), rows.take(np.flatnonzero(~owned))


def run_away(
    program: Program, plan: EpochPlan, node: Node, rows: Rows, dead: DeadLetters
) -> tuple[Rows | None, Output, KeyedRows, pa.RecordBatch | None]:
    """As `run_process`, on no state; last of all the partials, one per key (None: no good row)."""
    operator: StatefulOperator = node.spec
    partial: pa.RecordBatch | None = None

    def process(keyed: KeyedRows) -> Output:
        nonlocal partial
        partial = None
        output, partial = operator.process_away(keyed, plan.clock_of(node.name))
        return output

    made, output, keyed = run_on(program, plan, node, rows, dead, process)
    return made, output, keyed, partial if len(keyed) else None


def owners_of(program: Program, plan: EpochPlan, node: Node, partial: pa.RecordBatch) -> I32:
    """The slot that owns the key of each partial."""
    route = Partials(partial, program.state_schemas[node.id]).route
    return plan.tables[node.name].route(route)


def run_absorb(
    program: Program,
    plan: EpochPlan,
    node: Node,
    parts: list[pa.RecordBatch],
    session: StateSession,
    dead: DeadLetters,
) -> tuple[Output, Partials]:
    """Merge what other tasks made of this slot's keys; a partial that does not fit is dead."""
    schema, batch = program.state_schemas[node.id], joined(parts)
    partials = Partials(batch, schema, identity=plan.identity)
    output = as_output(node.spec.absorb(partials, session, plan.clock_of(node.name)))
    output = checked_carry(program, node, output)
    shown = batch.rename_columns(schema.shown.names)
    dead.refuse(node.name, shown, output.dead)
    return output, partials
