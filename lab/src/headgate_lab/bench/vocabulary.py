"""What windows and joins cost, operator by operator: one slot, its real state, no JVM.

An epoch is what the engine does with an operator in a slot: hash the keys, open the state, process,
finish, commit. Its cost is processor time, so that a machine with other work to do tells nearly the
same; contestants take turns, and figures are medians. What is measured are epochs in the middle of
a stream: a first one, which is not counted, fills the state with as much as it will hold from
then on.

    tumbling, sliding   counts and sums in windows of a minute, and of an hour every minute, over
                        the same rows, a minute of them an epoch; for few rows a key and for many
    sessions            counts and sums in sessions with a gap of a minute
    join                orders and payments: each order meets one payment of the ten minutes before
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.demo import Machine
from headgate.operator import Aggregate, Count, EpochClock, KeyedRows, StatefulOperator, Sum
from headgate.operator.base import as_output, state_schema
from headgate.operator.fixed_windows import Sliding, Tumbling
from headgate.operator.joining import join_operator
from headgate.operator.session_window import Session
from headgate.operator.window import TIMESTAMP, Window
from headgate.routing.identity import Identity
from headgate.state.state_file import Chain
from headgate.state.storage import Storage
from headgate.state.store import StateStore
from headgate.topology.joining import LEFT, RIGHT, Asked
from headgate_lab.record import side_by_side, work_folder

Say = Callable[[str], None]
SECOND_US = 1_000_000
MINUTE_US = 60 * SECOND_US
_BEGIN_US = 1_700_000_040 * SECOND_US  # a full minute


@dataclass(frozen=True)
class VocabularyOptions:
    """`window_keys`: the keys of a minute; by them a key has few rows in a window, or many."""

    rows_per_epoch: int = 500_000
    epochs: int = 4
    window_keys: tuple[int, ...] = (1_000, 10_000, 100_000)
    session_keys: int = 100_000
    rounds: int = 3
    seed: int = 11


QUICK = VocabularyOptions(
    rows_per_epoch=2_000, epochs=2, window_keys=(20, 200), session_keys=200, rounds=1
)


@dataclass(frozen=True)
class Work:
    """An operator and its epochs: rows, and the watermark that each of them ends with."""

    operator: StatefulOperator
    key: tuple[str, ...]
    epochs: tuple[tuple[pa.RecordBatch, int], ...]


def run_vocabulary(options: VocabularyOptions, say: Say) -> dict[str, Any]:
    """Rows per second of a core, and what a sliding window costs over a tumbling one."""
    works = dict(_works(options))
    emitted: dict[str, int] = {}

    def timed(name: str) -> float:
        seconds, emitted[name] = run_work(works[name])
        return seconds / (options.rows_per_epoch * options.epochs)

    turns = side_by_side(
        {name: lambda name=name: timed(name) for name in works},  # type: ignore[misc]
        options.rounds,
        lambda turn, name, cost: say(
            f"round {turn + 1} of {options.rounds}: {name:17} {1 / cost:12,.0f} rows/s per core"
        ),
    )
    costs = turns.medians
    return {
        "rows_per_s_per_core": {name: 1 / cost for name, cost in costs.items()},
        "sliding_over_tumbling": {
            str(keys): costs[f"sliding_{keys}"] / costs[f"tumbling_{keys}"]
            for keys in options.window_keys
        },
        "rows_emitted": emitted,
        "cpu_seconds_per_row_raw": {name: list(costs) for name, costs in turns.raw.items()},
        "order": [list(names) for names in turns.order],
        "options": asdict(options),
        "machine": asdict(Machine.here()),
    }


def run_work(work: Work) -> tuple[float, int]:
    """Processor seconds of all epochs but the first, and the rows that these put out."""
    schema = work.epochs[0][0].schema
    seconds, emitted, before = 0.0, 0, None
    with work_folder() as folder:
        slot = _OneSlot(work, schema, Path(folder))
        for number, (batch, watermark_us) in enumerate(work.epochs):
            clock = EpochClock(number, number, watermark_us, before, number - 1)
            began = time.process_time()
            rows = slot.run(batch, clock)
            if number:
                seconds, emitted = seconds + time.process_time() - began, emitted + rows
            before = watermark_us
    return seconds, emitted


class _OneSlot:
    """The tables of an operator in one slot, with a warm copy as in production."""

    def __init__(self, work: Work, schema: pa.Schema, folder: Path) -> None:
        self._operator, self._key = work.operator, work.key
        identity = self._identity = Identity.new()
        self._store = StateStore(
            Storage.at(str(folder / "state")),
            warm_dir=str(folder / "warm"),
            buckets=4096,
            identity=identity,
        )
        own = state_schema(work.operator, schema, work.key)
        self._schemas = {"": own, **work.operator.beside(schema, work.key)}
        self._chains: dict[str, Chain] = dict.fromkeys(self._schemas, ())

    def run(self, batch: pa.RecordBatch, clock: EpochClock) -> int:
        """An epoch; returns the rows that it put out."""
        sessions = {
            part: self._store.open(
                f"op{part}", 0, schema, self._chains[part],
                epoch=clock.epoch, level=1, now_ms=clock.now_ms,
            )
            for part, schema in self._schemas.items()
        }  # fmt: skip
        state = sessions[""]
        state.beside = {part: session for part, session in sessions.items() if part}
        rows = KeyedRows(batch, self._key, identity=self._identity)
        passed = as_output(self._operator.process(rows, state, clock)).batch
        made = self._operator.finish(state, clock)
        self._chains = {part: session.commit() for part, session in sessions.items()}
        return sum(out.num_rows for out in (passed, made) if out is not None)


# What there is to do ------------------------------------------------------------------------------


def _works(options: VocabularyOptions) -> Iterator[tuple[str, Work]]:
    for keys in options.window_keys:
        epochs = tuple(_minutes(options, keys))
        for name, window in (
            ("tumbling", Tumbling("1 minute", time="ts")),
            ("sliding", Sliding("1 hour", "1 minute", time="ts")),
        ):
            yield f"{name}_{keys}", Work(_sums(window), ("k",), epochs)
    yield "sessions", Work(_sums(Session("1 minute", time="ts")), ("k",), tuple(_visits(options)))
    yield "join", _join(options)


def _sums(window: Window) -> Aggregate:
    return Aggregate(n=Count(), total=Sum("x"), window=window)


def _rows(keys: Any, times: Any, draw: np.random.Generator) -> pa.RecordBatch:
    order = np.argsort(times, kind="stable")
    x = draw.integers(1, 100, len(times))
    stamps = pa.array(times[order]).view(TIMESTAMP)
    return pa.record_batch({"k": pa.array(keys[order]), "ts": stamps, "x": pa.array(x)})


def _minutes(options: VocabularyOptions, keys: int) -> Iterator[tuple[pa.RecordBatch, int]]:
    """A row of every key in each of 60 minutes, then epochs of a minute."""
    draw = np.random.default_rng(options.seed)
    every = np.tile(np.arange(keys), 60)
    yield _rows(every, _BEGIN_US + np.repeat(np.arange(60), keys) * MINUTE_US, draw), _after(60)
    for epoch in range(options.epochs):
        times = _after(60 + epoch) + draw.integers(0, MINUTE_US, options.rows_per_epoch)
        yield _rows(draw.integers(0, keys, len(times)), times, draw), _after(61 + epoch)


def _visits(options: VocabularyOptions) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Keys that get ten rows in five minutes: sessions of seven or eight rows."""
    draw, length_us = np.random.default_rng(options.seed), _length_us(options)
    for epoch in range(options.epochs + 1):
        begin = _BEGIN_US + epoch * length_us
        times = begin + draw.integers(0, length_us, options.rows_per_epoch)
        yield (
            _rows(draw.integers(0, options.session_keys, len(times)), times, draw),
            (begin + length_us),
        )


