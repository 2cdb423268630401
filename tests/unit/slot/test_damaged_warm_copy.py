"""A task that meets a damaged warm copy starts over: nobody notices but the clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headgate import Count, Flow, Sum, Tumbling, Update
from headgate.slot.slot_task import SlotTask
from headgate.state.warm_copy import forget_mappings
from headgate.testing import ListSource, run

EPOCHS, ROWS = 20, 60


@pytest.fixture(autouse=True)
def _no_mappings_left() -> Iterator[None]:
    yield
    forget_mappings()


def remember(key: str, rows: list[dict[str, Any]], before: Any) -> tuple[Any, list[dict[str, Any]]]:
    kept = [*(before or [])[-3:], *(row["n"] for row in rows)]
    return kept, [{"word": key, "kept": str(kept)}]


def flow() -> Flow:
    """Numbers, texts, pickles and windows; bad rows would be set aside, and there are none."""
    rng = np.random.default_rng(5)
    epochs = [
        [
            {"k": int(k), "word": f"word {k % 40}", "n": int(n), "t": (epoch * 10 + int(n) % 15)}
            for k, n in zip(rng.integers(0, 200, ROWS), rng.integers(0, 99, ROWS), strict=True)
        ]
        for epoch in range(EPOCHS)
    ]
    made = Flow("damage")
    schema = pa.schema(
        [
            ("k", pa.int64()),
            ("word", pa.string()),
            ("n", pa.int64()),
            ("t", pa.timestamp("s", "UTC")),
        ]
    )
    rows = made.source(ListSource(schema, epochs), name="in", event_time="t")
    rows.key_by("k").process(Count(), name="count").to_memory("counts")
    update = Update(remember, "word string, kept string", rows_as="dicts")
    rows.key_by("word").process(update, name="update").to_memory("kept")
    window = Tumbling("20 seconds", time="t")
    rows.key_by("word").process(Sum("n", window=window), name="sum").to_memory("sums")
    made.dead_letters().to_memory("dead")
    return made


def outcome(**options: Any) -> tuple[Any, ...]:
    done = run(flow(), check_purity=False, **options)
    sinks = [done.rows(name) for name in ("counts", "kept", "sums", "dead")]
    states = [done.state(name) for name in ("count", "update", "sum")]
    times = {(record["epoch"], record.get("attempts")) for record in done.records}
    return sinks, states, times


def damage(folder: Path, seed: int) -> Callable[[int], None]:
    """Before each epoch some bits of some files change, now and then in new processes."""
    rng = np.random.default_rng(seed)

    def before_epoch(epoch: int) -> None:
        if epoch % 3 == 0:
            forget_mappings()
        files = sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)
        for path in rng.choice(np.array(files, object), min(3, len(files)), replace=False):
            with path.open("r+b", buffering=0) as file:
                for at in rng.integers(0, path.stat().st_size, 20):
                    file.seek(at)
                    byte = file.read(1)[0] ^ 1 << int(rng.integers(0, 8))
                    file.seek(at)
                    file.write(bytes([byte]))

    return before_epoch


@pytest.mark.parametrize("seed", range(2))
def test_flipped_bits_change_neither_state_nor_sinks(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    again: list[int] = []
    attempt = SlotTask.run

    def counted(task: SlotTask, tuples: Any) -> Any:
        if task.services.store.warm is None:
            again.append(task.plan.epoch)
        return attempt(task, tuples)

    right = outcome(warm_dir=None)
    assert right[0][-1] == []
    monkeypatch.setattr(SlotTask, "run", counted)
    warm = tmp_path / "warm"
    assert outcome(warm_dir=str(warm), before_epoch=damage(warm, seed)) == right
    assert again, "no task started over: nothing was tried"
