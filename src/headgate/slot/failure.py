"""Bad rows and failing user code: an error that names everything, or a dead letter.

Errors of user code travel to the driver as data, inside the control record, so Spark never
retries them and no detail is lost. With a dead-letter sink, the bad rows are found (by halving,
where a whole batch failed) and set aside, and the rest goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from headgate import errors
from headgate.arrays import I64
from headgate.slot.plan import EpochPlan
from headgate.slot.rows import Rows
from headgate.state.session import StateSession
from headgate.topology.builder import DEAD_LETTER_SCHEMA
from headgate.topology.text import Reason, describe, json_text, reason_of, without_addresses

SAMPLE_CHARACTERS_MAX = 500  # of a row in an error, and of a reason in a dead letter
Made = TypeVar("Made")
WAY_OUT = "fix the operator (or add flow.dead_letters() to set bad rows aside)"


class DeadLetters:
    """Rows set aside in one task, as rows of the dead-letter sink; `wanted`: the flow has one."""

    def __init__(self, plan: EpochPlan, slot: int, *, wanted: bool) -> None:
        self.plan, self.slot, self.wanted = plan, slot, wanted
        self._rows: list[dict[str, Any]] = []
        self.counts: dict[str, int] = {}

    def refuse(self, operator: str, batch: pa.RecordBatch, reasons: Mapping[int, str]) -> None:
        """Set rows of `batch` aside, or stop the flow if nobody takes dead letters."""
        if not reasons:
            return
        if not self.wanted:
            row, reason = next(iter(reasons.items()))
            raise operator_failed(operator, self.plan, self.slot, reason, batch.slice(row, 1))
        self.counts[operator] = self.counts.get(operator, 0) + len(reasons)
        bad = _as_dicts(batch.take(pa.array(list(reasons), pa.int64())))
        for letter, reason in zip(bad, reasons.values(), strict=True):
            self._rows.append(
                {
                    "operator": operator,
                    "slot": self.slot,
                    "epoch": self.plan.epoch,
                    "reason": without_addresses(reason)[:SAMPLE_CHARACTERS_MAX],
                    "row": json_text(letter, sort_keys=True),
                }
            )

    def run(
        self,
        operator: str,
        rows: Rows,
        work: Callable[[Rows], Made],
        session: StateSession | None = None,
        function: Callable[..., Any] | None = None,
    ) -> tuple[Rows, Made]:
        """Work on rows; those it fails on are set aside and it works on the others, or the flow
        stops. Returns the rows it has worked on, too; there may be none.

        Writes of failed work to `session` are undone.
        """
        if session is not None and self.wanted:
            session.mark()
        try:
            made = work(rows)
        except Exception as problem:
            undo = None if session is None else session.rollback
            if undo is not None and self.wanted:
                undo()
            elif session is not None:
                session.mark()  # what the call has written is never committed, nor undone

            def attempt(part: I64) -> None:
                work(rows.take(part))

            if not self.wanted:
                raise self.blame(
                    operator, rows.batch, problem, attempt, undo, function
                ) from problem
            bad = dict(bad_rows(len(rows), attempt, undo))
            self.refuse(operator, rows.batch, bad)
            rows = rows.take(np.setdiff1d(np.arange(len(rows)), np.fromiter(bad, np.int64)))
            made = work(rows)
        if session is not None and self.wanted:
            session.release()
        return rows, made

    def blame(
        self,
        operator: str,
        batch: pa.RecordBatch,
        problem: Exception,
        attempt: Callable[[I64], None],
        undo: Callable[[], None] | None = None,
        function: Callable[..., Any] | None = None,
    ) -> errors.HeadgateError:
        """The error that stops the flow, with a row that `attempt` fails on as its sample."""
        if is_of_user_code(problem):
            row, _ = next(bad_rows(batch.num_rows, attempt, undo), (0, ""))
            batch = batch.slice(row, 1)
        return from_exception(problem, operator, self.plan, self.slot, batch, function)

    def batch(self) -> pa.RecordBatch | None:
        if not self._rows:
            return None
        return pa.RecordBatch.from_pylist(self._rows, schema=DEAD_LETTER_SCHEMA)


def bad_rows(
    rows: int, attempt: Callable[[I64], None], undo: Callable[[], None] | None = None
) -> Iterator[tuple[int, str]]:
    """Rows on which `attempt(row numbers)` fails alone, in order, and why; found by halving.

    `attempt` must be free of effects, or `undo` takes them back. About 2 b log2(n) calls for b
    bad rows of n; the first is found in two passes over the rows.
    """
    pending = [np.arange(rows, dtype=np.int64)] if rows else []
    while pending:
        part = pending.pop()
        reason = ""
        try:
            attempt(part)
        except Exception as problem:
            reason = describe(problem)
        finally:
            if undo is not None:
                undo()
        if reason and len(part) == 1:
            yield int(part[0]), reason
        elif reason:
            half = len(part) // 2
            pending += [part[half:], part[:half]]


def operator_failed(
    operator: str,
    plan: EpochPlan,
    slot: int,
    reason: str,
    sample: pa.RecordBatch | None,
    way_out: str = WAY_OUT,
    more: Mapping[str, Any] | None = None,
) -> errors.OperatorFailed:
    """The error that stops the flow; a `Reason` brings the line of user code along."""
    row = sample_row(sample)
    where, trace = (reason.where, reason.trace) if isinstance(reason, Reason) else ("", "")
    return errors.OperatorFailed(
        f"operator {operator!r} failed in slot {slot}, epoch {plan.epoch}: {reason}"
        f"{f' ({where})' if where else ''}. "
        f"Sample row: {row}. Nothing of this epoch was committed; {way_out} and start again from "
        "the same checkpoint",
        **{
            **(more or {}),
            "operator": operator,
            "slot": slot,
            "epoch": plan.epoch,
            "reason": str(reason),
            "sample": row,
            "where": where,
            "trace": trace,
        },
    )


def sample_row(batch: pa.RecordBatch | None) -> str:
    if batch is None or batch.num_rows == 0:
        return "none"
    text = str(_as_dicts(batch.slice(0, 1))[0])
    return text if len(text) <= SAMPLE_CHARACTERS_MAX else text[:SAMPLE_CHARACTERS_MAX] + "…"


def _as_dicts(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Rows as dicts; times that Python cannot hold (a year of 300 000, nanoseconds) as text."""
    rows: list[dict[str, Any]] = [{} for _ in range(batch.num_rows)]
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            values = column.to_pylist()
        except (OverflowError, ValueError):
            cells = (column.slice(at, 1) for at in range(len(column)))
            values = [" ".join(str(cell).split()) for cell in cells]
        for row, value in zip(rows, values, strict=True):
            row[name] = value
    return rows