def _length_us(options: VocabularyOptions) -> int:
    return 30 * SECOND_US * options.rows_per_epoch // options.session_keys


def _join(options: VocabularyOptions) -> Work:
    left = pa.schema([("id", pa.int64()), ("ts", TIMESTAMP), ("amount", pa.int64())])
    right = pa.schema([("id", pa.int64()), ("at", TIMESTAMP), ("paid", pa.float64())])
    asked = Asked(within=("-10 minutes", "0 minutes"))
    event_times = (frozenset({"ts"}), frozenset({"at"}))
    operator = join_operator(asked, (left, right), (("id",), ("id",)), event_times)
    wide = operator.sides.wide(left, right)
    draw, length_us = np.random.default_rng(options.seed), 5 * MINUTE_US
    begins = _BEGIN_US + np.arange(3, options.epochs + 5) * length_us
    begins[0] = 0  # the first epoch takes all before, of which the state holds what it will hold
    count = options.rows_per_epoch // 2 * (options.epochs + 4)
    ordered = _BEGIN_US + np.sort(draw.integers(0, length_us * (options.epochs + 4), count))
    paid = ordered - draw.integers(0, 2 * length_us, count)
    sides = (
        (left, ordered, draw.integers(1, 100, count)),
        (right, paid, draw.random(count)),
    )
    epochs = []
    for begin, end in pairwise(begins.tolist()):
        parts = []
        for side, (schema, times, values) in zip((LEFT, RIGHT), sides, strict=True):
            ids = np.flatnonzero((times >= begin) & (times < end))
            columns = [pa.array(ids), pa.array(times[ids]).view(TIMESTAMP), pa.array(values[ids])]
            batch = pa.RecordBatch.from_arrays(columns, schema=schema)
            parts.append(operator.sides.widened(side, batch, wide))
        epochs.append((pa.concat_batches(parts), end - MINUTE_US // 2))
    return Work(operator, ("id",), tuple(epochs))


def _after(minutes: int) -> int:
    return _BEGIN_US + minutes * MINUTE_US
