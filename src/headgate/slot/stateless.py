"""Run a stateless operator on a batch: map, filter, flat_map; vectorised or row by row.

Checks what user code returns: row count, columns and types. A value that cannot be cast to the
declared type is an error of that operator, not a surprise three operators later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headgate.operator.user_code import describe, reason_of
from headgate.slot.failure import DeadLetters, find_bad_rows
from headgate.slot.rows import Rows
from headgate.topology.graph import Node

I64 = npt.NDArray[np.int64]


class WrongOutput(Exception):
    """User code returned something that the declaration does not allow."""


def run_stateless(
    node: Node,
    rows: Rows,
    dead: DeadLetters,
    clock_ns: Callable[[], int] | None = None,
    spent_ns: I64 | None = None,
) -> Rows:
    """The operator's output; bad rows go to `dead` (which may refuse and raise).

    With a clock, the time of each row of a per-row function is put into `spent_ns`.
    """
    if node.spec.per_row:
        return _run_per_row(node, rows, dead, clock_ns, spent_ns)

    def attempt(part: I64) -> None:
        _run_vectorised(node, rows.take(part))

    try:
        return _run_vectorised(node, rows)
    except Exception as problem:
        if not dead.wanted:
            function = node.spec.function
            raise dead.blame(
                node.name, rows.batch, problem, attempt, function=function
            ) from problem
    bad = find_bad_rows(len(rows), attempt)
    dead.refuse(node.name, rows.batch, bad)
    good = np.setdiff1d(np.arange(len(rows)), np.fromiter(bad, np.int64))
    if not len(good):
        return rows.derived(pa.RecordBatch.from_pylist([], schema=node.schema), good)
    return _run_vectorised(node, rows.take(good))


def _run_vectorised(node: Node, rows: Rows) -> Rows:
    function = node.spec.function
    if node.kind == "filter":
        return _filter(function, rows)
    if node.kind == "map":
        batch = conform(function(rows.batch), node.schema)
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
    batch, origins = conform(returned[0], node.schema), np.asarray(returned[1], np.int64)
    if len(origins) != batch.num_rows:
        raise WrongOutput(f"flat_map returned {batch.num_rows} rows and {len(origins)} origins")
    if len(origins) and not (origins.min() >= 0 and origins.max() < len(rows)):
        raise WrongOutput(f"flat_map returned an origin outside 0..{len(rows) - 1}")
    return rows.derived(batch, origins)


def _filter(predicate: Any, rows: Rows) -> Rows:
    if isinstance(predicate, pc.Expression):
        number = "row"
        while number in rows.batch.schema.names:
            number += "_"
        kept = pa.Table.from_batches([rows.batch]).append_column(
            number, pa.array(np.arange(len(rows)))
        )
        return rows.take(kept.filter(predicate)[number].to_numpy())
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
    given = rows.batch.to_pylist()
    before = 0 if clock_ns is None else clock_ns()
    for index, row in enumerate(given):
        if clock_ns is not None and spent_ns is not None and index:
            now = clock_ns()
            spent_ns[index - 1], before = now - before, now
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
        spent_ns[-1] = clock_ns() - before
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
    for field in schema:
        pa.scalar(row[field.name], field.type)


def conform(returned: Any, schema: pa.Schema) -> pa.RecordBatch:
    """What user code returned, as one batch of exactly the declared columns and types."""
    if isinstance(returned, dict):
        returned = pa.RecordBatch.from_pydict(
            {n: returned[n] for n in schema.names if n in returned}
        )
    if isinstance(returned, pa.Table):
        chunks = returned.combine_chunks().to_batches()
        returned = chunks[0] if chunks else pa.RecordBatch.from_pylist([], returned.schema)
    if not isinstance(returned, pa.RecordBatch):
        raise WrongOutput(f"returned {type(returned).__name__}, not a RecordBatch, Table or dict")
    if returned.schema == schema:
        return returned
    missing = [name for name in schema.names if name not in returned.schema.names]
    if missing:
        raise WrongOutput(
            f"returned no column {missing[0]!r}; it has {', '.join(returned.schema.names)}"
        )
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
