"""Whatever is killed, retried, lost or moved: state and output are those of a plain fold.

Every seed draws a flow, its input, the faults and what changes between two starts of the driver
(slots, routing tables, warm copies); a restless manager changes tables from epoch to epoch. A
failing seed is replayed with `pytest -k "seed[17]"`.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.scenario.fault_engine import TAMPERINGS, Faults, FaultyEngine, Killed
from tests.scenario.oracle import (
    CASES,
    Case,
    bag,
    chained_windows,
    ordered,
    random_table,
    windows,
)
from tests.scenario.restless import Restless
from tests.scenario.told_ranks import ranks

from headgate.commit.checkpoint import Checkpoint
from headgate.commit.coordinator import Coordinator, EpochResult
from headgate.commit.faults import CRASH_POINTS
from headgate.commit.planning import Planning
from headgate.commit.settings import Settings
from headgate.errors import Overtaken
from headgate.slot.compile import compile_flow
from headgate.slot.plan import EpochPlan
from headgate.state.storage import Storage
from headgate.state.store import StateStore
from headgate.state.warm_copy import forget_mappings
from headgate.testing import ManualClock, _epochs, _partitions
from headgate.topology.graph import Node
from strategies import seeds

BUCKETS = 16
STARTS_MAX = 60
POINTS = [point for point in CRASH_POINTS if point != "file-published"]  # no Parquet sink here


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder in memory where there is one: the protocol flushes what it must keep."""
    place = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=place) as made:
        yield Path(made)


