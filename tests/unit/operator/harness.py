"""Runs one operator in one slot as the runtime would: calls in tasks (levels), tasks in epochs.

Every task opens the real state and commits it; the operator is pickled on its way into each, so
nothing can hide on the instance; schemas and origins are checked at every call. A call may be
`Away`: some other slot makes it, and this one, the owner of all keys, absorbs the partials in the
next task.
"""

from __future__ import annotations

import os
import pickle
import re
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.operator import EpochClock, KeyedRows, Output, Partials, StatefulOperator
from headgate.operator.base import as_output, state_schema
from headgate.operator.rows import partial_schema
from headgate.state.layout import StateSchema
from headgate.state.session import PrivateSession
from headgate.state.state_file import Chain
from headgate.state.storage import Storage
from headgate.state.store import StateStore

MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None


def process_away(
    operator: StatefulOperator, rows: KeyedRows, clock: EpochClock
) -> tuple[Output, pa.RecordBatch]:
    """`process` as a slot runs it that does not own the keys: what it returns, and the partials."""
    schema = state_schema(operator, rows.batch.schema, rows.key)
    with PrivateSession(schema, rows.identity) as state:
        output = as_output(operator.process(rows, state, clock))
        return replace(output, carry=None), state.all().batch()


@dataclass(frozen=True)
class Away:
    """Rows that are processed in a slot that does not own them."""

    batch: pa.RecordBatch


@dataclass
class Epoch:
    """Levels of calls; a call is a batch."""

    levels: Sequence[Sequence[pa.RecordBatch | Away]]
    watermark_us: int | None = None
    now_ms: int = 0


@dataclass
class EpochResult:
    passed: list[dict[str, Any]] = field(default_factory=list)
    finished: list[dict[str, Any]] = field(default_factory=list)
    dead: dict[int, str] = field(default_factory=dict)  # by row number in the epoch
    dead_partials: int = 0
    late: int = 0
    ipc: bytes = b""


