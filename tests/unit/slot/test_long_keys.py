"""Keys of many megabytes: held as often as they must be, and never as a label."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headgate as hg
from headgate.operator.rows import KeyedRows
from headgate.slot.statistics import LABEL_CHARACTERS, Counting
from headgate.state.layout import StateSchema
from headgate.state.state_file import Chain
from headgate.state.storage import Storage
from headgate.state.store import StateStore
from headgate.testing import ListSource, run

MB = 1 << 20


def arrow_bytes_at_most(work: Callable[[], Any]) -> int:
    """The most that Arrow held at once of what it allocated meanwhile."""
    before = pa.default_memory_pool()
    counting = pa.proxy_memory_pool(before)
    pa.set_memory_pool(counting)
    try:
        work()
    finally:
        pa.set_memory_pool(before)
    return int(counting.max_memory())


def python_bytes_at_most(work: Callable[[], Any]) -> int:
    """The most that Python and NumPy held at once of what they allocated meanwhile."""
    tracemalloc.start()
    work()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


@pytest.mark.parametrize("emit", ["updates", "running"])
def test_an_epochs_keys_of_10_mb_are_in_arrow_memory_less_than_2_75_times(emit: str) -> None:
    """As rows and in payloads that travel, or in the files that are written; not once per step."""
    rng = random.Random(1)
    keys = [rng.randbytes(5 * MB).hex() for _ in range(4)]
    flow = hg.Flow("long")
    stream = flow.source(ListSource("k string", [[{"k": key} for key in keys]])).key_by("k")
    stream.process(hg.Count(emit=emit), name="count").to_memory("out")
    results = []

    held = arrow_bytes_at_most(lambda: results.append(run(flow, slots=2)))

    assert held < 2.75 * sum(map(len, keys))
    assert {row["k"]: row["count"] for row in results[0].rows("out")} == dict.fromkeys(keys, 1)


def test_labels_of_long_keys_are_cut_before_python_sees_them() -> None:
    keys = [f"{number:02d}" + "ü" * MB for number in range(8)]
    groups = KeyedRows(pa.record_batch({"k": keys}), ["k"]).groups
    counting = Counting(slot=0, memory_bytes=1 << 16, operators=1, edges=0)

    peak = python_bytes_at_most(lambda: counting.load("count", groups))

    assert peak < MB
    labels = counting.statistics.labels["count"]
    assert sorted(labels.values()) == [key[: LABEL_CHARACTERS - 1] + "…" for key in keys]


def test_a_warm_copy_of_long_keys_is_written_sealed_and_rebuilt_without_copies_of_them(
    tmp_path: Path,
) -> None:
    """Beside what Arrow needs to sort and write them: the mapped files get them directly."""
    keys = [f"{number}" + "ü" * MB for number in range(4)]
    groups = KeyedRows(pa.record_batch({"k": keys}), ["k"]).groups
    schema = StateSchema(pa.schema([("k", pa.string())]), pa.schema([("n", pa.int64())]))
    store = StateStore(
        Storage.at(str(tmp_path / "files")), warm_dir=str(tmp_path / "warm"), buckets=1
    )
    chain: Chain = ()

    def session(epoch: int) -> None:
        nonlocal chain
        with store.open("op", 0, schema, chain, epoch=epoch, level=1, now_ms=0) as state:
            state.write(groups, {"n": state.read(groups)["n"] + 1})
            chain = state.commit()

    written = python_bytes_at_most(lambda: session(0))
    store.drop("op", 0)
    rebuilt = python_bytes_at_most(lambda: session(1))
    checked = python_bytes_at_most(lambda: session(2))

    assert max(written, rebuilt, checked) < MB
    with store.open("op", 0, schema, chain, epoch=3, level=1, now_ms=0) as state:
        rows = state.all()
        assert dict(zip(rows.keys["k"].to_pylist(), rows["n"], strict=True)) == dict.fromkeys(
            keys, 3
        )
