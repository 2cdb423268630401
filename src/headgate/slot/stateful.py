"""Run a stateful operator in its slot: migrate, process, finish, commit its state.

State that changes owner is fetched by the slot that gains it, from the committed files of the
slot that loses it, before the first row is processed; the loser drops it in the same epoch. Both
follow from the two tables alone, so every attempt does the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pyarrow as pa

from headgate.operator.base import Output, StatefulOperator, as_output
from headgate.operator.rows import KeyedRows
from headgate.routing.hashing import bucket_of
from headgate.routing.table import Moves
from headgate.slot.failure import I64, DeadLetters, find_bad_rows
from headgate.slot.plan import EpochPlan
from headgate.slot.program import Program, ttl_ms
from headgate.slot.rows import Rows
from headgate.slot.stateless import WrongOutput, conform
from headgate.state.session import StateSession
from headgate.state.state_file import Chain
from headgate.state.store import StateStore
from headgate.topology.graph import Node

AFTER_ALL = np.int64(np.iinfo(np.int64).max)  # the place of rows made when all others are in


def open_state(
    program: Program,
    plan: EpochPlan,
    store: StateStore,
    node: Node,
    slot: int,
    level: int,
    chain: Chain,
) -> StateSession:
    return store.open(
        node.name,
        slot,
        program.state_schemas[node.id],
        chain,
        epoch=plan.epoch,
        level=level,
        now_ms=plan.clock.now_ms,
        ttl_ms=ttl_ms(node.spec),
    )


def moves_of(plan: EpochPlan, node: Node) -> Moves | None:
    """The units of this operator that change owner with this epoch; None if none do."""
    moves = plan.moves.get(node.name)
    return moves if moves else None


def drop_departed(plan: EpochPlan, store: StateStore) -> None:
    """Forget the warm copies of slots that the flow no longer has."""
    for operator, moves in plan.moves.items():
        for slot in range(plan.slots, moves.old_slots):
            store.drop(operator, slot)


def migrate(
    program: Program,
    plan: EpochPlan,
    store: StateStore,
    node: Node,
    slot: int,
    moves: Moves,
    session: StateSession,
) -> int:
    """Take in what this slot gains and drop what it loses; returns the rows gained."""
    new = plan.routes[node.name].table
    gained = 0
    for owner, chain in sorted(plan.chains.get(node.name, {}).items()):
        if owner == slot or not chain:
            continue
        buckets, routes = moves.between(owner, slot)
        if not len(buckets) and not len(routes):
            continue
        rows = store.moved_rows(
            node.name,
            owner,
            program.state_schemas[node.id],
            chain,
            buckets=buckets,
            routes=routes,
        )
        mine = np.flatnonzero(new.route(rows.route) == slot)
        if len(mine) < len(rows):
            rows = rows.take(mine)
        if len(rows):
            session.absorb(rows)
            gained += len(rows)
    if slot < moves.old_slots:
        buckets, routes = moves.leaving(slot)
        stays = new.pinned_h[new.pinned_slots == slot]
        stays = stays[np.isin(bucket_of(stays, new.buckets), buckets)]
        if len(buckets) or len(routes):
            session.drop_units(buckets, routes, stays)
    return gained


def run_process(
    program: Program,
    plan: EpochPlan,
    node: Node,
    rows: Rows,
    session: StateSession,
    dead: DeadLetters,
) -> tuple[Rows | None, Output, KeyedRows]:
    """Give rows to the operator; bad ones go to `dead` if it takes them. Also what it took."""
    operator: StatefulOperator = node.spec
    clock = plan.clock_of(node.name)

    def process(keyed: KeyedRows) -> Output:
        return as_output(operator.process(keyed, session, clock))

    if dead.wanted:
        session.mark()
    answer = run_on(program, plan, node, rows, dead, process, session)
    if dead.wanted:
        session.release()
    return answer


def run_on(
    program: Program,
    plan: EpochPlan,
    node: Node,
    rows: Rows,
    dead: DeadLetters,
    process: Callable[[KeyedRows], Output],
    session: StateSession | None = None,
) -> tuple[Rows | None, Output, KeyedRows]:
    """Run `process`; if it fails, find the rows it fails on, set them aside, and run it again."""
    schema = program.node_schema[node.id]
    undo = None if session is None else session.rollback

    def attempt(some: Rows) -> tuple[Rows | None, Output, KeyedRows]:
        keyed = KeyedRows(some.batch, node.key, some.hashes_by(node.key), plan.identity)
        output = process(keyed) if len(some) else Output()
        output = checked_carry(program, node, output)
        return _checked(output, some, schema), output, keyed

    def on(part: I64) -> None:
        attempt(rows.take(part))

    try:
        answer = attempt(rows)
    except Exception as problem:
        if not dead.wanted:
            if session is not None:
                session.mark()  # what the call has written is never committed, nor undone
            raise dead.blame(node.name, rows.batch, problem, on, undo) from problem
        if undo is not None:
            undo()
        bad = find_bad_rows(len(rows), on, undo)
        dead.refuse(node.name, rows.batch, bad)
        rows = rows.take(np.setdiff1d(np.arange(len(rows)), np.fromiter(bad, np.int64)))
        answer = attempt(rows)
    dead.refuse(node.name, rows.batch, answer[1].dead)
    return answer


def run_finish(
    program: Program,
    plan: EpochPlan,
    node: Node,
    session: StateSession,
    carry: pa.RecordBatch | None,
) -> Rows | None:
    """All rows of the epoch are in: close windows, emit updates."""
    made = node.spec.finish(session, plan.clock_of(node.name), carry)
    if made is None:
        return None
    if made.num_rows and not node.spec.emits_at_end:
        raise WrongOutput(
            f"finish returned {made.num_rows} rows, but emits_at_end says that it returns none"
        )
    batch = conform(made, program.node_schema[node.id])
    lineage = {name: np.full(batch.num_rows, AFTER_ALL) for name in program.lineage}
    rows = Rows(batch, lineage)
    if plan.statistics_bytes and set(node.key) <= set(batch.schema.names):
        return Rows(batch, lineage, origin=rows.at(node.name, node.key).origin)
    return rows


def checked_carry(program: Program, node: Node, output: Output) -> Output:
    """The output with its carry as declared; raises if it is something else."""
    if output.carry is None:
        return output
    schema = program.carry_schema(node)
    if schema is None:
        raise WrongOutput(
            "returned a carry, but carry_schema declares none; let it return the carry's schema"
        )
    try:
        return replace(output, carry=conform(output.carry, schema))
    except WrongOutput as problem:
        raise WrongOutput(f"carry does not fit carry_schema: {problem}") from problem


def _checked(output: Output, rows: Rows, schema: pa.Schema) -> Rows | None:
    if output.batch is None:
        return None
    batch = conform(output.batch, schema)
    origins = output.origins
    if origins is None and batch.num_rows != len(rows) and rows.lineage:
        raise WrongOutput(
            f"returned {batch.num_rows} rows for {len(rows)} without saying their origins; "
            "return Output(batch, origins)"
        )
    return rows.derived(batch, origins)
