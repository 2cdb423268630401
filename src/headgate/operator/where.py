"""Conditions on rows: `where=` of aggregates, as SQL text or as expressions of pyarrow.

All conditions of an operator are computed in one pass over a batch, each of them once. A condition
that is null for a row does not hold for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.arrays import Bools
from headgate.errors import DeclarationError
from headgate.topology.arrow_expressions import values_of
from headgate.topology.expressions import Condition, condition_of


def check_where(where: Any, rows: pa.Schema, operator: str) -> None:
    """Raise unless it is a condition on rows like these."""
    if where is None:
        return
    if not isinstance(where, str | pc.Expression):
        raise DeclarationError(
            f"{operator}: where= got {where!r}; write SQL text such as 'x > 0', or "
            "pc.field('x') > 0 (import pyarrow.compute as pc)",
            operator=operator,
        )
    condition_of(where, rows, f"where= of {operator}")


def read_by(conditions: Sequence[Any], rows: pa.Schema) -> set[str]:
    """The columns that conditions read."""
    given = [where for where in conditions if where is not None]
    return {name for where in given for name in condition_of(where, rows, "where=").reads}


def masks_of(conditions: Sequence[Any], batch: pa.RecordBatch) -> list[Bools | None]:
    """For each condition which rows it is true for; None where there is no condition."""
    distinct: list[pc.Expression] = []
    which: list[int | None] = []
    for where in conditions:
        if where is None:
            which.append(None)
            continue
        expression = _sql(where, batch.schema).expression if isinstance(where, str) else where
        same = (number for number, other in enumerate(distinct) if other.equals(expression))
        number = next(same, len(distinct))
        if number == len(distinct):
            distinct.append(expression)
        which.append(number)
    if not distinct:
        return [None] * len(conditions)
    columns = values_of(distinct, batch)
    masks = [np.asarray(c.fill_null(False).to_numpy(zero_copy_only=False)) for c in columns]
    return [None if number is None else masks[number] for number in which]


@lru_cache(maxsize=256)
def _sql(where: str, rows: pa.Schema) -> Condition:
    return condition_of(where, rows, "where=")
