"""A flow whose checkpoint, written by an earlier version, is kept in `data/`.

`python -m tests.scenario.kept_flow FILE`, run in a checkout of that version, writes such a file:
the checkpoint after the first epochs, with state of every kind and the tables of a manager.
"""

from __future__ import annotations

import json
import sys
import tarfile
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import headgate as hg
from headgate.testing import ListSource, LocalRun, ManualClock, run

EPOCHS, WRITTEN, BUCKETS = 8, 5, 64
SCHEMA = "i bigint, a bigint, b string, v bigint, t timestamp"
START = datetime(2026, 1, 1, tzinfo=UTC)
NAMES = ["", "x", "yy", "zz" * 40, "é", None]


def rows_of(epoch: int) -> list[dict[str, Any]]:
    return [
        {
            "i": i,
            "a": i * i % 23,
            "b": NAMES[i * 7 % 5 if epoch % 2 else i % 6],
            "v": i * 31 % 17 - 5,
            "t": START + timedelta(seconds=40 * epoch + i % 50),
        }
        for i in range(60 * epoch, 60 * epoch + 60)
    ]


def longest(_key: Any, rows: list[dict[str, Any]], held: Any) -> tuple[Any, list[dict[str, Any]]]:
    kept = {**(held or {}), **{str(row["v"]): row["i"] for row in rows}}
    return kept, [{"known": len(kept)}]


def declared(epochs: int) -> hg.Flow:
    flow = hg.Flow("kept")
    source = ListSource(SCHEMA, [rows_of(epoch) for epoch in range(epochs)])
    rows = flow.source(source, name="rows", event_time="t", watermark="30 seconds")
    counted = rows.key_by("a").process(hg.Count(emit="rows"), name="count")
    minute = hg.Tumbling("1 minute", time="t")
    update = hg.Update(longest, output="known bigint", rows_as="dicts")
    ends = {
        "sum": (counted.key_by("b"), hg.Sum("v")),
        "top": (rows.key_by("a"), hg.TopK("b", 2, minute)),
        "window": (rows.key_by("b"), hg.Count(window=minute)),
        "known": (rows.key_by("b", "a"), update),
        "recent": (rows.key_by("a"), hg.MeanOfLast("v", 3, emit="running", ordered=True)),
        "last": (rows.key_by("a"), hg.Last("b", by="i")),
        "once": (rows.key_by("b"), hg.Deduplicate(within="3 seconds", ordered=True)),
        "least": (rows.key_by("a"), hg.Min("b", ttl="20 seconds")),
    }
    for name, (stream, operator) in ends.items():
        stream.process(operator, name=name).to_memory(f"out-{name}")
    return flow


def run_to(epochs: int, checkpoint: Path | None = None, **options: Any) -> LocalRun:
    clock = ManualClock()

    def before_epoch(epoch: int) -> None:
        clock.now_ms = 5_000 * epoch

    return run(
        declared(epochs),
        checkpoint=checkpoint,
        before_epoch=before_epoch,
        partitions=2,
        buckets=BUCKETS,
        clock=clock,
        **options,
    )


def main(file: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        manager = hg.Manager("headgate", every=2)
        done = run_to(WRITTEN, Path(folder) / "checkpoint", slots=3, manager=manager)
        outputs = json.dumps(done.outputs, sort_keys=True, default=str)
        (Path(folder) / "outputs.json").write_text(outputs)
        with tarfile.open(file, "w:xz") as archive:
            archive.add(folder, arcname=".")


if __name__ == "__main__":
    main(sys.argv[1])