class Slot:
    """One operator in one slot, epoch after epoch."""

    def __init__(self, operator: StatefulOperator, rows: pa.Schema, key: Sequence[str]) -> None:
        self.operator, self.rows, self.key = operator, rows, tuple(key)
        fields = operator.state_fields(rows, key)
        keys = pa.schema([rows.field(name) for name in key])
        self.schema = StateSchema(keys, fields.values, fields.sub)
        self.output = operator.output_schema(rows, key)
        self.carry = operator.carry_schema(rows, key)
        self._folder = tempfile.TemporaryDirectory(dir=MEMORY)
        self._store = StateStore(Storage.at(self._folder.name), warm_dir=None, buckets=16)
        self.chain: Chain = ()
        self._beside = operator.beside(rows, key)
        self._chains: dict[str, Chain] = dict.fromkeys(self._beside, ())
        self._epoch = 0
        self._watermark_us: int | None = None
        self._now_ms: int | None = None

    def __enter__(self) -> Slot:
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()

    def run(self, epoch: Epoch) -> EpochResult:
        clock = EpochClock(
            self._epoch, epoch.now_ms, epoch.watermark_us, self._watermark_us, self._now_ms
        )
        result, carries, offset = EpochResult(), [], 0
        levels = list(epoch.levels or [[]])
        if any(isinstance(call, Away) for call in levels[-1]):
            levels.append([])
        partials: list[pa.RecordBatch] = []
        for level, calls in enumerate(levels):
            operator = pickle.loads(pickle.dumps(self.operator))
            with ExitStack() as opened:
                state = opened.enter_context(self._open(level, epoch.now_ms, operator.ttl))
                for part in self._beside:
                    state.beside[part] = opened.enter_context(self._open_beside(part, level))
                if partials:
                    output = self._absorb(operator, partials, state, clock)
                    result.dead_partials += len(output.dead)
                    carries += [] if output.carry is None else [output.carry]
                    partials = []
                for call in calls:
                    batch = call.batch if isinstance(call, Away) else call
                    rows = KeyedRows(batch, self.key)
                    if isinstance(call, Away):
                        output, partial = process_away(operator, rows, clock)
                        assert output.carry is None
                        partials.append(self._sent(partial))
                    else:
                        output = operator.process(rows, state, clock)
                    output = self._checked(output, batch)
                    self._keep(result, output.batch)
                    result.passed += [] if output.batch is None else output.batch.to_pylist()
                    result.dead |= {offset + row: why for row, why in output.dead.items()}
                    result.late += output.late
                    carries += [] if output.carry is None else [output.carry]
                    offset += batch.num_rows
                if level == len(levels) - 1 and (offset or operator.ends_epochs):
                    carry = pa.concat_batches(carries) if carries else None
                    finished = operator.finish(state, clock, carry)
                    if finished is not None:
                        assert finished.schema.equals(self.output), finished.schema
                        self._keep(result, finished)
                        result.finished += finished.to_pylist()
                self.chain = state.commit()
                self._chains = {p: session.commit() for p, session in state.beside.items()}
        self._epoch += 1
        self._watermark_us, self._now_ms = epoch.watermark_us, epoch.now_ms
        return result

    def held(self) -> list[dict[str, Any]]:
        """What the state holds now."""
        with self._open(99, 0, None) as state:
            rows: list[dict[str, Any]] = state.all().batch().to_pylist()
        for part in self._beside:
            with self._open_beside(part, 99) as beside:
                rows += beside.all().batch().to_pylist()
        return rows

    def _absorb(
        self, operator: StatefulOperator, parts: list[pa.RecordBatch], state: Any, clock: EpochClock
    ) -> Output:
        partials = Partials(pa.concat_batches(parts), self.schema)
        output = operator.absorb(partials, state, clock)
        assert output is not None and output.batch is None and not output.late
        if output.carry is not None:
            assert self.carry is not None
            assert output.carry.schema.equals(self.carry)
        return output

    def _sent(self, partial: pa.RecordBatch) -> pa.RecordBatch:
        """To another slot and back."""
        wire = partial_schema(self.schema)
        assert partial.schema.equals(wire), partial.schema
        partial.validate(full=True)
        return pa.ipc.read_record_batch(partial.serialize(), wire)

    def _open(self, level: int, now_ms: int, ttl: timedelta | None) -> Any:
        ttl_ms = None if ttl is None else int(ttl / timedelta(milliseconds=1))
        return self._store.open(
            "op", 0, self.schema, self.chain,
            epoch=self._epoch, level=level, now_ms=now_ms, ttl_ms=ttl_ms,
        )  # fmt: skip

    def _open_beside(self, part: str, level: int) -> Any:
        return self._store.open(
            f"op@{part}", 0, self._beside[part], self._chains[part],
            epoch=self._epoch, level=level, now_ms=0,
        )  # fmt: skip

    def _checked(self, output: Output | pa.RecordBatch | None, batch: pa.RecordBatch) -> Output:
        if not isinstance(output, Output):
            output = Output(output)
        if output.batch is not None:
            assert output.batch.schema.equals(self.output), output.batch.schema
            output.batch.validate(full=True)
            if output.origins is None:
                assert output.batch.num_rows == batch.num_rows
            else:
                assert output.origins.dtype == np.int64
                assert len(output.origins) == output.batch.num_rows
        if output.carry is not None:
            assert self.carry is not None
            assert output.carry.schema.equals(self.carry)
        assert all(0 <= row < batch.num_rows for row in output.dead)
        return output

    def _keep(self, result: EpochResult, batch: pa.RecordBatch | None) -> None:
        if batch is not None:
            result.ipc += batch.serialize().to_pybytes()


def batch_of(schema: pa.Schema, **columns: Sequence[Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array(columns[f.name], f.type) for f in schema], schema=schema
    )


def run_once(
    operator: StatefulOperator, batch: pa.RecordBatch, key: Sequence[str], **epoch: Any
) -> EpochResult:
    """One epoch with one call."""
    with Slot(operator, batch.schema, key) as slot:
        return slot.run(Epoch([[batch]], **epoch))


def name_of(operator: object) -> str:
    """How a test calls an operator: its repr, without addresses, which differ between processes."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(operator))
