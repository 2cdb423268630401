"""Split operators: rows are processed where they are, only partial states travel.

A task keeps one private state per split operator and folds into it whatever rows of that operator
come by, chunk after chunk, whoever owns their keys. What it holds at the end goes to the owners,
one partial per key: a task sends at most as many as it saw keys, whatever the number of rows. A
source task, which may read without end, sends what it has and begins anew when that is more than
`KEYS_MAX` keys or `BYTES_MAX` bytes.
"""

from __future__ import annotations

import pyarrow as pa

from headgate.operator.partial import PartialState
from headgate.routing.identity import Identity
from headgate.slot.program import Program
from headgate.state.session import StateSession
from headgate.topology.graph import Node

KEYS_MAX = 1_000_000
BYTES_MAX = 256 << 20


class SplitStates:
    """The private states of a task, by operator; opened when the first row comes."""

    def __init__(self, program: Program, identity: Identity) -> None:
        self._program, self._identity = program, identity
        self._open: dict[int, PartialState] = {}

    def session(self, node: Node) -> StateSession:
        if node.id not in self._open:
            schema = self._program.state_schemas[node.id]
            self._open[node.id] = PartialState(schema, self._identity)
        return self._open[node.id].session

    def is_full(self, node: Node) -> bool:
        """Has a chunk made it too large? Otherwise it is ready for the next one."""
        if node.id not in self._open:
            return False
        session = self._open[node.id].session
        session.forget_changes()  # they refer to the chunk's rows
        return session.rows > KEYS_MAX or session.bytes > BYTES_MAX

    def take(self, node: Node) -> pa.RecordBatch | None:
        """What the rows have come to, one row per key and sub-key; begins anew. None: nothing."""
        state = self._open.pop(node.id, None)
        if state is None:
            return None
        with state:
            batch = state.batch()
        return batch if batch.num_rows else None
