"""Side tables that change while a flow runs: which rows each epoch sees, whatever fails."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headgate as hg
from headgate.commit.coordinator import EngineAborted
from headgate.commit.inspection import Inspection
from headgate.errors import DeclarationError, OperatorFailed, StateFileError
from headgate.slot import side_table
from headgate.testing import ListSource, LocalRun, ManualClock, run

MINUTE = 60_000
EPOCHS = 6


class Names:
    """A table that a test changes; it counts how often it is read."""

    def __init__(self) -> None:
        self.name: Any = "first"
        self.reads = 0

    def __call__(self) -> pa.Table:
        self.reads += 1
        if self.name is None:
            raise OSError("the server is away")
        return pa.table({"k": pa.array([1, 2], pa.int64()), "name": [self.name] * 2})


class Watched:
    """Starts the flow and keeps what its sink got, by epoch: at last one name each."""

    def __init__(self, names: Names, checkpoint: Path, refresh: str | None = "1 minute") -> None:
        self.names, self.checkpoint, self.refresh = names, checkpoint, refresh
        self.clock, self.seen = ManualClock(), dict[int, set[str]]()

    def start(self, epochs: int = EPOCHS, before: Callable[[int], None] | None = None) -> LocalRun:
        side_table._held.clear()  # a new driver has new workers
        flow = hg.Flow("looks")
        rows = [[{"k": 1 + n % 2} for n in range(4)] for _ in range(epochs)]
        looked = flow.source(ListSource("k bigint", rows)).lookup(
            self.names, on="k", refresh=self.refresh, schema="k bigint, name string", name="names"
        )

        def show(rows: Any, epoch: int) -> None:
            found = {row["name"] for row in rows}
            assert self.seen.setdefault(epoch, found) == found  # told again: told the same
            assert len(rows) == 4
            assert len(found) == 1

        looked.key_by("k").process(hg.Count(), name="count").discard()
        looked.to(show, name="out")
        return run(flow, checkpoint=self.checkpoint, clock=self.clock, before_epoch=before)

    def told(self) -> list[str]:
        return [next(iter(names)) for _, names in sorted(self.seen.items())]


def test_a_table_is_read_again_when_it_is_due(tmp_path: Path) -> None:
    names = Names()
    watched = Watched(names, tmp_path)

    def before(epoch: int) -> None:
        watched.clock.advance(MINUTE // 2)
        names.name = f"at {epoch}"

    done = watched.start(before=before)
    assert watched.told() == ["first", "at 1", "at 1", "at 3", "at 3", "at 5"]
    told = [record for record in done.journal if record["kind"] == "side_table"]
    assert [(r["epoch"], r["rows"], r["read_ms"]) for r in told] == [
        (0, 2, 0),
        (1, 2, MINUTE),
        (3, 2, 2 * MINUTE),
        (5, 2, 3 * MINUTE),
    ]
    shown = Inspection(str(tmp_path)).to_json()["side_tables"]["names"]
    assert shown == {"file": told[-1]["file"], "rows": 2, "read_ms": 3 * MINUTE}


def test_without_refresh_a_start_reads_once(tmp_path: Path) -> None:
    names = Names()
    watched = Watched(names, tmp_path, refresh=None)

    def before(epoch: int) -> None:
        watched.clock.advance(100 * MINUTE)
        names.name = "second"

    watched.start(3, before)
    assert (watched.told(), names.reads) == (["first"] * 3, 1)
    watched.start()
    assert (watched.told(), names.reads) == (["first"] * 3 + ["second"] * 3, 2)


def test_all_attempts_at_an_epoch_see_one_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table changes and falls due between two attempts: the next epoch has it, not this."""
    names = Names()
    watched = Watched(names, tmp_path)
    aborted = []

    def reach(point: str, epoch: int) -> None:
        if point == "tasks-done" and epoch not in aborted:
            aborted.append(epoch)
            watched.clock.advance(2 * MINUTE)
            names.name = f"after {epoch}"
            raise EngineAborted("lost a host")

    monkeypatch.setattr("headgate.commit.faults.reach", reach)
    done = watched.start(3)
    assert watched.told() == ["first", "after 0", "after 1"]
    assert [r["attempts"] for r in done.records] == [2, 2, 2]


