"""What is made is its owner's alone, and a folder in which others could plant files is refused."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate import Count, Flow
from headgate.errors import UnsafeName, UntrustedFolder
from headgate.state.local_files import VARIABLE, check_folder
from headgate.state.storage import Storage
from headgate.testing import ListSource, run

SOMEBODY = 12345


@pytest.fixture(params=[0o000, 0o022, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def modes(folder: Path) -> tuple[set[int], set[int]]:
    """Of all folders, and of all files, in a folder and below it."""
    below = [folder, *folder.rglob("*")]
    return {mode(p) for p in below if p.is_dir()}, {mode(p) for p in below if p.is_file()}


def a_run(checkpoint: Path) -> None:
    flow = Flow("modes")
    rows = flow.source(ListSource("k bigint", [[{"k": 1}, {"k": 2}], [{"k": 1}]]))
    rows.key_by("k").process(Count(), name="count").to_memory("out")
    run(flow, checkpoint=checkpoint)


def test_a_checkpoint_is_its_owners_alone_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    a_run(tmp_path / "deep" / "checkpoint")

    assert modes(tmp_path / "deep") == ({0o700}, {0o600})


def test_every_way_to_make_a_file_makes_it_private(tmp_path: Path, umask: int) -> None:
    storage = Storage.at(str(tmp_path / "root"))
    storage.write("a/written", b"1")
    storage.write("b/durable", b"1", durable=True)
    storage.create("c/created", b"1")
    storage.append("d/appended", b"1")
    storage.rename("a/written", "e/renamed")

    assert modes(tmp_path / "root") == ({0o700}, {0o600})


def test_a_folder_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    folder.chmod(0o755)

    a_run(folder)

    assert mode(folder) == 0o755 and mode(folder / "headgate.json") == 0o600
    assert mode(folder / "manifests") == 0o700


def test_files_for_others_follow_the_umask(tmp_path: Path, umask: int) -> None:
    storage = Storage.at(str(tmp_path / "shared"), shared=True)
    storage.write("_staging/a", b"1")
    storage.rename("_staging/a", "a")

    assert modes(tmp_path / "shared") == ({0o777 & ~umask}, {0o666 & ~umask})


def test_a_group_that_shares_a_folder_shares_what_is_in_it(tmp_path: Path, umask: int) -> None:
    folder = tmp_path / "ours"
    folder.mkdir()
    folder.chmod(0o2770)

    a_run(folder)

    assert modes(folder) == ({0o2770}, {0o660})


def test_a_folder_that_everybody_may_write_to_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    for open_mode in (0o777, 0o1777, 0o707):
        folder.chmod(open_mode)
        with pytest.raises(UntrustedFolder, match="everybody") as caught:
            a_run(folder)
        assert caught.value.mode == open_mode and os.listdir(folder) == []


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")


@needs_root
def test_a_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir(mode=0o755)
    os.chown(folder, SOMEBODY, SOMEBODY)

    with pytest.raises(UntrustedFolder, match=f"user {SOMEBODY}") as caught:
        a_run(folder)

    assert caught.value.owner == SOMEBODY and os.listdir(folder) == []


def test_who_knows_better_may_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "volume"
    folder.mkdir()
    folder.chmod(0o777)
    monkeypatch.setenv(VARIABLE, "1")

    a_run(folder)

    assert (folder / "headgate.json").exists()


def test_part_of_a_checkpoint_may_not_lie_elsewhere_by_a_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "state").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(UnsafeName, match="symbolic link"):
        a_run(tmp_path / "checkpoint")

    assert os.listdir(tmp_path / "elsewhere") == []


def test_a_missing_folder_is_made(tmp_path: Path) -> None:
    check_folder(str(tmp_path / "a" / "b"))

    assert mode(tmp_path / "a" / "b") == mode(tmp_path / "a") == 0o700