def from_exception(
    problem: Exception,
    operator: str,
    plan: EpochPlan,
    slot: int,
    sample: pa.RecordBatch | None,
    function: Callable[..., Any] | None = None,
) -> errors.HeadgateError:
    """The error to report for an exception that came out of user code; it names the place."""
    if isinstance(problem, errors.OperatorFailed) and "sample" in problem.fields:
        return problem
    if isinstance(problem, errors.HeadgateError) and not is_of_user_code(problem):
        place = {"operator": operator, "slot": slot, "epoch": plan.epoch}
        missing = {name: fact for name, fact in place.items() if name not in problem.fields}
        if not missing:
            return problem
        where = ", ".join(f"{name} {fact!r}" for name, fact in missing.items())
        return type(problem)(f"{problem.message} ({where})", **problem.fields, **missing)
    reason, more = reason_of(problem, function), {}
    if isinstance(problem, errors.OperatorFailed):
        own = Reason(problem.message)
        own.where, own.trace = reason.where, reason.trace
        reason, more = own, problem.fields
    return operator_failed(operator, plan, slot, reason, sample, more=more)


def is_of_user_code(problem: Exception) -> bool:
    """Or is it a fact about storage or the engine, which no row can be blamed for?"""
    of_users = (errors.OperatorFailed, errors.DeclarationError)
    return isinstance(problem, of_users) or not isinstance(problem, errors.HeadgateError)


def to_record(problem: errors.HeadgateError) -> dict[str, Any]:
    """JSON form of an error, as it travels in a control record."""
    fields = {
        k: v if isinstance(v, int | float | None) else without_addresses(str(v))
        for k, v in problem.fields.items()
    }
    message = without_addresses(problem.message)
    return {"type": type(problem).__name__, "message": message, "fields": fields}


def from_record(record: dict[str, Any]) -> errors.HeadgateError:
    kind = getattr(errors, record["type"], errors.HeadgateError)
    error: errors.HeadgateError = kind(record["message"], **record["fields"])
    return error