class Driver:
    """One flow on one checkpoint, started again after every crash, watched at every step."""

    def __init__(
        self, case: Case, faults: Faults, folder: Path, warm: bool, checkpoint: str = ""
    ) -> None:
        self.case, self.faults, self.rng, self.folder = case, faults, faults.rng, folder
        self.warm = warm
        self.checkpoint = checkpoint or str(folder / "checkpoint")
        self.delivered: dict[str, dict[int, Any]] = {}
        self.partitions = self.rng.randrange(1, 4)
        self.first_slots = self.rng.randrange(1, 4)
        self.starts = 0

    def start(self, number: int) -> Coordinator:
        case, rng = self.case, self.rng
        flow, streams = case.flow()
        for name, stream in streams.items():
            stream.to(lambda rows, epoch: None, name=f"to_{name}")
        graph = flow.graph()
        self.program = compile_flow(graph)
        self.rows = [_epochs(number, node) for number, node in enumerate(graph.of_kind("source"))]
        place = Checkpoint(self.checkpoint)
        self.uris = {n.name: place.sinks.child(n.name).uri for n in self.program.sinks}
        slots = self.first_slots if number == 0 else rng.randrange(1, 5)
        tables = {
            operator: random_table(rng, case, operator, slots, BUCKETS)
            for operator in case.keys
            if rng.random() < 0.5
        }
        warm = str(self.folder / "warm") if self.warm and rng.random() < 0.8 else None
        settings = Settings(
            slots=slots,
            buckets=BUCKETS,
            warm_dir=warm,
            tables=tables,
            keep_manifests=rng.choice([2, 8]),
            durable=False,
            park_bytes=rng.choice([None, 0, 0]),
        )
        self.starts += 1
        return Coordinator(
            self.program,
            place,
            settings,
            partial(self.deliver, self.starts),
            clock_ms=ManualClock(),
            sink_uris=self.uris,
            planning=self.planning(),
        )

    def planning(self) -> Planning | None:
        if self.rng.random() < 0.4:
            return None
        manager = Restless(self.rng, self.case, self.program, BUCKETS)
        return Planning(manager, beside=self.rng.random() < 0.3)

    def deliver(self, start: int, sink: Node, epoch: int, files: list[dict[str, Any]]) -> None:
        assert start == self.starts, "a driver that was overtaken called a sink"
        storage = Storage.at(self.uris[sink.name])
        tables = [
            pq.read_table(pa.py_buffer(storage.read(f["name"])), use_threads=False) for f in files
        ]
        rows = bag(row for table in tables for row in table.to_pylist())
        assert rows == self.case.expected[epoch].output[sink.name[3:]], (sink.name, epoch)
        self.delivered.setdefault(sink.name, {})[epoch] = rows

    def run(self) -> Coordinator:
        """Until all epochs are committed; a crash is followed by another start."""
        for number in range(STARTS_MAX):
            forget_mappings()  # a new driver has new workers
            try:
                coordinator = self.start(number)
                mine = self.starts
                self.check_state(coordinator)
                coordinator.settle()
                if coordinator.last is not None and self.rng.random() < 0.5:  # Spark was not told
                    coordinator.run_epoch(coordinator.last.batch, "local", self.never)
                first = 0 if coordinator.last is None else coordinator.last.epoch + 1
                for epoch in range(first, self.case.epoch_count):
                    self.run_epoch(coordinator, epoch)
                    self.faults.raise_the_dead()
                    if mine != self.starts:  # overtaken at the very end: its files may be gone
                        raise Overtaken("at files-collected")
                    self.check_state(coordinator)
                return coordinator
            except (Killed, Overtaken):
                continue
        raise AssertionError(f"not done after {STARTS_MAX} starts: {self.faults.log[-20:]}")

    def run_another(self) -> None:
        """What happens while a driver is paused: another takes over and gets so far."""
        coordinator = self.start(self.starts)
        coordinator.settle()
        first = 0 if coordinator.last is None else coordinator.last.epoch + 1
        for epoch in range(first, self.case.epoch_count)[: self.rng.randrange(4)]:
            self.run_epoch(coordinator, epoch)

    def run_epoch(self, coordinator: Coordinator, epoch: int) -> None:
        """The rows of an epoch as a batch, or a tick if it has none."""
        engine = FaultyEngine(self.program, self.faults)
        rows = any(given[epoch : epoch + 1] != [[]] for given in self.case.epochs.values())
        if coordinator.last is None or rows:
            batch = epoch - (0 if coordinator.last is None else coordinator.last.ticks)
            inputs = _partitions(self.program, self.rows, epoch, self.partitions)
            coordinator.run_epoch(batch, "local", partial(engine.run, inputs=inputs))
        else:
            coordinator.tick(partial(engine.run, inputs=[]), silent=True)

    @staticmethod
    def never(plan: EpochPlan) -> EpochResult:
        raise AssertionError(f"epoch {plan.epoch} is committed; no operator may run again")

    def check_state(self, coordinator: Coordinator) -> None:
        """What a reader finds now is the fold up to the last manifest."""
        last = coordinator.last
        if last is None:
            return
        store = StateStore(coordinator.checkpoint.state, warm_dir=None, buckets=BUCKETS)
        for node in coordinator.program.stateful:
            schema = coordinator.program.state_schemas[node.id]
            rows = [
                row
                for slot, files in last.chains[node.name].items()
                for row in store.scan(node.name, slot, schema, files).to_pylist()
            ]
            if node.name not in self.case.unread:
                expected = self.case.expected[last.epoch].state[node.name]
                assert bag(rows) == expected, (node.name, last.epoch)

    def check_all(self, coordinator: Coordinator) -> None:
        self.check_state(coordinator)
        assert coordinator.last is not None
        assert coordinator.last.epoch == self.case.epoch_count - 1
        for sink in self.program.sinks:
            assert sorted(self.delivered[sink.name]) == list(range(self.case.epoch_count))
        epochs = [r["epoch"] for r in coordinator.journal.read() if r["kind"] == "epoch"]
        assert sorted(set(epochs)) == list(range(self.case.epoch_count))


