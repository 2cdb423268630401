"""Run one operator on a batch of rows, and check what user code returns.

A value that cannot be cast to the declared type is an error of that operator, not a surprise three
operators later. Where the flow takes dead letters, rows that an operator fails on are found and set
aside, and it runs again on the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.arrays import I64
from headgate.operator.base import Output, as_output
from headgate.operator.rows import KeyedRows, Partials
from headgate.operator.timers import FiredTimers
from headgate.slot.failure import DeadLetters
from headgate.slot.held_back import times_of
from headgate.slot.plan import EpochPlan
from headgate.slot.program import Program
from headgate.slot.rows import PLACE, Rows, joined
from headgate.state.session import StateSession
from headgate.topology.graph import Node
from headgate.topology.text import describe, reason_of

AFTER_ALL = np.int64(np.iinfo(np.int64).max)  # the place of rows made when all others are in


class WrongOutput(Exception):
    """User code returned something that the declaration does not allow."""


def run_stateless(
    node: Node,
    rows: Rows,
    dead: DeadLetters,
    clock_ns: Callable[[], int] | None = None,
    spent_ns: I64 | None = None,
) -> Rows:
    """Output of map, filter or flat_map; bad rows go to `dead` (which may refuse and raise).

    With a clock, the time of each row of a per-row function is put into `spent_ns`.
    """
    if node.spec.per_row:
        return _run_per_row(node, rows, dead, clock_ns, spent_ns)

    def work(some: Rows) -> Rows:
        if not len(some):  # all were bad: user code gets no empty batch
            return some.derived(pa.RecordBatch.from_pylist([], schema=node.schema), None)
        return _run_vectorised(node, some)

    return dead.run(node.name, rows, work, function=node.spec.function)[1]


def _run_vectorised(node: Node, rows: Rows) -> Rows:
    function = node.spec.function
    if node.kind == "filter":
        return _filter(function, rows)
    if node.kind == "map":
        batch = conform(function(rows.batch), node.schema, node.schema)
        if batch.num_rows != len(rows):
            raise WrongOutput(
                f"map got {len(rows)} rows and returned {batch.num_rows}; "
                "use filter or flat_map to change the number of rows"
            )
        return rows.derived(batch, None)
    returned = function(rows.batch)
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise WrongOutput(
            "flat_map must return (batch, origins), where origins[i] is the input row of output i"
        )
    batch, origins = (
        conform(returned[0], node.schema, node.schema),
        np.asarray(returned[1], np.int64),
    )
    if len(origins) != batch.num_rows:
        raise WrongOutput(f"flat_map returned {batch.num_rows} rows and {len(origins)} origins")
    if len(origins) and not (origins.min() >= 0 and origins.max() < len(rows)):
        raise WrongOutput(f"flat_map returned an origin outside 0..{len(rows) - 1}")
    return rows.derived(batch, origins)


def _filter(predicate: Any, rows: Rows) -> Rows:
    mask = predicate(rows.batch)
    if isinstance(mask, pa.ChunkedArray):
        mask = mask.combine_chunks()
    if isinstance(mask, pa.Array):
        mask = mask.fill_null(False).to_numpy(zero_copy_only=False)
    mask = np.asarray(mask)
    if mask.dtype != np.bool_ or len(mask) != len(rows):
        raise WrongOutput(
            f"filter must return {len(rows)} booleans, not {len(mask)} of {mask.dtype}"
        )
    return rows if mask.all() else rows.take(np.flatnonzero(mask))


def _run_per_row(
    node: Node,
    rows: Rows,
    dead: DeadLetters,
    clock_ns: Callable[[], int] | None,
    spent_ns: I64 | None,
) -> Rows:
    """One Python call a row: convenient, and as slow as that sounds."""
    function, kind = node.spec.function, node.kind
    made: list[dict[str, Any]] = []
    origins: list[int] = []
    bad: dict[int, str] = {}
    begun_ns: list[int] = []
    for index, row in enumerate(rows.batch.to_pylist()):
        if clock_ns is not None:
            begun_ns.append(clock_ns())
        try:
            if kind == "filter":
                results = [row] if function(row) else []
            elif kind == "map":
                results = [function(row)]
            else:
                results = list(function(row))
            for result in results if kind != "filter" else []:
                _check_row(result, node.schema)
        except Exception as problem:
            bad[index] = describe(problem) if bad else reason_of(problem, function)
            continue
        made.extend(results)
        origins.extend([index] * len(results))
    if clock_ns is not None and spent_ns is not None:
        spent_ns[:] = np.diff([*begun_ns, clock_ns()])
    dead.refuse(node.name, rows.batch, bad)
    if kind == "filter":
        return rows.take(np.asarray(origins, np.int64))
    batch = pa.RecordBatch.from_pylist(made, schema=node.schema)
    return rows.derived(batch, np.asarray(origins, np.int64))


def _check_row(row: Any, schema: pa.Schema) -> None:
    if not isinstance(row, dict):
        raise WrongOutput(f"returned {type(row).__name__}, not a dict")
    missing = [name for name in schema.names if name not in row]
    if missing:
        raise WrongOutput(f"returned a row without column {missing[0]!r}: {row}")
    if len(row) > len(schema):
        raise WrongOutput(f"returned a row with {_undeclared(row, schema)}: {row}")
    for field in schema:
        pa.scalar(row[field.name], field.type)


class StatefulRunner:
    """Runs the stateful operators of one task; bad rows go to `dead` if it takes them."""

    def __init__(self, program: Program, plan: EpochPlan, dead: DeadLetters) -> None:
        self._program, self._plan, self._dead = program, plan, dead

    def process(
        self, node: Node, rows: Rows, session: StateSession, *, is_last: bool = False
    ) -> tuple[Rows | None, Output, KeyedRows]:
        """Give rows to the operator: what it passes on, all it answered, and what it was given.

        `is_last`: no more rows of their keys come to this session in the epoch.
        """
        clock, identity = self._plan.clock_of(node.name), self._plan.identity

        def work(some: Rows) -> tuple[Rows | None, Output, KeyedRows]:
            times = None if node.order_by is None else times_of(some.batch, node.order_by)[0]
            hashes = some.hashes_by(node.key)
            keyed = KeyedRows(some.batch, node.key, hashes, identity, times, is_last)
            output = Output()
            if len(some):
                output = as_output(node.spec.process(keyed, session, clock))
            output = self._with_carry(node, output)
            return self._made(node, some, output), output, keyed

        rows, answer = self._dead.run(node.name, rows, work, session)
        self._dead.refuse(node.name, rows.batch, answer[1].dead)
        return answer

    def absorb(
        self, node: Node, parts: list[pa.RecordBatch], session: StateSession
    ) -> tuple[Output, Partials]:
        """Merge what other tasks made of this slot's keys; a partial that does not fit is dead."""
        schema, batch = self._program.state_schemas[node.id], joined(parts)
        partials = Partials(batch, schema, identity=self._plan.identity)
        output = as_output(node.spec.absorb(partials, session, self._plan.clock_of(node.name)))
        output = self._with_carry(node, output)
        self._dead.refuse(node.name, batch.rename_columns(schema.shown.names), output.dead)
        return output, partials

    def finish(
        self, node: Node, session: StateSession, carry: pa.RecordBatch | None
    ) -> Rows | None:
        """All rows of the epoch are in: close windows, emit updates."""
        made = node.spec.finish(session, self._plan.clock_of(node.name), carry)
        if made is None:
            return None
        if made.num_rows and not node.spec.emits_at_end:
            raise WrongOutput(
                f"finish returned {made.num_rows} rows, but emits_at_end says that it returns none"
            )
        return self.at_end(node, made)

    def fire(self, node: Node, timers: FiredTimers, session: StateSession) -> Rows | None:
        """Timers are due: what the operator emits. One that it refuses becomes a dead letter."""
        clock = self._plan.clock_of(node.name)
        output = as_output(node.spec.on_timers(timers, session, clock))
        self._dead.refuse(node.name, timers.batch, output.dead)
        return None if output.batch is None else self.at_end(node, output.batch)

    def without_origin(self, batch: pa.RecordBatch) -> Rows:
        """Rows that follow all others of their epoch."""
        lineage = {name: np.full(batch.num_rows, AFTER_ALL) for name in self._program.lineage}
        return Rows(batch, lineage)

    def at_end(self, node: Node, made: pa.RecordBatch) -> Rows:
        """What an operator emits when all rows of the epoch are in."""
        batch = conform(made, self._program.node_schema[node.id], node.schema)
        rows = self.without_origin(batch)
        if self._plan.statistics_bytes and set(node.key) <= set(batch.schema.names):
            return replace(rows, origin=rows.at(node.name, node.key).origin)
        return rows

    def _made(self, node: Node, rows: Rows, output: Output) -> Rows | None:
        if output.batch is None:
            return None
        batch = conform(output.batch, self._program.node_schema[node.id], node.schema)
        if output.origins is None and batch.num_rows != len(rows):
            rows = rows.without((PLACE,))  # of these nobody can say what they are made from
            if not rows.lineage:
                return rows.derived(batch, None)
            raise WrongOutput(
                f"returned {batch.num_rows} rows for {len(rows)} without saying their origins; "
                "return Output(batch, origins)"
            )
        return rows.derived(batch, output.origins)

    def _with_carry(self, node: Node, output: Output) -> Output:
        """The output with its carry as declared; raises if it is something else."""
        if output.carry is None:
            return output
        schema = self._program.carry_schema(node)
        if schema is None:
            raise WrongOutput(
                "returned a carry, but carry_schema declares none; let it return the carry's schema"
            )
        try:
            return replace(output, carry=conform(output.carry, schema))
        except WrongOutput as problem:
            raise WrongOutput(f"carry does not fit carry_schema: {problem}") from problem


