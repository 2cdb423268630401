"""How fast is keyed state, and does an epoch cost what it touches or what it holds?

Per epoch: 100,000 distinct integer keys, 5 % new, three int64 values; open, read three columns,
write three columns, commit a delta. Two states (small and large) are driven in turn in one
process, so both meet the same noise; compaction is left out of the timed epochs, and so are the
first ones: a table that was just built is sealed bit by bit (docs/decisions/0021-warm-seals.md).
Then, once on the large state (not with `--only-epochs`): an epoch on fresh mappings, a rebuild
from the chain, reading 1/64 of the buckets for a move, folding the chain into a snapshot. Prints
JSON with every raw number, what it took to fill the states, and what they take of memory and of
the disk.

    python benchmarks/bench_state.py [--large 10000000] [--epochs 12] [--strings]
    python benchmarks/bench_state.py --small 10000000 --large 50000000 --values 2 --only-epochs
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.state.layout import StateSchema
from headgate.state.seals import SESSIONS
from headgate.state.state_file import Chain
from headgate.state.storage import Storage
from headgate.state.store import StateStore
from headgate.state.warm_copy import forget_mappings

WARMUP = SESSIONS + 4  # until the large table is sealed, and all of its pages have been met


@dataclass(frozen=True)
class Keys:
    """Distinct hashed keys, as routing would give them."""

    route: Any
    h: Any
    checks: Any
    columns: pa.RecordBatch

    def check(self, identity: Any = None) -> Any:
        return self.checks


def _mix(values: Any) -> Any:
    mixed = values.astype(np.uint64)
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53, 1):
        mixed = (mixed ^ (mixed >> np.uint64(33))) * np.uint64(factor)
    return mixed


def keys_of(numbers: Any, strings: bool) -> Keys:
    """Integer keys, or the same numbers as 12-byte strings."""
    h = _mix(numbers)
    if strings:
        column = pa.array(np.char.add("k", np.char.zfill(numbers.astype(str), 11)))
        check = _mix(numbers + 1) | np.uint64(4)
    else:
        column, check = pa.array(numbers), np.ones(len(numbers), np.uint64)
    return Keys(h, h, check, pa.RecordBatch.from_arrays([column], names=["k"]))


class Driver:
    """One state that is driven epoch after epoch."""

    def __init__(
        self, folder: str, name: str, held: int, touched: int, strings: bool, values: int = 3
    ) -> None:
        kind = pa.string() if strings else pa.int64()
        numbers = pa.schema([(label, pa.int64()) for label in "abc"[:values]])
        self.schema = StateSchema(key=pa.schema([("k", kind)]), values=numbers)
        storage = Storage.at(f"{folder}/files")
        warm = f"{folder}/warm"
        self.store = StateStore(
            storage, warm_dir=warm, buckets=1024, compact_after=1 << 20, budget_bytes=24 << 30
        )
        self.name, self.touched, self.strings = name, touched, strings
        self.rng = np.random.default_rng(7)
        self.next_key, self.epoch = held, 0
        self.chain: Chain = ()
        for start in range(0, held, 1_000_000):
            numbers = np.arange(start, min(start + 1_000_000, held))
            self.run(keys_of(numbers, strings))

    def batch(self) -> Keys:
        new = self.touched // 20
        old = self.rng.choice(self.next_key, self.touched - new, replace=False, shuffle=False)
        numbers = np.concatenate([old, np.arange(self.next_key, self.next_key + new)])
        self.rng.shuffle(numbers)
        self.next_key += new
        return keys_of(numbers, self.strings)

    def run(self, keys: Keys) -> dict[str, float]:
        marks = [_now()]
        with self.store.open(
            "bench", 0 if self.name == "small" else 1, self.schema, self.chain,
            epoch=self.epoch, level=1, now_ms=0,
        ) as session:  # fmt: skip
            marks.append(_now())
            held = session.read(keys)
            columns = {name: held[name] for name in held.value_names}
            marks.append(_now())
            changed = {name: values + 1 for name, values in columns.items()}
            session.write(keys, changed)
            marks.append(_now())
            self.chain = session.commit()
            marks.append(_now())
        self.epoch += 1
        steps = dict(zip(("open", "read", "write", "commit"), np.diff(marks).tolist(), strict=True))
        return {**steps, "all": marks[-1] - marks[0]}


def once(driver: Driver) -> dict[str, float]:
    """What does not happen in every epoch, in CPU milliseconds."""
    slot, schema, store = 0 if driver.name == "small" else 1, driver.schema, driver.store
    batch, took = driver.batch(), {}
    forget_mappings()
    took["epoch_on_fresh_mappings"] = driver.run(batch)["all"]
    store.drop("bench", slot)
    start = _now()
    with store.open("bench", slot, schema, driver.chain, epoch=0, level=1, now_ms=0):
        took["rebuild"] = _now() - start
    start = _now()
    moved, none = np.arange(0, 1024, 64), np.zeros(0, np.uint64)
    store.moved_rows("bench", slot, schema, driver.chain, buckets=moved, routes=none)
    took["moved_rows_1_64th"] = _now() - start
    start = _now()
    store.compact_after = 1
    driver.run(driver.batch())
    took["epoch_with_snapshot"] = _now() - start
    return took


def _now() -> float:
    return time.process_time() * 1000


def memory_mb(folder: str) -> dict[str, float]:
    """Each state's files, and what the process has in memory: its own, of files, and at most."""
    told = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    names = {"own": "RssAnon", "mapped_files": "RssFile", "peak": "VmHWM"}
    found = {name: int(told[field].split()[0]) / 1024 for name, field in names.items()}
    for part in Path(folder).glob("*/*"):
        sizes = [file.stat().st_size for file in part.rglob("*") if file.is_file()]
        found[f"{part.parent.name}_{part.name}"] = sum(sizes) / 2**20
    return found


