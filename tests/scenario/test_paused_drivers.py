"""A driver that is paused anywhere and wakes up later changes nothing: neither state nor sinks.

The drivers are processes, stopped by SIGSTOP at a point of the commit path. Others take over with
other slots, commit, collect and finish; then the paused one goes on.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.scenario import pausing_driver
from tests.scenario.oracle import bag
from tests.scenario.pausing_driver import CHECKPOINT, EPOCHS, LOG, OUT, OVERTAKEN
from tests.spark.feeding import stored_state

from headgate.commit.faults import CRASH_POINTS, PAUSE_VARIABLE, VARIABLE
from headgate.commit.ownership import Generation
from headgate.errors import CheckpointError, Overtaken
from headgate.state.storage import Storage

PAUSED = 3  # the epoch
COMMITTED = CRASH_POINTS[CRASH_POINTS.index("manifest-written") :]


class Driver:
    """A driver in a process forked from this one, which has imported everything already."""

    def __init__(self, folder: Path, slots: int, **told: str) -> None:
        self.said = folder / f"said-{slots}"
        self.running = True
        self.pid = os.fork()
        if self.pid == 0:
            pausing_driver.in_child(folder, slots, self.said, told)

    def stopped(self) -> None:
        """Wait until it has paused itself."""
        _, status = os.waitpid(self.pid, os.WUNTRACED)
        self.running = os.WIFSTOPPED(status)
        assert self.running, f"it ended before it came to its point: {self.said.read_text()}"

    def wake(self) -> tuple[int, str]:
        os.kill(self.pid, signal.SIGCONT)
        return self.end()

    def end(self) -> tuple[int, str]:
        """Wait until it has ended; returns its exit code and what it said."""
        _, status = os.waitpid(self.pid, 0)
        self.running = False
        return os.waitstatus_to_exitcode(status), self.said.read_text()


@contextmanager
def driver(folder: Path, slots: int, **told: str) -> Iterator[Driver]:
    made = Driver(folder, slots, **told)
    try:
        yield made
    finally:
        if made.running:
            os.kill(made.pid, signal.SIGKILL)
            made.end()


def check_everything(folder: Path, calls_again: int = 0) -> None:
    """State, Parquet, table and function sink are those of the fold."""
    mine = pausing_driver.case()
    last, state = stored_state(mine, folder / CHECKPOINT)
    assert (last, state) == (EPOCHS - 1, mine.expected[-1].state)
    output = sum((epoch.output["sums"] for epoch in mine.expected), start=bag([]))
    for place in (folder / OUT, folder / CHECKPOINT / "tables" / "table"):
        tables = [pq.read_table(pa.py_buffer(p.read_bytes())) for p in place.glob("*.parquet")]
        assert bag(row for table in tables for row in table.to_pylist()) == output, place
    calls = [json.loads(line) for line in (folder / LOG).read_text().splitlines()]
    for call in calls:
        assert bag(call["rows"]) == mine.expected[call["epoch"]].output["sums"]
    epochs = [call["epoch"] for call in calls]
    assert epochs == sorted(epochs) and len(epochs) - EPOCHS == calls_again
    assert sorted(set(epochs)) == list(range(EPOCHS))


@pytest.mark.parametrize("point", CRASH_POINTS)
def test_a_driver_paused_at_any_point_while_another_finishes_changes_nothing(
    point: str, tmp_path: Path
) -> None:
    with driver(tmp_path, 2, **{PAUSE_VARIABLE: f"{point}@{PAUSED}"}) as paused:
        paused.stopped()
        with driver(tmp_path, 3) as other:
            assert other.end()[0] == 0

        code, said = paused.wake()

    assert code == OVERTAKEN, said
    assert "another driver took over" in said and f"process {other.pid} " in said
    # the first sink is the function; it is called again if it was called and not marked
    check_everything(tmp_path, calls_again=1 if point == "sink-called" else 0)


@pytest.mark.parametrize("point", CRASH_POINTS[:-1])
def test_a_driver_that_wakes_while_its_successor_is_in_the_same_epoch_gives_way(
    point: str, tmp_path: Path
) -> None:
    """Both have run the epoch; whatever either has made of it, its rows are shown once."""
    with driver(tmp_path, 2, **{PAUSE_VARIABLE: f"custody-checked@{PAUSED}"}) as paused:
        paused.stopped()
        with driver(tmp_path, 3, **{PAUSE_VARIABLE: f"{point}@{PAUSED}"}) as other:
            other.stopped()

            code, _ = paused.wake()

            assert code == OVERTAKEN
            assert other.wake()[0] == 0
    check_everything(tmp_path)


@pytest.mark.parametrize("point", CRASH_POINTS)
def test_what_an_overtaken_driver_left_is_right_for_a_third(point: str, tmp_path: Path) -> None:
    """The successor dies at any point; the paused one wakes, and a third goes on."""
    with driver(tmp_path, 2, **{PAUSE_VARIABLE: f"custody-checked@{PAUSED}"}) as paused:
        paused.stopped()
        with driver(tmp_path, 3, **{VARIABLE: f"{point}@{PAUSED}"}) as other:
            assert other.end()[0] == -signal.SIGKILL

        code, _ = paused.wake()

        assert code == OVERTAKEN
    with driver(tmp_path, 1) as third:
        assert third.end()[0] == 0
    check_everything(tmp_path, calls_again=1 if point == "sink-called" else 0)


def test_of_many_that_claim_at_once_each_gets_a_number_of_its_own(tmp_path: Path) -> None:
    storage = Storage.at(str(tmp_path))
    with ThreadPoolExecutor(8) as threads:
        claims = list(threads.map(lambda _: Generation.claim(storage, 0), range(200)))

    numbers = [claim.number for claim in claims]
    assert len(set(numbers)) == 200
    last = max(claims, key=lambda claim: claim.number)
    last.hold("anything")
    for claim in claims:
        if claim is not last:
            with pytest.raises(Overtaken):
                claim.hold("anything")


def test_a_checkpoint_that_was_deleted_under_a_running_driver_is_noticed(tmp_path: Path) -> None:
    claimed = Generation.claim(Storage.at(str(tmp_path / "generations")), 0)
    for file in (tmp_path / "generations").iterdir():
        file.unlink()

    with pytest.raises(CheckpointError, match="deleted or replaced"):
        claimed.hold("committing epoch 1")
