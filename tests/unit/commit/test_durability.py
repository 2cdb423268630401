"""What a manifest names has reached the disk before the manifest exists."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headgate import Count, Flow
from headgate.commit.checkpoint import Checkpoint
from headgate.commit.manifest import Manifest
from headgate.state.local_files import folders_above
from headgate.state.storage import Storage
from headgate.testing import ListSource, run


@pytest.fixture
def flushed(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Paths of all that was flushed, as it happens."""
    seen: set[str] = set()
    flush = os.fsync

    def noting(descriptor: int) -> None:
        flush(descriptor)
        seen.add(os.readlink(f"/proc/self/fd/{descriptor}"))

    monkeypatch.setattr(os, "fsync", noting)
    return seen


def counting(epochs: int) -> Flow:
    flow = Flow("f")
    rows = flow.source(ListSource("k bigint", [[{"k": k} for k in range(9)]] * epochs), name="in")
    rows.key_by("k").process(Count(), name="count").to_memory("out")
    return flow


def test_state_sink_rows_and_sparks_plan_are_flushed_before_the_commit(
    tmp_path: Path, flushed: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = Checkpoint.commit
    planned = [tmp_path / "spark" / name for name in ("offsets/0", "sources/0/0")]
    for path in planned:
        path.parent.mkdir(parents=True)
        path.write_text("v1")
    checked: list[int] = []

    def checking(self: Checkpoint, manifest: Manifest) -> bool:
        files = [tmp_path / "state" / name for name in manifest.state_files()]
        files += [tmp_path / "sinks" / "out" / f["name"] for f in manifest.sinks["out"]]
        for path in [*files, *planned]:
            assert {str(path), str(path.parent)} <= flushed
        assert {str(tmp_path), str(tmp_path / "state" / "count")} <= flushed
        checked.append(len(files))
        return commit(self, manifest)

    monkeypatch.setattr(Checkpoint, "commit", checking)
    run(counting(1), checkpoint=tmp_path)

    assert checked == [4]  # two slots, each with a file of state and one of sink rows


def test_only_the_epochs_own_files_are_flushed_and_none_if_that_is_asked(
    tmp_path: Path, flushed: set[str]
) -> None:
    run(counting(1), checkpoint=tmp_path)
    before = {path for path in flushed if path.endswith(".arrow")}
    flushed.clear()

    run(counting(2), checkpoint=tmp_path)
    run(counting(3), checkpoint=tmp_path, durable=False)

    again = {path for path in flushed if path.endswith(".arrow")}
    assert before and again and not before & again
    assert all("/e000000001-" in path for path in again)


def test_folders_are_flushed_up_to_the_one_that_holds_the_storage(tmp_path: Path) -> None:
    assert folders_above("/a/b/c/d", "/a/b") == ["/a/b/c", "/a/b", "/a"]
    assert folders_above("/b/c", "/b/") == ["/b", "/"]
    assert folders_above("/c", "/") == ["/"]


def test_files_that_are_gone_are_passed_over_and_the_others_flushed(
    tmp_path: Path, flushed: set[str]
) -> None:
    (tmp_path / "here").write_text("something")

    Storage.at(str(tmp_path)).flush(["nowhere/file", "here", "other"])

    assert {path for path in flushed if Path(path).is_file()} == {str(tmp_path / "here")}