def measure(
    small: int,
    large: int,
    touched: int,
    epochs: int,
    strings: bool,
    values: int = 3,
    only_epochs: bool = False,
) -> dict[str, Any]:
    """Raw CPU milliseconds of each step and epoch, and the numbers that matter."""
    folder = tempfile.mkdtemp(prefix="headgate-bench-")
    try:
        drivers, built = [], {}
        for name, held in (("small", small), ("large", large)):
            start, cpu_ms = time.monotonic(), _now()
            drivers.append(Driver(f"{folder}/{name}", name, held, touched, strings, values))
            seconds, cpu_s = time.monotonic() - start, (_now() - cpu_ms) / 1000
            built[name] = {"seconds": seconds, "cpu_seconds": cpu_s, **memory_mb(folder)}
        raw: dict[str, list[dict[str, float]]] = {"small": [], "large": []}
        for epoch in range(epochs + WARMUP):
            for driver in drivers if epoch % 2 else drivers[::-1]:
                steps = driver.run(driver.batch())
                if epoch >= WARMUP:
                    raw[driver.name].append(steps)
        memory = memory_mb(folder)
        seldom = {} if only_epochs else once(drivers[1])
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    middle = {
        name: {step: statistics.median(run[step] for run in runs) for step in runs[0]}
        for name, runs in raw.items()
    }
    best = {name: min(run["all"] for run in runs) for name, runs in raw.items()}
    return {
        "held": {"small": small, "large": large},
        "touched": touched,
        "strings": strings,
        "values": values,
        "median_cpu_ms": middle,
        "ratio": middle["large"]["all"] / middle["small"]["all"],
        "ratio_of_pairs": statistics.median(
            many["all"] / few["all"] for few, many in zip(raw["small"], raw["large"], strict=True)
        ),
        "ratio_of_best": best["large"] / best["small"],
        "key_updates_per_s": {n: touched / m["all"] * 1000 for n, m in middle.items()},
        "once_large_cpu_ms": seldom,
        "built": built,
        "memory_mb": memory,
        "raw_cpu_ms": raw,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", type=int, default=100_000)
    parser.add_argument("--large", type=int, default=10_000_000)
    parser.add_argument("--touched", type=int, default=100_000)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--strings", action="store_true")
    parser.add_argument("--values", type=int, default=3, help="columns of int64, up to 3")
    parser.add_argument("--only-epochs", action="store_true")
    print(json.dumps(measure(**vars(parser.parse_args())), indent=1))


if __name__ == "__main__":
    main()
