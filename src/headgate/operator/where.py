"""Conditions on rows: `where=` of aggregates, pyarrow expressions such as `pc.field("x") > 0`.

All conditions of an operator are computed in one pass over a batch, each of them once. A condition
that is null for a row does not hold for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import acero

from headgate.arrays import Bools
from headgate.errors import DeclarationError


def check_where(where: Any, rows: pa.Schema, operator: str) -> None:
    """Raise unless it is a condition on rows like these."""
    if where is None:
        return
    if not isinstance(where, pc.Expression):
        raise DeclarationError(
            f"{operator}: where= got {where!r}; write an expression such as pc.field('x') > 0 "
            "(import pyarrow.compute as pc)",
            operator=operator,
        )
    try:
        kind = _computed([where], pa.table([pa.array([], f.type) for f in rows], schema=rows))[0]
    except pa.ArrowException as problem:
        raise DeclarationError(
            f"{operator}: where={where} does not fit the rows, which have {', '.join(rows.names)}: "
            f"{str(problem).splitlines()[0]}",
            operator=operator,
        ) from problem
    if not pa.types.is_boolean(kind.type):
        raise DeclarationError(
            f"{operator}: where={where} is of type {kind.type}; it must be true or false",
            operator=operator,
        )


def read_by(conditions: Sequence[Any], rows: pa.Schema) -> set[str]:
    """The columns that conditions read: those without which they cannot be computed."""
    distinct, _ = _distinct(conditions)
    found: set[str] = set()
    if not distinct:
        return found
    empty = rows.empty_table()
    for number, name in enumerate(rows.names):
        try:
            _computed(distinct, empty.remove_column(number))
        except pa.ArrowException:
            found.add(name)
    return found


def masks_of(conditions: Sequence[Any], batch: pa.RecordBatch) -> list[Bools | None]:
    """For each condition which rows it is true for; None where there is no condition."""
    distinct, which = _distinct(conditions)
    if not distinct:
        return [None] * len(conditions)
    columns = _computed(distinct, pa.Table.from_batches([batch]))
    masks = [np.asarray(c.fill_null(False).to_numpy(zero_copy_only=False)) for c in columns]
    return [None if number is None else masks[number] for number in which]


def _distinct(conditions: Sequence[Any]) -> tuple[list[pc.Expression], list[int | None]]:
    """The different conditions, and which of them each is."""
    distinct: list[pc.Expression] = []
    which: list[int | None] = []
    for where in conditions:
        if where is None:
            which.append(None)
            continue
        same = (number for number, other in enumerate(distinct) if other.equals(where))
        number = next(same, len(distinct))
        if number == len(distinct):
            distinct.append(where)
        which.append(number)
    return distinct, which


def _computed(expressions: Sequence[pc.Expression], rows: pa.Table) -> list[pa.Array]:
    names = [str(number) for number in range(len(expressions))]
    plan = [
        acero.Declaration("table_source", acero.TableSourceNodeOptions(rows)),
        acero.Declaration("project", acero.ProjectNodeOptions(list(expressions), names)),
    ]
    table = acero.Declaration.from_sequence(plan).to_table(use_threads=False)
    return [column.combine_chunks() for column in table.columns]
