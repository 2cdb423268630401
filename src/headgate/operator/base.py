"""The contract of a stateful operator.

An operator is inert data until a slot runs it: it must pickle, and it must be **pure** given its
rows, its state and the epoch's clock (no wall clock, no unseeded randomness), because Spark may
run any task twice. It sees many rows at once and answers with Arrow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.errors import DeclarationError, UnknownColumn
from headgate.operator.rows import EpochClock, KeyedRows
from headgate.state.session import StateSession

Emit = Literal["updates", "rows", "running"]


@dataclass(frozen=True)
class Output:
    """Rows to pass on.

    `origins[i]` is the input row that output row i came from: it lets a row keep the order and
    the key of its origin. None means "row i came from input row i" when the counts agree.
    `dead` are input rows that the operator refuses, with a reason each: they go to the
    dead-letter sink, or stop the flow if there is none. `late` counts rows dropped as late.
    `carry` is what the operator wants to find again in `finish` (see `carry_schema`).
    """

    batch: pa.RecordBatch | None = None
    origins: npt.NDArray[np.int64] | None = None
    dead: dict[int, str] = field(default_factory=dict)
    late: int = 0
    carry: pa.RecordBatch | None = None


@dataclass(frozen=True)
class StateFields:
    """What the operator keeps: value columns, and sub-key columns if it has several rows a key."""

    values: pa.Schema
    sub: pa.Schema = field(default_factory=lambda: pa.schema([]))


class StatefulOperator:
    """Base of all stateful operators. Subclass it, or use a built-in.

    `ordered`: all rows of an epoch arrive in one call, in source order (gives up the in-memory
    bypass). `ttl`: state of a key untouched for that long (processing time) is forgotten.
    `ends_epochs`: `finish` must be called even when no row came (windows, timers).
    """

    kind: ClassVar[str] = "stateful"
    ordered: bool = False
    ttl: timedelta | None = None
    ends_epochs: bool = False

    def state_fields(self, rows: pa.Schema, key: Sequence[str]) -> StateFields:
        """Declare the state. Raise a DeclarationError if the input does not fit."""
        raise NotImplementedError

    def output_schema(self, rows: pa.Schema, key: Sequence[str]) -> pa.Schema:
        """Declare the rows that `process` and `finish` return."""
        raise NotImplementedError

    def carry_schema(self, rows: pa.Schema, key: Sequence[str]) -> pa.Schema | None:
        """Schema of `Output.carry`, or None (default) if `process` never returns one.

        An epoch may take several tasks (levels) in a slot, and only the last of them calls
        `finish`. A carry is how earlier calls reach it: the runtime collects the carries of all
        `process` calls of the slot and epoch, in order, and hands them over as one batch. It
        crosses an exchange: keep it small, and a pure function of the rows.
        """
        return None

    def needs(self, rows: pa.Schema, key: Sequence[str], wanted: set[str]) -> set[str]:
        """Input columns that must arrive if consumers want `wanted` of the output; default all."""
        return set(rows.names)

    def process(
        self, rows: KeyedRows, state: StateSession, clock: EpochClock
    ) -> Output | pa.RecordBatch | None:
        """Take in a batch of rows. May be called several times per epoch."""
        raise NotImplementedError

    def finish(
        self, state: StateSession, clock: EpochClock, carry: pa.RecordBatch | None = None
    ) -> pa.RecordBatch | None:
        """All rows of the epoch are in. Called once per slot when rows came or `ends_epochs`.

        `carry` is what the epoch's `process` calls returned as such, concatenated (None: nothing).
        """
        return None

    def describe(self) -> dict[str, Any]:
        """Settings that matter to stored state; compared when a flow resumes."""
        return {"operator": type(self).__name__}


def require_column(rows: pa.Schema, name: str, operator: str) -> pa.Field:
    """The field of that name, or an UnknownColumn that lists what there is."""
    if name not in rows.names:
        raise UnknownColumn(
            f"{operator} reads column {name!r}, but its input has {', '.join(rows.names)}",
            column=name,
            operator=operator,
        )
    return rows.field(name)


def require_numeric(rows: pa.Schema, name: str, operator: str) -> pa.Field:
    found = require_column(rows, name, operator)
    kind = found.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        raise DeclarationError(
            f"{operator} needs a number in column {name!r}, which is {kind}", column=name
        )
    return found