def test_a_table_that_cannot_be_read_stays_as_it_was(tmp_path: Path) -> None:
    names = Names()
    watched = Watched(names, tmp_path)

    def before(epoch: int) -> None:
        watched.clock.advance(MINUTE)
        names.name = None if epoch < 4 else "back"

    done = watched.start(5, before)
    assert watched.told() == ["first"] * 4 + ["back"]
    failed = [r for r in done.journal if r["kind"] == "side_table" and "failed" in r]
    assert [r["epoch"] for r in failed] == [0, 1, 2, 3]
    assert all("the server is away" in r["failed"] and r["read_ms"] == 0 for r in failed)
    names.name = None
    watched.start()  # a start goes on with the newest version that was read
    assert watched.told() == ["first"] * 4 + ["back"] * 2


@pytest.mark.parametrize("point", ["tables-saved", "planned", "tasks-done", "manifest-written"])
def test_a_driver_that_dies_around_a_refresh(
    point: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = Names()
    watched = Watched(names, tmp_path)

    class Killed(BaseException):
        pass

    died = []

    def reach(at: str, epoch: int) -> None:
        if (at, epoch) == (point, 2) and not died:
            died.append(epoch)
            raise Killed

    def before(epoch: int) -> None:
        watched.clock.advance(MINUTE)
        names.name = f"at {epoch}"

    monkeypatch.setattr("headgate.commit.faults.reach", reach)
    with pytest.raises(Killed):
        watched.start(before=before)
    watched.start(before=before)
    assert watched.told() == [f"at {epoch}" for epoch in range(EPOCHS)]


def test_a_damaged_version_is_named_and_a_start_reads_anew(tmp_path: Path) -> None:
    names = Names()
    watched = Watched(names, tmp_path)

    def flip(epoch: int) -> None:
        if epoch == 2:
            side_table._held.clear()  # a worker that has not read it yet
            for file in (tmp_path / "lookups").iterdir():
                data = bytearray(file.read_bytes())
                data[len(data) // 2] ^= 1
                file.write_bytes(data)

    with pytest.raises(StateFileError, match=r"names: the side table names-.*Start the flow again"):
        watched.start(before=flip)
    assert watched.told() == ["first"] * 2
    names.name = None
    with pytest.raises(OperatorFailed, match="the server is away"):
        watched.start()  # neither the table nor a whole version of it
    names.name = "second"
    watched.start()
    assert watched.told() == ["first"] * 2 + ["second"] * 4


def test_versions_that_nobody_needs_are_collected(tmp_path: Path) -> None:
    names = Names()
    watched = Watched(names, tmp_path)

    def before(epoch: int) -> None:
        watched.clock.advance(MINUTE)
        names.name = f"at {epoch}"

    done = watched.start(20, before)
    assert len(set(watched.told())) == 20
    kept = {file.name for file in (tmp_path / "lookups").iterdir()}
    assert done.coordinator.last is not None
    assert done.coordinator.last.side_tables["names"].file in kept
    assert len(kept) <= 9  # of the manifests that are kept; the first was never used


def test_a_start_without_its_table_leaves_a_running_flow_alone(tmp_path: Path) -> None:
    watched = Watched(Names(), tmp_path)
    watched.start(2)
    claimed = sorted(file.name for file in (tmp_path / "generations").iterdir())
    flow = hg.Flow("looks")
    twice = pa.table({"k": pa.array([1, 1], pa.int64()), "other": ["a", "b"]})
    looked = flow.source(ListSource("k bigint", [[]])).lookup(twice, on="k", name="names")
    looked.key_by("k").process(hg.Count(), name="count").discard()
    looked.to(print, name="out")
    with pytest.raises(DeclarationError, match="2 times"):
        run(flow, checkpoint=tmp_path)
    assert sorted(file.name for file in (tmp_path / "generations").iterdir()) == claimed