@pytest.mark.parametrize("seed", seeds(40, of=110))
def test_any_seed(seed: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    make = CASES[seed % len(CASES)]
    case = make(rng, quiet=(2, 5, 6)) if make is chained_windows else make(rng)
    survive(case, rng, folder, monkeypatch)


@pytest.mark.parametrize("seed", seeds(8, of=60))
def test_any_seed_of_ranks_that_change(
    seed: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(f"ranks {seed}")
    survive(ranks(rng), rng, folder, monkeypatch)


def survive(case: Case, rng: random.Random, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All faults at once."""
    faults = Faults(rng, kill_write=rng.choice([0.0, 0.0, 0.02]))
    faults.wrap_storage(monkeypatch)
    crash = rng.choice([0.0, 0.02, 0.05])

    def reach(point: str, epoch: int) -> None:
        if faults.happens(crash, f"driver dies: {point}@{epoch}"):
            raise Killed(f"{point}@{epoch}")

    monkeypatch.setattr("headgate.commit.faults.reach", reach)
    driver = Driver(case, faults, folder, warm=rng.random() < 0.6)

    done = driver.run()

    faults.kill_write = 0.0
    driver.check_all(done)


@pytest.mark.parametrize("seed", seeds(12, of=40))
def test_any_seed_with_drivers_that_are_paused_and_overtaken(
    seed: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a point of the commit path the clock stops for a driver, and others come and go."""
    rng = random.Random(seed)
    case = CASES[seed % len(CASES)](rng)
    faults = Faults(rng)
    paused: list[str] = []

    def reach(point: str, epoch: int) -> None:
        if len(paused) < 6 and faults.happens(0.04, f"driver pauses: {point}@{epoch}"):
            paused.append(point)
            with suppress(Overtaken):  # another one may be paused, and overtaken, in its turn
                driver.run_another()

    monkeypatch.setattr("headgate.commit.faults.reach", reach)
    driver = Driver(case, faults, folder, warm=rng.random() < 0.6)

    driver.check_all(driver.run())


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("epoch", [0, 3, "tick"])
def test_the_driver_dies_once_at_every_point(
    point: str, epoch: int | str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exactly this crash and nothing else; then other slots and tables."""
    rng = random.Random(f"{point}{epoch}")
    if epoch == "tick":  # it closes windows, and so has rows to deliver
        epoch = rng.choice([2, 3])
        case = rng.choice([windows, chained_windows])(rng, epochs=4, quiet=(2, 3))
    else:
        case = rng.choice(CASES)(rng)
    faults = Faults(rng, twice=0.0, zombie=0.0, abort=0.0, tamper=0.0)
    died: list[str] = []

    def reach(at: str, of: int) -> None:
        if (at, of) == (point, epoch) and not died:
            died.append(at)
            raise Killed(at)

    monkeypatch.setattr("headgate.commit.faults.reach", reach)
    driver = Driver(case, faults, folder, warm=True)

    done = driver.run()

    assert died == [point]
    driver.check_all(done)


@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("level", [0, 1])
@pytest.mark.parametrize("how", TAMPERINGS)
def test_every_tampering_is_noticed(
    how: str, level: int, slots: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The epoch is discarded, run again, and right; with one slot no other can contradict it."""
    rng = random.Random(f"{how} {level} {slots}")
    case = ordered(rng)  # its rows wait for the second level, so both levels send
    faults = Faults(rng, twice=0.0, zombie=0.0, abort=0.0, tamper=1.0, tamper_level=level)
    driver = Driver(case, faults, folder, warm=True)
    driver.first_slots = slots
    choose = rng.choice
    monkeypatch.setattr(
        rng, "choice", lambda options: how if options is TAMPERINGS else choose(options)
    )

    done = driver.run()

    driver.check_all(done)
    journal = done.journal.read()
    retries = [(r["epoch"], r["attempt"]) for r in journal if r["kind"] == "retry"]
    assert retries == [(epoch, attempt) for epoch in range(case.epoch_count) for attempt in (0, 1)]
    assert [r["attempts"] for r in journal if r["kind"] == "epoch"] == [3] * case.epoch_count
