"""The contract of a stateful operator.

An operator is inert data until a slot runs it: it must pickle, and it must be **pure** given its
rows, its state and the epoch's clock (no wall clock, no unseeded randomness), because Spark may
run any task twice. It sees many rows at once and answers with Arrow.

Some operators can also do their work in pieces: `process` in any slot, on a state that starts from
nothing, and `absorb` in the slot that owns the key. They say so with `mergeable`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa

from headgate.arrays import I64, Bools
from headgate.errors import DeclarationError, SchemaMismatch
from headgate.operator.rows import EpochClock, KeyedRows, Partials
from headgate.operator.timers import FiredTimers
from headgate.state.layout import StateSchema, layout_of
from headgate.state.session import StateSession
from headgate.topology.arguments import ttl_ms
from headgate.topology.joining import Sides
from headgate.topology.keys import Key

Emit = Literal["updates", "rows", "running", "changes"]


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
    origins: I64 | None = None
    dead: dict[int, str] = field(default_factory=dict)
    late: int = 0
    carry: pa.RecordBatch | None = None


@dataclass(frozen=True)
class StateFields:
    """What the operator keeps: value columns, and sub-key columns if it has several rows a key.

    `defaults`: value columns that may be added to a state that is there already, with what older
    rows hold in them (None: null, or nothing but zeros in a column that cannot be null).
    """

    values: pa.Schema
    sub: pa.Schema = field(default_factory=lambda: pa.schema([]))
    defaults: Mapping[str, Any] = field(default_factory=dict)


class StatefulOperator:
    """Base of all stateful operators. Subclass it, or use a built-in.

    `ordered`: all rows of an epoch arrive in one call, in source order (gives up the in-memory
    bypass). `ttl`: state of a key untouched for that long (processing time; a timedelta, or text
    such as "1 hour") is forgotten.
    `ends_epochs`: `finish` must be called even when no row came (windows, timers).
    `whole_epochs`: all rows of an epoch arrive in one call, in any order. `tells`: a column of its
    output, `change`, says that rows replace others. `replaces`: rows of its output replace earlier
    ones, and no column says so. `adds_rows`: each row counts, also one that replaces another.
    `sides`: of an operator that joins two inputs, how they share one schema
    (`topology/joining.py`).
    """

    kind: ClassVar[str] = "stateful"
    ordered: bool = False
    ttl: str | timedelta | None = None
    ends_epochs: bool = False
    whole_epochs: bool = False
    tells: bool = False
    replaces: bool = False
    adds_rows: bool = False
    sides: Sides | None = None

    def state_fields(self, rows: pa.Schema, key: Sequence[str]) -> StateFields:
        """Declare the state. Raise a DeclarationError if the input does not fit."""
        raise NotImplementedError

    def output_schema(self, rows: pa.Schema, key: Sequence[str]) -> pa.Schema:
        """Declare the rows that `process` and `finish` return."""
        raise NotImplementedError

    def declared(self, rows: pa.Schema, key: Sequence[str]) -> pa.Schema:
        """The checked output schema behind this input: what a declaration asks. Not to override."""
        who = type(self).__name__
        answers: dict[str, Any] = {}
        for method, wanted in (("state_fields", StateFields), ("output_schema", pa.Schema)):
            try:
                answers[method] = getattr(self, method)(rows, key)
            except NotImplementedError as missing:
                raise DeclarationError(
                    f"{who} does not define {method}(rows, key), which every stateful operator "
                    f"must; return a {wanted.__name__}",
                    operator=who,
                ) from missing
            if not isinstance(answers[method], wanted):
                raise DeclarationError(
                    f"{method} of {who} returned a {type(answers[method]).__name__}; it must "
                    f"return a {wanted.__name__}",
                    operator=who,
                )
        for kept in (*answers["state_fields"].values, *answers["state_fields"].sub):
            try:
                layout_of(kept.name, kept)
            except SchemaMismatch as refused:
                raise SchemaMismatch(f"{who}: {refused}", column=kept.name, operator=who) from None
        try:
            ttl_ms(self.ttl)
        except DeclarationError as refused:
            raise DeclarationError(f"ttl of {who}: {refused}", operator=who) from None
        schema: pa.Schema = answers["output_schema"]
        return schema

    def carry_schema(self, rows: pa.Schema, key: Sequence[str]) -> pa.Schema | None:
        """Schema of `Output.carry`, or None (default) if `process` never returns one.

        An epoch may take several tasks (levels) in a slot, and only the last of them calls
        `finish`. A carry is how earlier calls reach it: the runtime collects the carries of all
        `process` calls of the slot and epoch, in order, and hands them over as one batch. It
        crosses an exchange: keep it small, and a pure function of the rows.
        """
        return None

    def beside(self, rows: pa.Schema, key: Sequence[str]) -> dict[str, StateSchema]:
        """State tables besides its own, by name; their keys begin with the operator's key.

        It has them as `state.beside[name]`. They are committed and moved with its own.
        """
        return {}

    def needs(self, rows: pa.Schema, key: Sequence[str], wanted: set[str]) -> set[str]:
        """Input columns that must arrive if consumers want `wanted` of the output; default all."""
        return set(rows.names)

    def known_by(self, key: Sequence[str]) -> tuple[str, ...] | None:
        """Output columns that tell a row from others, if it tells changes: at most one change of a
        row an epoch. None: rows are taken back with all their values, and equal ones count each.
        """
        return None

    def passes(self, rows: pa.Schema) -> set[str]:
        """Input columns that `process` puts out as they came, with each row's origin; default none.

        Those that it does not need for itself may be null on the way: their values wait elsewhere.
        """
        return set()

    def process(
        self, rows: KeyedRows, state: StateSession, clock: EpochClock
    ) -> Output | pa.RecordBatch | None:
        """Take in a batch of rows. May be called several times per epoch."""
        raise NotImplementedError

    def may_wait(self, rows: pa.RecordBatch, side: int, clock: EpochClock) -> Bools | None:
        """Which rows may as well come with the last of the epoch's; None (default): none.

        An epoch may take several tasks (levels) in a slot. Rows that wait are sent on to the slot's
        last one, which costs less than to keep them in state for so long. `rows` are those of a
        side, as they came.
        """
        return None

    def finish(
        self, state: StateSession, clock: EpochClock, carry: pa.RecordBatch | None = None
    ) -> pa.RecordBatch | None:
        """All rows of the epoch are in. Called once per slot when rows came or `ends_epochs`.

        `carry` is what the epoch's `process` calls returned as such, concatenated (None: nothing).
        """
        return None

    @property
    def uses_timers(self) -> bool:
        """Does it set timers? Then it has `state.timers`, and `on_timers` is called when some fire.

        Default no. A subclass that says yes has timers committed and moved with its state.
        """
        return False

    def on_timers(
        self, timers: FiredTimers, state: StateSession, clock: EpochClock
    ) -> Output | pa.RecordBatch | None:
        """These timers are due; all rows of the epoch have been processed. Each fires once.

        A timer that is set here and is due already fires in the same epoch, in a later call.
        `Output.dead` numbers timers that are refused; their keys become dead letters.
        """
        raise NotImplementedError

    @property
    def emits_at_end(self) -> bool:
        """May `finish` return rows? If not, consumers of a split operator need not wait for it."""
        return True

    def held_from(self, watermark_us: int) -> int | None:
        """The earliest event time that later epochs may still emit, with the watermark here.

        None (default): rows are passed on in the epoch they came in, so nothing is held back. An
        operator with windows answers with the start of the first one that is open. At most
        `watermark_us`, and it never falls while the watermark rises.
        """
        return None

    @property
    def by_clock(self) -> bool:
        """Does it act by processing time? Then an idle stream ticks for it."""
        return self.ttl is not None

    def late_by(self, side: int = 0) -> tuple[str, ...]:
        """Input columns of times by which rows are late, so that they are dropped; default: none.

        The first one decides, as `is_late` says; rows that lack one of them are bad, not late. Of
        an operator that joins two inputs, those of a side. It makes `stream.late()` possible.
        """
        return ()

    def is_late(self, times_us: I64, clock: EpochClock) -> Bools:
        """Which rows with these times are dropped as late: by these and the clock alone."""
        return np.zeros(len(times_us), np.bool_)

    @property
    def wants_dead_letters(self) -> bool:
        """Does it send rows to the dead letters on purpose, so that the flow must take them?"""
        return False

    # Work in pieces --------------------------------------------------------------------------

    def mergeable(self, rows: pa.Schema, key: Sequence[str]) -> bool:
        """May rows of a key be processed in a slot that does not own it? Default no.

        Say yes only if (1) what `process` returns does not depend on the state, and (2) for any
        split of a key's rows, `process` of each part on an empty state, then `absorb` of all the
        partials in any order, leaves the state that `process` of all rows would have left, to the
        last bit, and has `finish` emit the same rows. Depends on the input: integers add up in any
        order, floats do not.
        """
        return False

    def why_not_mergeable(self, rows: pa.Schema, key: Sequence[str]) -> str:
        """Why `mergeable` says no, and the way out if there is one: half a sentence."""
        if self.ordered:
            return "ordered=True needs all rows of a key in one place"
        return "what it makes of parts of a key's rows cannot be merged into what it makes of all"

    def absorb(self, partials: Partials, state: StateSession, clock: EpochClock) -> Output | None:
        """Merge partials into the stored state of their keys, as if their rows had come here.

        Return a carry if `process` would have, so that `finish` knows the keys. `Output.dead`
        numbers partials that cannot be merged; there are no rows to pass on.
        """
        raise self._not_mergeable()

    def _not_mergeable(self) -> DeclarationError:
        return DeclarationError(
            f"{self!r} cannot be split over slots: its partial states cannot be merged into what "
            "one slot would have made of the same rows. Keep its keys in one slot each",
            operator=type(self).__name__,
        )

    def describe(self) -> dict[str, Any]:
        """Settings that matter to stored state; compared when a flow resumes."""
        return {"operator": type(self).__name__}


def state_schema(operator: StatefulOperator, rows: pa.Schema, key: Sequence[str]) -> StateSchema:
    """Schema of the operator's state behind this input and key."""
    fields = operator.state_fields(rows, key)
    columns = pa.schema([rows.field(name) for name in key])
    return StateSchema(columns, fields.values, fields.sub, near=Key.of(key).near)


def as_output(returned: Output | pa.RecordBatch | None) -> Output:
    """What `process` or `absorb` returned, as an Output."""
    return returned if isinstance(returned, Output) else Output(returned)
