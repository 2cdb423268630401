"""Update: a plain Python function per key, for what the built-ins do not say."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa

from headgate.errors import DeclarationError, OperatorFailed
from headgate.operator.base import Output, StateFields, StatefulOperator
from headgate.operator.rows import EpochClock, KeyedRows
from headgate.state.session import StateSession
from headgate.topology.arguments import check_choice
from headgate.topology.schema import to_schema
from headgate.topology.text import describe, reason_of

RowsAs = Literal["batch", "dicts"]
STATE = "state"


@dataclass(frozen=True)
class Update(StatefulOperator):
    """Call `fn(key, rows, state)` once per key and batch; it returns `(new_state, output_rows)`.

    `key` is the key's value, or a tuple of them if it has several columns. `rows` are the key's
    rows in order of arrival, as a RecordBatch, or as a list of dicts with `rows_as="dicts"`.
    `state` is what the last call returned, None at first; a new state of None forgets the key.
    Output rows are None, a list of dicts or a RecordBatch, in the schema `output`.

    If `fn` raises, or returns something that does not fit, the rows of that key are refused as
    dead letters, its state stays, and the other keys go on. State is pickled: any object will do,
    yet bytes may differ between equal objects, and a class must stay importable as long as its
    objects are kept. `fn` must be pure. Costs a Python call per key and batch, some 5 to 10 µs
    beside `fn` itself: convenience, not speed. Not mergeable: what `fn` keeps is its own affair.

    Examples:
        >>> def longest(key, rows, state):
        ...     best = max([row["word"] for row in rows] + [state or ""], key=len)
        ...     return best, ([{"user": key, "longest": best}] if best != state else None)
        >>> schema = pa.schema({"user": pa.string(), "longest": pa.string()})
        >>> Update(longest, output=schema, rows_as="dicts").describe()
        {'operator': 'Update', 'function': 'longest'}
    """

    fn: Callable[[Any, Any, Any], tuple[Any, Any]]
    output: pa.Schema
    rows_as: RowsAs = "batch"
    ttl: str | timedelta | None = field(default=None, kw_only=True, repr=False)
    ordered: bool = field(default=False, kw_only=True, repr=False)

    def __post_init__(self) -> None:
        if not callable(self.fn):
            raise DeclarationError(f"Update needs a function, not {self.fn!r}", operator="Update")
        object.__setattr__(self, "output", to_schema(self.output))
        check_choice(self.rows_as, "Update: rows_as", get_args(RowsAs), operator="Update")

    def state_fields(self, rows: pa.Schema, key: Sequence[str]) -> StateFields:
        return StateFields(pa.schema([pa.field(STATE, pa.large_binary())]))

    def output_schema(self, rows: pa.Schema, key: Sequence[str]) -> pa.Schema:
        return self.output

    def process(self, rows: KeyedRows, state: StateSession, clock: EpochClock) -> Output:
        if not len(rows):
            return Output()
        groups = rows.groups
        in_order = rows.batch.take(pa.array(groups.order))
        held = state.read(groups)[STATE]
        after: dict[int, bytes | None] = {}
        answers: dict[int, Any] = {}
        failed: dict[int, str] = {}
        for group, key in enumerate(_keys(groups.columns)):
            some = in_order.slice(groups.starts[group], groups.sizes[group])
            before = _unpickled(held[group].as_py(), key)
            try:
                given = some.to_pylist() if self.rows_as == "dicts" else some
                answer = self.fn(key, given, before)
                if not isinstance(answer, tuple | list) or len(answer) != 2:
                    wrong = f"it must return (new_state, output_rows), not {answer!r}"
                    raise TypeError(wrong[:200])
                new, made = answer
                after[group] = None if new is None else pickle.dumps(new, protocol=5)
                answers[group] = made
            except Exception as error:
                failed[group] = describe(error) if failed else reason_of(error, self.fn)
        batches, owners = self._fit(answers, failed)
        after = {group: new for group, new in after.items() if group not in failed}
        kept = [group for group, new in after.items() if new is not None]
        gone = [group for group, new in after.items() if new is None]
        values = pa.array([after[group] for group in kept], pa.large_binary())
        state.write(groups.take(np.array(kept, np.int64)), {STATE: values})
        if gone:
            state.remove(groups.take(np.array(gone, np.int64)))
        dead = {
            int(row): why
            for group, why in failed.items()
            for row in groups.order[groups.starts[group] :][: groups.sizes[group]]
        }
        if not owners:
            return Output(dead=dead)
        return Output(pa.concat_batches(batches), groups.last[owners], dead)

    def describe(self) -> dict[str, Any]:
        return {"operator": "Update", "function": getattr(self.fn, "__name__", "function")}

    def _fit(
        self, answers: dict[int, Any], failed: dict[int, str]
    ) -> tuple[list[pa.RecordBatch], list[int]]:
        """All output rows in the declared schema, and the group of each; misfits join `failed`.

        Dicts are converted together: alone they would cost as much as the call.
        """
        dicts = {group: a for group, a in answers.items() if isinstance(a, list) and a}
        others = {g: a for g, a in answers.items() if a is not None and not isinstance(a, list)}
        batches: list[pa.RecordBatch] = []
        owners: list[int] = []
        try:
            together = [row for answer in dicts.values() for row in answer]
            if together:
                batches.append(self._converted(together))
                owners += [group for group, answer in dicts.items() for _ in answer]
        except Exception:
            others = {**dicts, **others}  # one by one, to find out whose
        for group, answer in others.items():
            try:
                batches.append(self._converted(answer))
                owners += [group] * batches[-1].num_rows
            except Exception as error:
                failed[group] = describe(error) if failed else reason_of(error, self.fn)
        return batches, owners

    def _converted(self, answer: Any) -> pa.RecordBatch:
        if isinstance(answer, pa.RecordBatch):
            return answer.select(self.output.names).cast(self.output)
        if not isinstance(answer, list):
            kind = type(answer).__name__
            raise TypeError(f"output rows must be dicts in a list or a RecordBatch, not a {kind}")
        names = set(self.output.names)
        for row in answer:
            if type(row) is not dict and not isinstance(row, Mapping):
                kind = type(row).__name__
                raise TypeError(f"output rows must be dicts in a list, not a list of {kind}")
            if not names.issuperset(row):
                unknown = ", ".join(sorted(str(name) for name in set(row) - names))
                raise KeyError(f"output row has columns that output= does not declare: {unknown}")
        return pa.RecordBatch.from_pylist(answer, schema=self.output)


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
