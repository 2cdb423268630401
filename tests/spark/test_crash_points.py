"""The driver dies or freezes at every point of the commit path; nothing is lost or doubled.

One checkpoint lives through all of it: each crash hits another epoch, and the next driver, which
waits with its JVM running, takes over from what the last one left. After every crash the state on
storage is checked without Spark. Every second driver is not killed but paused (SIGSTOP), and wakes
up when its successor has come to its own end: it has been overtaken, and must change nothing. Then
it is the next one to start again, with all that it still has in memory.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from tests.scenario.oracle import bag
from tests.spark.feeding import stored_state, write_case
from tests.spark.programs.crash_driver import CHECKPOINT, EPOCHS, LOG, OUT, case

from headgate.commit.faults import CRASH_POINTS, PAUSE_VARIABLE, VARIABLE

LOCAL = "local"
PROGRAM = Path(__file__).parent / "programs" / "crash_driver.py"
BEFORE = CRASH_POINTS[: CRASH_POINTS.index("manifest-written")]
COMMITTED = CRASH_POINTS[len(BEFORE) :]
AFTER = CRASH_POINTS[CRASH_POINTS.index("sink-marked") :]
DYING = len(BEFORE) + 1
# Every point once, most at an epoch of their own; the first epoch of all before and after its
# commit. One epoch dies four times: committed, then in its first sink, between two files of the
# second, and after it, so that every driver but the last finds some sinks done and others not.
CRASHES = [
    ("planned", 0),
    ("manifest-written", 0),
    *((point, epoch) for epoch, point in enumerate(BEFORE, 1) if point != "planned"),
    ("manifest-written", DYING),
    ("sink-called", DYING),
    ("file-published", DYING),
    ("sink-called", DYING),
    *((point, epoch) for epoch, point in enumerate(AFTER, DYING + 1)),
]
FRESH = len(CRASHES[::2]) + 2  # those that are killed, the one that is paused, and the last


class Driver:
    def __init__(self, folder: Path, number: int) -> None:
        self.errors = (folder / f"driver-{number}.err").open("w")
        environment = {k: v for k, v in os.environ.items() if k not in (VARIABLE, PAUSE_VARIABLE)}
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            # What a killed driver leaves lies there; all have one disk, as drivers of a host do.
            env={**environment, "TMPDIR": str(folder), "SPARK_LOCAL_DIRS": str(folder / LOCAL)},
        )

    def go(self, slots: int, at: str = "", *, pause: bool = False) -> None:
        """Let it run, to its end or to a point of the commit path."""
        assert self.process.stdout is not None and self.process.stdin is not None
        ready = self.process.stdout.readline()
        assert ready == "ready\n", self.said()
        variable = PAUSE_VARIABLE if pause else VARIABLE
        told = {"slots": slots, "environment": {variable: at}, "seed": at}
        self.process.stdin.write(json.dumps(told) + "\n")
        self.process.stdin.flush()

    def ended(self) -> tuple[int, str]:
        """Wait for its end; exit code and last words."""
        told, _ = self.process.communicate()
        return self.process.returncode, told

    def paused(self) -> None:
        _, status = os.waitpid(self.process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), f"it ended before it came to its point: {self.said()}"

    def wake(self) -> None:
        """Let a paused driver go on: it finds that it was overtaken, and says by whom."""
        assert self.process.stdout is not None
        self.process.send_signal(signal.SIGCONT)
        told = self.process.stdout.readline()
        assert told and "another driver took over" in json.loads(told)["overtaken"], self.said()

    def said(self) -> str:
        return Path(self.errors.name).read_text()[-3000:]

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()
        self.errors.close()


@contextmanager
def drivers(folder: Path) -> Iterator[Iterator[Driver]]:
    """Drivers in a row; while one is used, the next makes its JVM."""
    started: list[Driver] = []

    def in_a_row() -> Iterator[Driver]:
        for number in range(FRESH):
            while len(started) < min(FRESH, number + 2):
                started.append(Driver(folder, len(started)))
            yield started[number]

    try:
        yield in_a_row()
    finally:
        for driver in started:
            driver.end()


def test_drivers_killed_and_paused_at_every_point_lose_and_double_nothing(tmp_path: Path) -> None:
    mine = case()
    write_case(mine, tmp_path / "in")
    with drivers(tmp_path) as row:
        frozen: Driver | None = None
        woken: Driver | None = None
        for number, (point, epoch) in enumerate(CRASHES):
            pause = bool(number % 2)
            driver = woken if pause and woken is not None else next(row)
            driver.go(2 + number % 2, f"{point}@{epoch}", pause=pause)
            if pause:
                driver.paused()
            else:
                code, told = driver.ended()
                assert code == -signal.SIGKILL, f"{point}@{epoch} was not reached: {told}"
            if frozen is not None:
                frozen.wake()
            woken, frozen = frozen, driver if pause else None
            committed, state = stored_state(mine, tmp_path / CHECKPOINT)
            on_storage = epoch if point in COMMITTED else epoch - 1
            assert committed == (on_storage if on_storage >= 0 else None), point
            if committed is not None:
                assert state == mine.expected[committed].state, f"after {point}@{epoch}"
            check_calls(tmp_path, committed, mine)
            if point == "file-published":
                assert list((tmp_path / OUT).glob(f"*e{epoch:09d}-*.parquet"))

        final = next(row)
        final.go(slots=2)
        code, told = final.ended()
        assert code == 0, final.said()
        if frozen is not None:
            frozen.wake()
            code, _ = frozen.ended()
            assert code == 0, frozen.said()

    assert list(tmp_path.glob(f"{LOCAL}/blockmgr-*")), "a JVM that is killed leaves its folder"
    assert not list(tmp_path.glob(f"{LOCAL}/blockmgr-*/headgate-*")), "warm copies outlived a kill"
    last, state = stored_state(mine, tmp_path / CHECKPOINT)
    assert last == EPOCHS - 1
    assert state == mine.expected[-1].state
    called = check_calls(tmp_path, last, mine)
    assert sorted(set(called)) == list(range(EPOCHS)) and called == sorted(called)
    assert len(called) - EPOCHS == 1, "called again only where it was not marked"
    outputs: Any = sum((e.output["sums"] for e in mine.expected), start=bag([]))
    published = [
        pq.read_table(pa.py_buffer(p.read_bytes())) for p in tmp_path.glob(f"{OUT}/*.parquet")
    ]
    assert bag(row for table in published for row in table.to_pylist()) == outputs
    answer = json.loads(told)
    assert bag(answer["table"]) == outputs
    records = [r for r in answer["journal"] if r["kind"] == "epoch"]
    assert [r["epoch"] for r in records] == list(range(EPOCHS))
    assert len([r for r in answer["journal"] if r["kind"] == "start"]) == len(CRASHES) + 1
    assert any(r["kind"] == "plan" and any(r["moves"].values()) for r in answer["journal"])


def check_calls(folder: Path, committed: int | None, mine: Any) -> list[int]:
    """The function sink saw only committed epochs, every time with their rows."""
    if not (folder / LOG).exists():
        return []
    calls = [json.loads(line) for line in (folder / LOG).read_text().splitlines()]
    for call in calls:
        assert committed is not None and call["epoch"] <= committed
        assert bag(call["rows"]) == mine.expected[call["epoch"]].output["sums"], call["epoch"]
    return [call["epoch"] for call in calls]
