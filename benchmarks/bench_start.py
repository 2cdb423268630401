"""Does a start take longer, or more memory, the more epochs a flow has behind it?

Makes a checkpoint whose journal has so many epochs, as a flow would have written them (the records
that `keep_journal` keeps, in segments), and starts a coordinator on it in a process of its own:
open the checkpoint, find the journal's end, run one epoch. Prints seconds (the median) and peak
memory for each length.

    python benchmarks/bench_start.py [--epochs 1000 200000] [--starts 7]
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from headgate import Count, Flow
from headgate.commit.checkpoint import Checkpoint
from headgate.commit.coordinator import Coordinator, EpochResult
from headgate.commit.journal import KEEP_RECORDS, SEGMENT_BYTES
from headgate.commit.settings import Settings
from headgate.slot.compile import compile_flow
from headgate.slot.plan import Control, EpochPlan
from headgate.state.digest import seal


def _coordinator(folder: str) -> Coordinator:
    flow = Flow("long")
    rows = flow.source(lambda: None, schema="k bigint", name="in")
    rows.key_by("k").process(Count(), name="count").to_memory("out")
    return Coordinator(
        compile_flow(flow.graph()),
        Checkpoint(folder),
        Settings(slots=2),
        lambda *_: None,
        clock_ms=lambda: 0,
        sink_uris={},
    )


def _quiet(plan: EpochPlan) -> EpochResult:
    tasks = [[1, slot] for slot in plan.slots_at(1)]
    return EpochResult([Control(tasks=tasks, versions=[plan.routing_version])])


def make(folder: str, epochs: int) -> None:
    """A checkpoint at epoch 0 and the journal of so many epochs before it."""
    at = _coordinator(folder)
    at.run_epoch(0, "query", _quiet)
    at.close()
    journal = at.checkpoint.journal
    [record] = at.journal.read()
    journal.delete(*journal.list())
    first, lines, size = max(0, epochs - KEEP_RECORDS), [], 0
    for number in range(first, epochs):
        lines.append(seal({**record, "epoch": number - epochs}) + b"\n")
        size += len(lines[-1])
        if size >= SEGMENT_BYTES or number == epochs - 1:
            journal.write(f"{number + 1 - len(lines):012d}.jsonl", b"".join(lines))
            lines, size = [], 0


def start(folder: str) -> dict[str, float]:
    """One start and its first epoch, in this process."""
    before = time.perf_counter()
    at = _coordinator(folder)
    assert at.last is not None
    at.run_epoch(at.last.epoch + 1, "query", _quiet)
    at.close()
    took = time.perf_counter() - before
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"seconds": took, "peak_mb": peak / 1024}


def measure(lengths: list[int], starts: int) -> dict[str, Any]:
    """Starts of all lengths in turns, each in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        for epochs in lengths:
            make(f"{folder}/{epochs}", epochs)
        seen: dict[int, list[dict[str, float]]] = {epochs: [] for epochs in lengths}
        for turn in range(starts):
            for epochs in lengths if turn % 2 else lengths[::-1]:
                command = [sys.executable, __file__, "--start", f"{folder}/{epochs}"]
                seen[epochs].append(json.loads(subprocess.check_output(command)))
        return {
            str(epochs): {
                "median_s": round(statistics.median(s["seconds"] for s in told), 4),
                "peak_mb": round(max(s["peak_mb"] for s in told), 1),
                "journal_mb": round(_size(Path(folder, str(epochs), "journal")) / 1e6, 1),
            }
            for epochs, told in seen.items()
        }


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, nargs="+", default=[1_000, 200_000])
    parser.add_argument("--starts", type=int, default=7)
    parser.add_argument("--start", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.start:
        print(json.dumps(start(given.start)))
        return
    print(json.dumps(measure(given.epochs, given.starts), indent=1))


if __name__ == "__main__":
    main()