def _undeclared(names: Iterable[Any], declared: pa.Schema) -> str:
    """What is wrong with names of which some are not declared; nothing if all are."""
    extra = [name for name in names if name not in declared.names]
    if not extra:
        return ""
    which, known = ", ".join(map(repr, extra)), ", ".join(declared.names)
    return (
        f"column {which}, which is not declared (declared are {known}); declare it, or leave it out"
    )


def conform(returned: Any, schema: pa.Schema, declared: pa.Schema | None = None) -> pa.RecordBatch:
    """What user code returned, as one batch of exactly the columns and types of `schema`.

    `declared`: all columns that it may return, wanted or not (None: any).
    """
    extra = ""
    if isinstance(returned, dict):
        extra = "" if declared is None else _undeclared(returned, declared)
        returned = pa.RecordBatch.from_pydict(
            {n: returned[n] for n in schema.names if n in returned}
        )
    if isinstance(returned, pa.Table):
        chunks = returned.combine_chunks().to_batches()
        returned = chunks[0] if chunks else pa.RecordBatch.from_pylist([], returned.schema)
    if not isinstance(returned, pa.RecordBatch):
        raise WrongOutput(f"returned {type(returned).__name__}, not a RecordBatch, Table or dict")
    if returned.schema == schema and not extra:
        return returned
    missing = [name for name in schema.names if name not in returned.schema.names]
    if missing:
        raise WrongOutput(
            f"returned no column {missing[0]!r}; it has {', '.join(returned.schema.names)}"
        )
    if declared is not None:
        extra = extra or _undeclared(returned.schema.names, declared)
    if extra:
        raise WrongOutput(f"returned {extra}")
    arrays = []
    for field in schema:
        column = returned.column(field.name)
        if column.type != field.type:
            try:
                column = column.cast(field.type)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as problem:
                raise WrongOutput(
                    f"column {field.name!r} is declared {field.type} but was returned as "
                    f"{column.type}: {problem}"
                ) from problem
        arrays.append(column)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
