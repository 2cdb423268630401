"""Does an epoch of a flow on Spark take longer when it folds files of its state?

A sum per integer key in two slots (local[2]) is filled with `--keys` keys and then gets `--epochs`
epochs of random ones. An epoch folds if a slot wrote more than its delta. Each is compared with the
median of the ten nearest epochs that do not fold; so are those themselves, which shows what chance
does. Prints JSON: the largest and the median of these ratios, by seconds (planning and job, as the
journal has them) and by CPU time of the slots' tasks; rows folded beside rows of deltas; raw
numbers.

    python benchmarks/bench_folds.py [--keys 3000000] [--rows 100000] [--epochs 60]

With `--sessions` there is no Spark: only what one slot's state takes of the CPU is compared, which
is a small part of an epoch. A slot has half of the keys, and each row is of another one.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bench_state
import numpy as np
from bench_seals import SLOTS, Contestant, tables

from headgate.commit.facts import epochs_of

NEAR = 10
COMPACT_AFTER = 16  # deltas, as in flows
_STATE_FILE = re.compile(r"e\d{9}-L\d\d-\w+\.arrow")


def numbers(rows: int, keys: int, epochs: int, filled: int) -> Iterator[Any]:
    rng = np.random.default_rng(7)
    yield from np.array_split(rng.permutation(keys), filled)
    for _ in range(epochs):
        yield rng.integers(0, keys, rows)


def written(folder: Path, known: set[Path]) -> list[list[int]]:
    """Bytes of the state files of each slot that are not known yet; then they are."""
    found: dict[Path, list[int]] = {}
    for file in folder.rglob("*.arrow"):
        if _STATE_FILE.fullmatch(file.name) and file not in known:
            found.setdefault(file.parent, []).append(file.stat().st_size)
            known.add(file)
    return sorted(found.values())


def against_neighbours(took: list[float], folds: list[bool]) -> dict[str, Any]:
    """Each epoch's time as a multiple of that of its neighbours that do not fold."""
    ratios = []
    for at, mine in enumerate(took):
        others = [n for n in range(len(took)) if n != at and not folds[n]]
        others = sorted(others, key=lambda n: abs(n - at))[:NEAR]
        ratios.append(mine / statistics.median(took[n] for n in others))
    found: dict[str, Any] = {"ratios": ratios}
    for name, wanted in (("folding", True), ("others", False)):
        some = [ratio for ratio, fold in zip(ratios, folds, strict=True) if fold == wanted]
        found[name] = {"largest": max(some), "median": statistics.median(some)} if some else None
    return found


def measure(spark: Any, rows: int, keys: int, epochs: int) -> dict[str, Any]:
    filled = -(-keys // 500_000)
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as name:
        flow = Contestant(spark, Path(name), "folds")
        files, known = [], set[Path]()
        for table in tables(numbers(rows, keys, epochs, filled)):
            flow.epoch(table)
            files.append(written(Path(name), known))
        journal = epochs_of(flow.query.journal())
        flow.query.stop()
    timed = [facts for facts in journal if facts.rows][filled:]
    files = files[filled:]
    folds = [any(len(slot) > 1 for slot in slots) for slots in files]
    seconds = [facts.engine.seconds for facts in timed]
    cpu_ms = [facts.engine.task_cpu_ms[1] / SLOTS for facts in timed]
    return {
        "keys": keys,
        "rows": rows,
        "epochs": epochs,
        "folding_epochs": sum(folds),
        "by_seconds": against_neighbours(seconds, folds),
        "by_slot_cpu": against_neighbours(cpu_ms, folds),
        "raw": {"seconds": seconds, "slot_cpu_ms": cpu_ms, "folds": folds, "file_bytes": files},
    }


def measure_sessions(rows: int, keys: int, epochs: int) -> dict[str, Any]:
    keys, touched = keys // SLOTS, rows // SLOTS
    rng, cpu_ms, folded_rows = np.random.default_rng(7), [], []
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as folder:
        state = bench_state.Driver(folder, "large", 0, touched, strings=False, values=1)
        state.store.compact_after = COMPACT_AFTER
        for start in range(0, keys, 500_000):
            numbers = np.arange(start, min(keys, start + 500_000))
            state.run(bench_state.keys_of(numbers, strings=False))
        for _ in range(epochs):
            before = {file.name for file in state.chain}
            chosen = rng.choice(keys, touched, replace=False)
            cpu_ms.append(state.run(bench_state.keys_of(chosen, strings=False))["all"])
            made = [file for file in state.chain if file.name not in before]
            folded_rows.append(sum(file.rows for file in made if file.kind != "delta"))
    folds = [count > 0 for count in folded_rows]
    return {
        "keys": keys,
        "rows": touched,
        "epochs": epochs,
        "folding_epochs": sum(folds),
        "by_session_cpu": against_neighbours(cpu_ms, folds),
        "raw": {"session_cpu_ms": cpu_ms, "folded_rows": folded_rows},
    }


def main() -> None:
    from headgate.runtime.session import local_session

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--keys", type=int, default=3_000_000)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--sessions", action="store_true")
    given = parser.parse_args()
    if given.sessions:
        print(json.dumps(measure_sessions(given.rows, given.keys, given.epochs), indent=1))
        return
    spark = local_session("folds", cores=SLOTS)
    print(json.dumps(measure(spark, given.rows, given.keys, given.epochs), indent=1))
    spark.stop()


if __name__ == "__main__":
    main()
