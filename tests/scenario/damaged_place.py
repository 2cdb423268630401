"""A checkpoint and warm copies with every kind of file, and a flow that goes on from them.

The flow has a count and, behind it, windows with text keys and sums that may be null; a cost-aware
map, dead letters, and function, Parquet and table sinks. It has run for some epochs, with a manager
that moved pins, and died right after it committed the last one, so that rows wait for every sink.
Going on delivers them, keeps its slots or moves state to others, and runs one more epoch, which
touches or closes every row of state and brings new ones. All that comes of it is compared with a
plain fold.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tests.scenario.oracle import START, bag

import headgate as hg
from headgate import testing
from headgate.commit import journal, published
from headgate.commit.checkpoint import Checkpoint
from headgate.commit.continuity import check_start, spark_query_id
from headgate.commit.coordinator import Coordinator, EpochResult
from headgate.commit.costs_in_use import cost_shapes
from headgate.commit.planning import Decision, Planning
from headgate.commit.published import (
    TableCompaction,
    check_published,
    published_files,
    rows_published,
    visible,
)
from headgate.commit.publishing import STAGING_GRACE_EPOCHS, publish, staging_uri
from headgate.commit.settings import Settings
from headgate.control.tuner import SavedTuning, load_tuning, save_tuning
from headgate.planner.tuning.cost_model import Calibration, EngineCosts
from headgate.routing.costs import CostSketch
from headgate.routing.hashing import mix
from headgate.routing.identity import Identity
from headgate.slot.compile import compile_flow
from headgate.slot.plan import EpochPlan
from headgate.slot.program import Program
from headgate.slot.statistics import TaskStatistics
from headgate.state import local_files
from headgate.state.storage import Storage
from headgate.state.store import StateStore
from headgate.state.warm_copy import forget_mappings
from headgate.testing import ListSource, LocalEngine, ManualClock, _epochs, _partitions
from headgate.topology.graph import Node

LAST = 9
COMPACT_AFTER = 2  # so that there are runs and snapshots by then
FOLD_ROWS = 3  # and pieces of them
BUCKETS = 8
BAD = 13
SCHEMA = "k bigint, w string, v bigint, t timestamp"
WORDS = ["a", "", "a longer word", "nothing", "new"]
SIZE, LATE = timedelta(minutes=1), timedelta(minutes=2)


def _rows(epoch: int) -> list[dict[str, Any]]:
    """Few of the keys; in the first epoch all, in the last all open windows and new keys too."""
    last, rows = epoch > LAST, []
    for i in range(45 if last else 15 if epoch else 40):
        key = (5 * epoch + i) % (45 if last else 40)
        word = WORDS[i % 5] if last else WORDS[(epoch + i * i) % 4]
        value = None if word == "nothing" else 3 * epoch + i
        rows.append({"k": key, "w": word, "v": value, "t": START + (epoch - i % 3) * SIZE})
    return rows


ROWS = [_rows(epoch) for epoch in range(LAST + 2)]
TUNING = SavedTuning(Calibration(EngineCosts(1e-4, 1e-9, 0.01, 0.2, 1 << 20, 0.05), (), 0.1, "kit"))
_ADDED = ("checkpoint/journal/", "checkpoint/generations/", "warm/")
_IN_PLACE = ("checkpoint/journal/", "warm/")
FUNCTIONS = ("weighed", "dead")


class InTurn:
    """A thread pool without threads: in memory they only cost."""

    def __init__(self, *_: Any) -> None:
        self.map = map

    def __enter__(self) -> InTurn:
        return self

    def __exit__(self, *_: Any) -> None:
        pass


class Killed(BaseException):
    """The driver is dead."""


def _weigh(row: dict[str, Any]) -> dict[str, Any]:
    if _is_bad(row):
        raise ValueError("unlucky")
    return {"k": row["k"], "v": row["v"]}


def _is_bad(row: dict[str, Any]) -> bool:
    return row["v"] is not None and row["v"] % BAD == 0


class Fold:
    """What every sink gets in each epoch, and the state after the last: row by row, in Python."""

    def __init__(self, epochs: list[list[dict[str, Any]]]) -> None:
        self.sinks: dict[str, list[Counter[Any]]] = {"weighed": [], "dead": []}
        self.closed: Counter[Any] = Counter()
        counts: Counter[int] = Counter()
        sums: dict[tuple[str, datetime], int | None] = {}
        watermark = START - timedelta(days=1)  # nothing is final yet
        for rows in epochs:
            counts.update(row["k"] for row in rows)
            for row in rows:
                window = row["w"], row["t"]  # all times are starts of windows
                before = sums.get(window)
                sums[window] = before if row["v"] is None else (before or 0) + row["v"]
            for w, start in [window for window in sums if window[1] + SIZE <= watermark]:
                ends = {"window_start": start, "window_end": start + SIZE}
                self.closed += bag([{"w": w, **ends, "sum": sums.pop((w, start))}])
            watermark = max([*(row["t"] - LATE for row in rows), watermark])
            good = ({"k": row["k"], "v": row["v"]} for row in rows if not _is_bad(row))
            self.sinks["weighed"].append(bag(good))
            self.sinks["dead"].append(Counter("weigh" for row in rows if _is_bad(row)))
        self.state = {
            "first": bag({"k": k, "count": n} for k, n in counts.items()),
            "second": bag(
                {"w": w, "window_start": start, "sum": n} for (w, start), n in sums.items()
            ),
        }


EXPECTED = Fold(ROWS)


def declared(source: Any, out: str, functions: Mapping[str, Any]) -> hg.Flow:
    """The flow over this source, with a folder for its Parquet sink and two functions as sinks."""
    flow = hg.Flow("damaged")
    rows = flow.source(source, name="rows", event_time="t", watermark=LATE)
    first = rows.key_by("k").process(hg.Count(emit="rows"), name="first")
    windows = hg.Sum("v", window=hg.Tumbling(SIZE, time="t"))
    sums = first.key_by("w").process(windows, name="second")
    sums.to_parquet(out, name="published")
    sums.to_table("tabled")
    spread = rows.shuffle(grouping="cost", attribute="k")
    weighed = spread.map_rows(_weigh, "k bigint, v bigint", name="weigh")
    weighed.to(functions["weighed"], name="weighed")
    flow.dead_letters().to(functions["dead"], name="dead")
    return flow


class Pinning:
    """A manager that moves a few pins in every other epoch: tables change in small steps."""

    statistics_bytes = 0
    born_local: frozenset[str] = frozenset()
    units_of: frozenset[str] = frozenset()

    def step(self, observed: Any, tables: Any) -> Decision:
        epoch = observed[-1].facts.epoch
        if epoch % 2:
            return Decision()
        slots = tables["first"].slots
        pins = mix(np.arange(7 if epoch else 40, dtype=np.uint64) + np.uint64(epoch // 2))
        homes = np.full(len(pins), epoch // 2 % slots, np.int32)
        return Decision({"first": tables["first"].pin_hashes(pins, homes)})


class Place:
    """The folder of a flow (its checkpoint, its output, its warm copies), and how it goes on."""

    def __init__(self, root: Path) -> None:
        self.root, self.kept = root / "live", root / "kept"
        self.warm = self.root / "warm"
        self.out = str(self.root / "out")
        self.checkpoint = self.root / "checkpoint"
        self.delivered: dict[str, dict[int, Any]] = {}
        self.program = self._program()

    # --- preparing -------------------------------------------------------------------------
    def prepare(self) -> None:
        """Run up to the commit of the last epoch but one, and keep that as the beginning."""
        self._begin()
        at = self._coordinator(2, planning=Planning(Pinning(), beside=False))
        for epoch in range(LAST):
            self._spark_plans(epoch)
            at.run_epoch(epoch, "query", self._engine(epoch))
            self._spark_commits(epoch)
        self._spark_plans(LAST)
        self._sinks_die = True
        try:
            at.run_epoch(LAST, "query", self._engine(LAST))
        except Killed:
            pass
        tables = at.checkpoint.storage.child("tables", "tabled")
        compaction = TableCompaction(tables, "damaged", "tabled")
        assert compaction.run(LAST + STAGING_GRACE_EPOCHS, 0.0)
        compaction.run(LAST + STAGING_GRACE_EPOCHS, 1e12)
        save_tuning(at.checkpoint.storage, TUNING)
        at.checkpoint.parked.write(f"e{LAST:09d}-{0:016x}.arrow", b"not yet cleared away")
        self.root.rename(self.kept)
        paths = sorted(self.kept.rglob("*"))
        names = {str(path.relative_to(self.kept)): path for path in paths}
        self._folders = ["", *(name for name, path in names.items() if path.is_dir())]
        self._kept = {name: path.read_bytes() for name, path in names.items() if path.is_file()}

    def reset(self) -> None:
        """The beginning again. Files that are written in place are copied, others linked."""
        shutil.rmtree(self.root, ignore_errors=True)
        self.delivered = {}
        for folder in self._folders:
            os.mkdir(f"{self.root}/{folder}", 0o700)
        for name, data in self._kept.items():
            if name.startswith(_IN_PLACE):
                self.put(name, data)
            else:
                os.link(f"{self.kept}/{name}", f"{self.root}/{name}")

    def put(self, name: str, data: bytes) -> None:
        """Write a file of the flow; one that is there is replaced."""
        with suppress(FileNotFoundError):
            os.unlink(f"{self.root}/{name}")
        with open(os.open(f"{self.root}/{name}", os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
            file.write(data)

    @property
    def files(self) -> Mapping[str, bytes]:
        """All files of the beginning, whole."""
        return self._kept

    def files_now(self) -> set[str]:
        paths = (path for path in self.root.rglob("*") if path.is_file())
        return {str(path.relative_to(self.root)) for path in paths}

    def is_untouched(self, but: str) -> bool:
        """Is all as it was at the beginning, but for this file and what every start adds?"""
        same = {name for name in self.files if not name.startswith(_ADDED) and name != but}
        there = {name for name in self.files_now() if not name.startswith(_ADDED) and name != but}
        return there == same and all(
            os.path.samefile(self.kept / name, self.root / name) for name in same
        )

    # --- going on --------------------------------------------------------------------------
    @patch.object(local_files, "ThreadPoolExecutor", InTurn)
    @patch.object(journal, "ThreadPoolExecutor", InTurn)
    @patch.object(published, "ThreadPoolExecutor", InTurn)
    def go_on(self, slots: int) -> None:
        """Start with so many slots (it had 2), end the last epoch and run one more; check."""
        self._begin()
        place = Checkpoint(str(self.checkpoint))
        at = self._coordinator(slots)
        check_start(place, at.last, spark_query_id(place.storage))
        at.settle()
        self._spark_plans(LAST + 1)
        at.run_epoch(LAST + 1, "query", self._engine(LAST + 1))
        self._check(at)

    def check_delivered(self) -> None:
        """What sinks got, whether or not all came: never a wrong row."""
        for sink, by_epoch in self.delivered.items():
            for epoch, rows in by_epoch.items():
                assert rows == EXPECTED.sinks[sink][epoch], (sink, epoch)

    def _check(self, at: Coordinator) -> None:
        self.check_delivered()
        for sink in FUNCTIONS:
            assert sorted(self.delivered[sink]) == [LAST, LAST + 1], sink
        assert self._state(at) == EXPECTED.state
        counted = rows_published(at.checkpoint, at.last, "tabled")
        tables = at.checkpoint.storage.child("tables", "tabled")
        for sink, storage, rows in (
            ("tabled", tables, counted),
            ("published", Storage.at(self.out), 0),
        ):
            files, _ = visible(published_files(storage.list(), "damaged", sink))
            check_published(storage, files, sink, rows)
            found = sum((_parquet(storage.read(file.name)) for file in files), start=Counter())
            assert found == EXPECTED.closed, sink
        assert load_tuning(at.checkpoint.storage) in (None, TUNING)
        assert not at.checkpoint.parked.list()

    def _state(self, at: Coordinator) -> dict[str, Counter[Any]]:
        assert at.last is not None
        store = StateStore(at.checkpoint.state, warm_dir=None, buckets=BUCKETS)
        return {
            node.name: bag(
                row
                for slot, chain in at.last.chains[node.name].items()
                for row in store.scan(
                    node.name, slot, at.program.state_schemas[node.id], chain
                ).to_pylist()
            )
            for node in at.program.stateful
        }

    # --- inside ----------------------------------------------------------------------------
    def _begin(self) -> None:
        forget_mappings()  # a new driver has new workers
        self._sinks_die = False

    def _program(self) -> Program:
        flow = declared(ListSource(SCHEMA, ROWS), self.out, dict.fromkeys(FUNCTIONS, print))
        sources = flow.graph().of_kind("source")
        self._rows = [_epochs(number, node) for number, node in enumerate(sources)]
        return compile_flow(flow.graph())

    def _coordinator(self, slots: int, planning: Planning | None = None) -> Coordinator:
        place = Checkpoint(str(self.checkpoint))
        tables = place.storage.child("tables", "tabled").uri
        self.uris = {name: place.sinks.child(name).uri for name in FUNCTIONS}
        self.uris["published"] = staging_uri(self.out, "damaged", "published")
        self.uris["tabled"] = staging_uri(tables, "damaged", "tabled")
        settings = Settings(
            slots=slots,
            buckets=BUCKETS,
            warm_dir=str(self.warm),
            keep_manifests=3,
            durable=False,
            identity=Identity(bytes(range(16))),  # the same places for keys in every run
        )
        return Coordinator(
            self.program,
            place,
            settings,
            self._deliver,
            clock_ms=ManualClock(),
            sink_uris=self.uris,
            planning=planning,
        )

    def _deliver(self, sink: Node, epoch: int, files: list[dict[str, Any]]) -> None:
        if self._sinks_die:
            raise Killed
        if sink.name not in FUNCTIONS:
            publish("damaged", sink.name, epoch, files, self.uris[sink.name])
            return
        storage = Storage.at(self.uris[sink.name])
        told = sum((_parquet(storage.read(file["name"])) for file in files), start=Counter())
        self.delivered.setdefault(sink.name, {})[epoch] = told

    def _engine(self, epoch: int) -> Any:
        engine = LocalEngine(self.program, check_purity=False, seed=epoch)

        def run(plan: EpochPlan) -> EpochResult:
            with patch.object(
                testing,
                "StateStore",
                partial(StateStore, compact_after=COMPACT_AFTER, fold_rows=FOLD_ROWS),
            ):
                result = engine.run(plan, _partitions(self.program, self._rows, epoch, 1))
            return replace(result, statistics=self._measured(plan))

        return run

    def _measured(self, plan: EpochPlan) -> list[TaskStatistics]:
        """Times as they would be on a machine that is always as fast, so that models come."""
        values = mix(np.arange(7, dtype=np.uint64))
        told = []
        for slot in range(plan.slots):
            sketch = CostSketch(cost_shapes(self.program)["weigh"])
            sketch.update(values, np.arange(1.0, 8.0))
            told.append(TaskStatistics(slot, costs={"weigh": sketch}))
        return told

    def _spark_plans(self, epoch: int) -> None:
        self._spark_writes("metadata", '{"id":"query"}')
        self._spark_writes(f"offsets/{epoch}", f'v1\n{{"batchWatermarkMs":0}}\n{{"at":{epoch}}}')
        self._spark_writes(f"sources/0/{epoch}", f'v1\n{{"path":"in/{epoch}","batchId":{epoch}}}')

    def _spark_commits(self, epoch: int) -> None:
        self._spark_writes(f"commits/{epoch}", 'v1\n{"nextBatchWatermarkMs":0}')
        for folder in ("offsets", "commits", "sources/0"):
            (self.checkpoint / "spark" / folder / str(epoch - 3)).unlink(missing_ok=True)

    def _spark_writes(self, name: str, text: str) -> None:
        Storage.at(str(self.checkpoint / "spark")).write(name, text.encode())


@cache
def _parquet(data: bytes) -> Counter[Any]:
    """The rows of a file; of dead letters only which operator refused them."""
    table = pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)
    if "operator" in table.column_names:
        return Counter(table.column("operator").to_pylist())
    return bag(table.to_pylist())
