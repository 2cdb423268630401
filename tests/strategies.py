"""What tests draw at random (keys, columns, tables), and a quick way to run a flow."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from headgate.routing.hashing import hash_columns
from headgate.routing.table import RoutingTable
from headgate.testing import LocalRun, run

MEMORY_DISK = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def examples(count: int) -> settings:
    """So many examples, and no deadline: the machine is shared."""
    return settings(max_examples=count, deadline=None, suppress_health_check=[HealthCheck.too_slow])


# Values that are easy to confuse: equal prefixes, trailing zeros, the edges of words and of the
# long way of hashing (256 bytes), signs of zero, kinds of null.
TEXTS = st.one_of(
    st.text(max_size=20),
    st.sampled_from(["", "\0", "\0\0", "a", "a\0", "aaaaaaaa", "aaaaaaaa\0", "é" * 128, "x" * 256]),
    st.integers(250, 270).map(lambda n: "y" * n),
)
INTS = st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats(allow_nan=False)

KEY_VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int8(): st.integers(-128, 127),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): INTS,
    pa.bool_(): st.booleans(),
    pa.float64(): FLOATS,
    pa.string(): TEXTS,
    pa.large_string(): TEXTS,
    pa.binary(): st.binary(max_size=20),
    pa.binary(5): st.binary(min_size=5, max_size=5),
    pa.date32(): st.dates(),
    pa.timestamp("us", "UTC"): st.datetimes(
        datetime(1900, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC)
    ),
    pa.decimal128(12, 3): st.integers(-(10**12) + 1, 10**12 - 1).map(
        lambda n: Decimal(n).scaleb(-3)
    ),
}


def columns(kind: pa.DataType, min_size: int = 0, max_size: int = 30) -> st.SearchStrategy[Any]:
    """Arrow arrays of a type, nulls among them, values often repeated."""
    value = st.none() | KEY_VALUES[kind]
    mixed = st.lists(value, min_size=1, max_size=6).flatmap(
        lambda pool: st.lists(st.sampled_from(pool), min_size=min_size, max_size=max_size)
    )
    return mixed.map(lambda values: pa.array(values, kind))


KEY_COLUMNS = st.sampled_from(list(KEY_VALUES)).flatmap(columns)


@st.composite
def tables(
    draw: st.DrawFn, slots: int, keys: pa.Array | None = None, buckets: int = 16
) -> RoutingTable:
    """Any table for so many slots: arbitrary owners of buckets, and pins of some of the keys."""
    owner = st.integers(0, slots - 1)
    owners = draw(st.lists(owner, min_size=buckets, max_size=buckets))
    table = RoutingTable(slots, np.array(owners, np.int32), version=draw(st.integers(0, 3)))
    if keys is not None and len(keys):
        chosen = draw(st.lists(st.integers(0, len(keys) - 1), max_size=len(keys)))
        if chosen:
            table = table.pin(
                [keys.take(pa.array(chosen))], [draw(owner) for _ in range(len(chosen))]
            )
    return table


def instances(operators: Sequence[str], slots: int) -> st.SearchStrategy[dict[str, Any]]:
    """The slots of some of the operators, at least one each; the others have all slots."""
    some = st.sets(st.integers(0, slots - 1), min_size=1).map(sorted).map(tuple)
    return st.dictionaries(st.sampled_from(list(operators)), some)


def owner_by_hand(table: RoutingTable, column: pa.Array) -> list[int]:
    """Where a table sends every key, one by one, from its definition."""
    pins = dict(zip(table.pinned_h.tolist(), table.pinned_slots.tolist(), strict=True))
    width = 64 - (table.buckets.bit_length() - 1)
    return [
        pins.get(h, int(table.bucket_slots[h >> width if table.buckets > 1 else 0]))
        for h in hash_columns([column], len(column)).tolist()
    ]


def second(number: float) -> datetime:
    return datetime(2024, 1, 1, tzinfo=UTC) + timedelta(seconds=number)


def day(number: int) -> date:
    return date(2024, 1, 1) + timedelta(days=number)


@contextmanager
def quick_folder() -> Iterator[Path]:
    """A folder in memory, where a flush costs nothing."""
    with tempfile.TemporaryDirectory(dir=MEMORY_DISK) as folder:
        yield Path(folder)


def run_quickly(flow: Any, **options: Any) -> LocalRun:
    """`testing.run` with its checkpoint in memory."""
    if "checkpoint" in options:
        return run(flow, **options)
    with quick_folder() as folder:
        return run(flow, checkpoint=folder, **options)


def seeds(first: int, *, of: int) -> list[Any]:
    """Seeds of a test: the first of them run always, the others with `--run-slow`."""
    rest = [pytest.param(seed, marks=pytest.mark.slow) for seed in range(first, of)]
    return [*range(first), *rest]
