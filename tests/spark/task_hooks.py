"""User functions that hurt the process they run in, once; for flows under test.

Each passes its rows on. A marker file says that the fault has happened, so a task that Spark runs
again goes through.
"""

from __future__ import annotations

import os
import signal
import stat
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from tests.waiting import PATIENCE_S

from headgate.state.storage import Storage


class Hook:
    """Does nothing; base of the others."""

    def __init__(self, folder: Path, name: str) -> None:
        self.marker = str(folder / f"marker-{name}")

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.num_rows and self._is_first():
            self.strike()
        return batch

    def strike(self) -> None:
        pass

    def _is_first(self) -> bool:
        try:
            os.close(os.open(self.marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    @property
    def struck(self) -> bool:
        return os.path.exists(self.marker)


class WorkerDies(Hook):
    """The Python worker ends in the middle of its task."""

    def strike(self) -> None:
        os._exit(1)


class ExecutorDies(Hook):
    """The JVM of the executor is killed, and with it all it held for others."""

    def strike(self) -> None:
        executor = _executor()
        command = Path(f"/proc/{executor}/cmdline").read_bytes()
        assert b"CoarseGrainedExecutorBackend" in command, command
        assert b"--app-id" in command
        os.kill(executor, signal.SIGKILL)
        _wait_until(lambda: not Path(f"/proc/{executor}").exists())
        os._exit(1)


class LeavesAZombie(Hook):
    """The worker dies, but a copy of it goes on with the task when the gate opens.

    The copy is cut off from Spark (its sockets lead nowhere), so all it can do is write files,
    long after another attempt was accepted. It notes what it wrote.
    """

    def __init__(self, folder: Path, name: str) -> None:
        super().__init__(folder, name)
        self.gate, self.wrote = str(folder / f"gate-{name}"), str(folder / f"wrote-{name}")

    def strike(self) -> None:
        if os.fork():
            os._exit(1)
        _cut_off()
        _wait_until(lambda: os.path.exists(self.gate))
        write = Storage.write

        def noted(storage: Storage, name: str, data: Any, *more: Any) -> None:
            write(storage, name, data, *more)
            with open(self.wrote, "a") as file:
                file.write(f"{name}\n")

        Storage.write = noted  # type: ignore[method-assign]


class FirstAttemptWaits(Hook):
    """The first attempt of one task waits until another attempt of it has come this far."""

    def strike(self) -> None:
        twin = f"{self.marker}-twin"
        _wait_until(lambda: os.path.exists(twin))

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        with open(f"{self.marker}-attempts", "a") as file:
            file.write(f"{context.stageId()} {context.partitionId()} {context.attemptNumber()}\n")
        if batch.num_rows and context.partitionId() == 0:
            if self._is_first():
                self.strike()
            else:
                Path(f"{self.marker}-twin").touch()
        return batch


def _parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _wait_until(met: Any) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not met():
        if time.monotonic() > deadline:
            os._exit(3)
        time.sleep(0.02)


def _cut_off() -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    for entry in os.listdir("/proc/self/fd"):
        descriptor = int(entry)
        try:
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode) or descriptor < 3:
                os.dup2(nowhere, descriptor)
        except OSError:
            continue


class ShufflesRows:
    """Not pure: another order of rows in every attempt. Notes the executor it last ran in."""

    def __init__(self, folder: Path) -> None:
        self.note = str(folder / "source-executor")

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        Path(self.note).write_text(str(_executor()))
        order = np.random.default_rng().permutation(batch.num_rows)
        return batch.take(pa.array(order))


class SourceExecutorDies(ExecutorDies):
    """Kills the executor of the source task, from inside, once another has read its output."""

    def __init__(self, folder: Path, name: str) -> None:
        super().__init__(folder, name)
        self.note = str(folder / "source-executor")

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        mine = _executor()
        Path(f"{self.marker}-seen-{mine}").touch()
        if int(Path(self.note).read_text()) == mine and self._is_first():
            folder, stem = os.path.split(self.marker)
            _wait_until(lambda: len(list(Path(folder).glob(f"{stem}-seen-*"))) > 1)
            self.strike()
        return batch


def _executor() -> int:
    """The JVM above this worker's daemon."""
    return _parent_of(os.getppid())
