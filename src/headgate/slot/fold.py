"""Fold rows where their keys do not live, and send the owners what they come to.

A task keeps one private state per operator and folds into it whatever rows of that operator come
by, chunk after chunk. What it holds at the end goes to the owners, one partial per key: a task
sends at most as many as it saw keys, whatever the number of rows. A source task, which may read
without end, sends what it has and begins anew when that is more than `KEYS_MAX` keys or
`BYTES_MAX` bytes.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from headgate.operator.base import Output, as_output
from headgate.operator.rows import Partials
from headgate.routing.hashing import I32
from headgate.routing.identity import Identity
from headgate.routing.route import ToOwner
from headgate.slot.failure import DeadLetters
from headgate.slot.plan import EpochPlan
from headgate.slot.program import Program
from headgate.slot.rows import Rows, joined
from headgate.slot.stateful import checked_carry
from headgate.state.session import PrivateSession, StateSession
from headgate.topology.graph import Node

KEYS_MAX = 1_000_000
BYTES_MAX = 256 << 20


class Folds:
    """The private states of a task, by operator; opened when the first row comes."""

    def __init__(self, program: Program, identity: Identity) -> None:
        self._program, self._identity = program, identity
        self._open: dict[int, StateSession] = {}

    def session(self, node: Node) -> StateSession:
        if node.id not in self._open:
            schema = self._program.state_schemas[node.id]
            self._open[node.id] = PrivateSession(schema, self._identity)
        return self._open[node.id]

    def is_full(self, node: Node) -> bool:
        """Has a chunk made it too large? Otherwise it is ready for the next one."""
        if node.id not in self._open:
            return False
        session = self._open[node.id]
        session.forget_changes()  # they refer to the chunk's rows
        return session.rows > KEYS_MAX or session.bytes > BYTES_MAX

    def take(self, node: Node) -> pa.RecordBatch | None:
        """What the rows have come to, one row per key and sub-key; begins anew. None: nothing."""
        session = self._open.pop(node.id, None)
        if session is None:
            return None
        with session:
            batch = session.all().batch()
        return batch if batch.num_rows else None


def divide(plan: EpochPlan, node: Node, rows: Rows, slot: int) -> tuple[Rows | None, Rows | None]:
    """Rows to process on the state of this slot, and rows to fold away from home; None for none.

    What is folded wherever it is (`Here`) never comes to be divided.
    """
    route = plan.routes[node.name]
    if isinstance(route.dispatch, ToOwner):
        return rows, None
    rows = rows.hashed_by(node.key)
    owned = route.table.route(rows.hashes_by(node.key)) == slot
    if owned.all():
        return rows, None
    if not owned.any():
        return None, rows
    return rows.take(np.flatnonzero(owned)), rows.take(np.flatnonzero(~owned))


def owners_of(program: Program, plan: EpochPlan, node: Node, partial: pa.RecordBatch) -> I32:
    """The slot that owns the key of each partial."""
    route = Partials(partial, program.state_schemas[node.id]).route
    return plan.routes[node.name].table.route(route)


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
