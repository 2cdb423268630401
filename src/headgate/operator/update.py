"""Update: a plain Python function per key, for what the built-ins do not say."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa

from headgate.arrays import I64
from headgate.errors import DeclarationError, OperatorFailed
from headgate.operator.base import Output, StateFields, StatefulOperator
from headgate.operator.key_calls import KeyCalls
from headgate.operator.rows import EpochClock, Groups, KeyedRows
from headgate.operator.timers import FiredTimers, TimerClock
from headgate.state.rows import Held
from headgate.state.session import StateSession
from headgate.topology.arguments import check_choice
from headgate.topology.schema import SchemaLike, to_schema
from headgate.topology.text import describe, reason_of

RowsAs = Literal["batch", "dicts"]
STATE = "state"
Due = dict[str, tuple[TimerClock, int]]
Changes = dict[str, tuple[TimerClock, int] | None]


@dataclass(frozen=True)
class Update(StatefulOperator):
    """Call `fn(key, rows, state)` once per key and batch; it returns `(new_state, output_rows)`.

    `key` is the key's value, or a tuple of them if it has several columns. `rows` are the key's
    rows in order of arrival, as a RecordBatch, or as a list of dicts with `rows_as="dicts"`.
    `state` is what the last call returned, None at first; a new state of None forgets the key.
    Output rows are None, a list of dicts or a RecordBatch, in the schema `output`.

    A function of four parameters, `fn(key, rows, state, context)`, is also told the time and sets
    timers (`KeyContext`); `on_timer(key, timer, state, context)` is called when one is due and
    returns the same pair. With `process(..., order_by="ts")` and `on_timer` it is called row by
    row, and timers fire between rows, at their time.

    State is pickled: any object will do, yet bytes may differ between equal objects, and a class
    must stay importable as long as its objects are kept. With `state="total bigint, last
    timestamp"` it is columns instead: `fn` gets a dict, and returns a dict or a tuple in that
    order. Those can be read by `query.state` and `inspect`, and columns may be added later:
    `defaults` says what they hold in older rows (null).

    If `fn` raises, or returns something that does not fit, the rows of that key are refused as
    dead letters, its state stays, and the other keys go on. `fn` must be pure. Costs a Python call
    per key and batch, some 5 to 10 µs beside `fn` itself: convenience, not speed. Not mergeable:
    what `fn` keeps is its own affair.

    Examples:
        >>> def longest(key, rows, state):
        ...     best = max([row["word"] for row in rows] + [state or ""], key=len)
        ...     return best, ([{"user": key, "longest": best}] if best != state else None)
        >>> schema = pa.schema({"user": pa.string(), "longest": pa.string()})
        >>> Update(longest, output=schema, rows_as="dicts").describe()
        {'operator': 'Update', 'function': 'longest'}
    """

    fn: Callable[..., tuple[Any, Any]]
    output: pa.Schema
    rows_as: RowsAs = "batch"
    state: SchemaLike | None = field(default=None, kw_only=True)
    defaults: Mapping[str, Any] = field(default_factory=dict, kw_only=True, repr=False)
    on_timer: Callable[..., tuple[Any, Any]] | None = field(default=None, kw_only=True)
    ttl: str | timedelta | None = field(default=None, kw_only=True, repr=False)
    ordered: bool = field(default=False, kw_only=True, repr=False)

    def __post_init__(self) -> None:
        if not callable(self.fn):
            raise DeclarationError(f"Update needs a function, not {self.fn!r}", operator="Update")
        if self.on_timer is not None and not callable(self.on_timer):
            raise DeclarationError(
                f"Update(on_timer=...) needs a function of (key, timer, state, context), not "
                f"{self.on_timer!r}",
                operator="Update",
            )
        object.__setattr__(self, "output", to_schema(self.output))
        check_choice(self.rows_as, "Update: rows_as", get_args(RowsAs), operator="Update")
        if self.state is not None:
            object.__setattr__(self, "state", to_schema(self.state))
        self._check_defaults()

    def _check_defaults(self) -> None:
        columns = pa.schema([]) if self.state is None else to_schema(self.state)
        known = columns.names
        for name, value in self.defaults.items():
            if name in known and value is None and not columns.field(name).nullable:
                raise DeclarationError(
                    f"Update(defaults=...) has null for {name!r}, which is declared not null",
                    operator="Update",
                    column=name,
                )
            if name not in known:
                raise DeclarationError(
                    f"Update(defaults=...) names {name!r}, and state= has "
                    f"{', '.join(known) or 'no columns'}",
                    operator="Update",
                    column=name,
                )

    def state_fields(self, rows: pa.Schema, key: Sequence[str]) -> StateFields:
        if self.state is not None:
            columns = to_schema(self.state)
            nulls = {column.name: None for column in columns if column.nullable}
            return StateFields(columns, defaults={**nulls, **self.defaults})
        return StateFields(pa.schema([pa.field(STATE, pa.large_binary())]))

    def output_schema(self, rows: pa.Schema, key: Sequence[str]) -> pa.Schema:
        return self.output

    @property
    def uses_timers(self) -> bool:
        return self.on_timer is not None

    def process(self, rows: KeyedRows, state: StateSession, clock: EpochClock) -> Output:
        if not len(rows):
            return Output()
        groups = rows.groups
        in_order = rows.batch.take(pa.array(groups.order))
        by_row = rows.times_us is not None and self.on_timer is not None
        times = None if rows.times_us is None else rows.times_us[groups.order]

        def pieces(group: int) -> list[tuple[int | None, Any]]:
            start, size = groups.starts[group], groups.sizes[group]
            some = in_order.slice(start, size)
            given = some.to_pylist() if self.rows_as == "dicts" else some
            if not by_row:
                return [(None, given)]
            assert times is not None
            if isinstance(given, list):
                return [(int(times[start + i]), given[i : i + 1]) for i in range(size)]
            return [(int(times[start + i]), given.slice(i, 1)) for i in range(size)]

        due: dict[int, Due] = {}
        timers = state.timers.due(clock) if by_row else None
        if timers is not None:
            due = _of_keys(timers, rows, len(groups))
        calls = self._calls(clock, fires_processing=False)
        made, owners, failed = self._run(groups, pieces, state, calls, due)
        dead = {
            int(row): why
            for group, why in failed.items()
            for row in groups.order[groups.starts[group] :][: groups.sizes[group]]
        }
        if made is None:
            return Output(dead=dead)
        return Output(made, groups.last[owners], dead)

    def on_timers(self, timers: FiredTimers, state: StateSession, clock: EpochClock) -> Output:
        groups = timers.keys.groups
        due: dict[int, Due] = {group: {} for group in range(len(groups))}
        for at, group in enumerate(groups.codes.tolist()):
            due[group][timers.names[at]] = timers.clocks[at], int(timers.at_us[at])
        calls = self._calls(clock, fires_processing=True)
        made, _, failed = self._run(groups, lambda group: [], state, calls, due)
        dead = {at: failed[g] for at, g in enumerate(groups.codes.tolist()) if g in failed}
        return Output(made, dead=dead)

    def describe(self) -> dict[str, Any]:
        return {"operator": "Update", "function": getattr(self.fn, "__name__", "function")}

    def _calls(self, clock: EpochClock, fires_processing: bool) -> KeyCalls:
        return KeyCalls(self.fn, self.on_timer, takes_context(self.fn), clock, fires_processing)

    def _run(
        self,
        groups: Groups,
        pieces: Callable[[int], list[tuple[int | None, Any]]],
        state: StateSession,
        calls: KeyCalls,
        due: Mapping[int, Due],
    ) -> tuple[pa.RecordBatch | None, list[int], dict[int, str]]:
        """Call the functions for every key and keep what they say; output rows, whose they are,
        and the keys that failed, of which nothing is kept.
        """
        befores = self._states(state.read(groups))
        after: dict[int, Any] = {}
        answers: list[tuple[int, Any]] = []
        changes: dict[int, Changes] = {}
        failed: dict[int, str] = {}
        for group, key in enumerate(_keys(groups.columns)):
            before = befores(group, key)
            try:
                new, made, changed = calls.run(key, pieces(group), before, due.get(group, {}))
                after[group] = self._kept(new)
                answers += [(group, answer) for answer in made]
                changes[group] = changed
            except Exception as error:
                failed[group] = describe(error) if failed else reason_of(error, self.fn)
        batches, owners = self._fit(answers, failed)
        values = self._columns(after, failed)
        kept = [g for g, new in after.items() if new is not None and g not in failed]
        gone = [g for g, new in after.items() if new is None and g not in failed]
        state.write(groups.take(np.array(kept, np.int64)), values)
        if gone:
            state.remove(groups.take(np.array(gone, np.int64)))
        changes = {group: changed for group, changed in changes.items() if group not in failed}
        _set_timers(groups, changes, state)
        if failed and owners:
            keep = np.array([g not in failed for g in owners], np.bool_)
            owners = [g for g in owners if g not in failed]
            batches = [pa.concat_batches(batches).filter(pa.array(keep))]
        return (pa.concat_batches(batches) if owners else None), owners, failed

    # --- state ------------------------------------------------------------------------------

    def _states(self, held: Held) -> Callable[[int, Any], Any]:
        """How the state of a key is read back."""
        if self.state is None:
            pickles = held[STATE]
            return lambda group, key: _unpickled(pickles[group].as_py(), key)
        names = to_schema(self.state).names
        columns = [held.arrow(name).to_pylist() for name in names]
        rows = [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]
        return lambda group, key: rows[group] if held.found[group] else None

    def _kept(self, new: Any) -> Any:
        """A new state as it will be kept: a pickle, or a dict of columns; None forgets the key."""
        if new is None:
            return None
        if self.state is None:
            return pickle.dumps(new, protocol=5)
        names = to_schema(self.state).names
        if isinstance(new, tuple | list):
            if len(new) != len(names):
                raise TypeError(
                    f"the new state has {len(new)} values, and state= has {len(names)} columns: "
                    f"{', '.join(names)}"
                )
            return dict(zip(names, new, strict=True))
        if not isinstance(new, Mapping):
            raise TypeError(
                f"the new state must be a dict or a tuple of {', '.join(names)}, not {new!r}"[:200]
            )
        if set(new) != set(names):
            wrong = sorted(set(map(str, new)) ^ set(names))
            raise KeyError(
                f"the new state and state= differ in {', '.join(wrong)}; give each of "
                f"{', '.join(names)} (None is null)"
            )
        return new

    def _columns(self, after: dict[int, Any], failed: dict[int, str]) -> dict[str, pa.Array]:
        """State columns of the keys that stay; those whose values do not fit join `failed`."""
        kept = [g for g, new in after.items() if new is not None and g not in failed]
        if self.state is None:
            return {STATE: pa.array([after[group] for group in kept], pa.large_binary())}
        schema = to_schema(self.state)
        try:
            return {f.name: pa.array([after[g][f.name] for g in kept], f.type) for f in schema}
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            for group in kept:  # one by one, to find out whose
                for column in schema:
                    try:
                        pa.array([after[group][column.name]], column.type)
                    except Exception as error:
                        failed[group] = f"state column {column.name!r}: {describe(error)}"
            return self._columns(after, failed)

    # --- output ------------------------------------------------------------------------------

    def _fit(
        self, answers: list[tuple[int, Any]], failed: dict[int, str]
    ) -> tuple[list[pa.RecordBatch], list[int]]:
        """All output rows in the declared schema, and the group of each; misfits join `failed`.

        Dicts are converted together: alone they would cost as much as the call.
        """
        dicts = [(group, a) for group, a in answers if isinstance(a, list) and a]
        others = [(g, a) for g, a in answers if a is not None and not isinstance(a, list)]
        batches: list[pa.RecordBatch] = []
        owners: list[int] = []
        try:
            together = [row for _, answer in dicts for row in answer]
            if together:
                batches.append(self._converted(together))
                owners += [group for group, answer in dicts for _ in answer]
        except Exception:
            others = dicts + others  # one by one, to find out whose
        for group, answer in others:
            try:
                batches.append(self._converted(answer))
                owners += [group] * batches[-1].num_rows
            except Exception as error:
                failed[group] = describe(error) if failed else reason_of(error, self.fn)
        return batches, owners

    def _converted(self, answer: Any) -> pa.RecordBatch:
        if isinstance(answer, pa.RecordBatch):
            self._check_names(answer.schema.names, "a batch")
            return answer.select(self.output.names).cast(self.output)
        if not isinstance(answer, list):
            kind = type(answer).__name__
            raise TypeError(f"output rows must be dicts in a list or a RecordBatch, not a {kind}")
        names = set(self.output.names)
        for row in answer:
            if type(row) is not dict and not isinstance(row, Mapping):
                kind = type(row).__name__
                raise TypeError(f"output rows must be dicts in a list, not a list of {kind}")
            if row.keys() != names:
                self._check_names(row, "an output row")
        return pa.RecordBatch.from_pylist(answer, schema=self.output)

    def _check_names(self, names: Iterable[str], what: str) -> None:
        """Raise unless these are the columns that `output=` declares."""
        given = set(names)
        unknown = ", ".join(sorted(str(name) for name in given - {*self.output.names}))
        if unknown:
            raise KeyError(f"{what} has columns that output= does not declare: {unknown}")
        missing = ", ".join(repr(name) for name in self.output.names if name not in given)
        if missing:
            raise KeyError(
                f"{what} has no column {missing}, which output= declares; give it, with None if "
                "it is null"
            )


def takes_context(function: Callable[..., Any]) -> bool:
    """Has it a fourth parameter, for the context?"""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # of some built-in functions
        return False
    kinds = inspect.Parameter
    if any(p.kind is kinds.VAR_POSITIONAL for p in parameters):
        return True
    positional = (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in positional for p in parameters) > 3


def _of_keys(timers: FiredTimers, rows: KeyedRows, keys: int) -> dict[int, Due]:
    """Those event-time timers that are of the keys of these rows, by group."""
    both = KeyedRows(
        pa.concat_batches([rows.batch.select(list(rows.key)), timers.keys.batch]),
        rows.key,
        np.concatenate([rows.h, timers.keys.h]),
        rows.identity,
    )
    due: dict[int, Due] = {}
    for at, group in enumerate(both.groups.codes[len(rows) :].tolist()):
        if group < keys and timers.clocks[at] == "event":
            due.setdefault(group, {})[timers.names[at]] = "event", int(timers.at_us[at])
    return due


def _set_timers(groups: Groups, changes: Mapping[int, Changes], state: StateSession) -> None:
    """Keep what the functions said about timers."""
    by_clock: dict[TimerClock | None, list[tuple[int, str, int]]] = {}
    for group, changed in changes.items():
        for name, timer in changed.items():
            clock, at = (None, 0) if timer is None else timer
            by_clock.setdefault(clock, []).append((group, name, at))
    for clock, found in by_clock.items():
        keys = groups.take(np.array([group for group, _, _ in found], np.int64))
        names = [name for _, name, _ in found]
        if clock is None:
            state.timers.cancel(keys, name=names)
        else:
            at_us: I64 = np.array([at for _, _, at in found], np.int64)
            state.timers.set(keys, at_us, name=names, clock=clock)


def _keys(columns: pa.RecordBatch) -> list[Any]:
    values = [column.to_pylist() for column in columns.columns]
    if len(values) == 1:
        return list(values[0])
    return list(zip(*values, strict=True)) or [()]


def _unpickled(kept: bytes | None, key: Any) -> Any:
    if kept is None:
        return None
    try:
        return pickle.loads(kept)
    except Exception as error:
        raise OperatorFailed(
            f"Update cannot read back the state of key {key!r} ({describe(error)}); is its class "
            "still importable under the same name?",
            key=repr(key),
        ) from error
