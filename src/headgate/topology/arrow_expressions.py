"""pyarrow's expressions over batches: their types, the columns they read, their values."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc


def values_of(
    expressions: Sequence[pc.Expression], batch: pa.RecordBatch | pa.Table
) -> list[pa.Array]:
    """The value of each expression in every row, in the order of the rows."""
    from pyarrow import acero  # loads slowly, and workers without expressions need it not

    table = batch if isinstance(batch, pa.Table) else pa.Table.from_batches([batch])
    names = [str(number) for number in range(len(expressions))]
    steps = [
        acero.Declaration("table_source", acero.TableSourceNodeOptions(table)),
        acero.Declaration("project", acero.ProjectNodeOptions(list(expressions), names)),
    ]
    made = acero.Declaration.from_sequence(steps).to_table(use_threads=False)
    return [_whole(column) for column in made.columns]


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def type_of(expression: pc.Expression, schema: pa.Schema) -> pa.DataType:
    """The type of an expression over such columns; raises ArrowInvalid if it does not fit them."""
    return values_of([expression], schema.empty_table())[0].type


def columns_read(expression: pc.Expression, schema: pa.Schema) -> frozenset[str]:
    """The columns that an expression needs: without any of them it has no meaning.

    pyarrow does not tell, so it is asked with and without parts of them: about 2 k log2(n) times
    for k of n columns.
    """
    needed: set[str] = set()
    parts = [list(schema.names)]
    while parts:
        part = parts.pop()
        rest = [field for field in schema if field.name not in part]
        try:
            type_of(expression, pa.schema(rest))
        except (pa.ArrowException, ValueError, TypeError):
            if len(part) == 1:
                needed.add(part[0])
            else:
                half = len(part) // 2
                parts += [part[:half], part[half:]]
    return frozenset(needed)
