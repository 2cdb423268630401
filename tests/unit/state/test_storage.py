"""Storage: whole files or none, one winner, and a full disk said plainly."""

from __future__ import annotations

import os
import pickle
import subprocess
from pathlib import Path

import pyarrow as pa
import pytest

from headgate.errors import CheckpointError, StorageFull
from headgate.state import storage as storage_module
from headgate.state.storage import Storage
from unit.state.remote import NotLocal


def link_if_absent(old: str, new: str) -> bool:
    """What Hadoop's client does on HDFS, on a local disk."""
    try:
        os.link(old, new)
    except FileExistsError:
        return False
    return True


@pytest.fixture(params=["local", "hadoop", "s3"])
def storage(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Storage:
    if request.param == "s3":
        return Storage.at(request.getfixturevalue("s3").folder())
    monkeypatch.setattr(storage_module, "rename_if_absent", link_if_absent)
    kind = Storage if request.param == "local" else NotLocal
    return kind.at(str(tmp_path / "root"))


def test_files_come_back_as_written(storage: Storage) -> None:
    storage.write("a/b", b"one")
    storage.write("a/b", [b"two", pa.py_buffer(b"three"), b""])
    storage.write("log", b"xy")

    assert storage.read("a/b") == b"twothree"
    assert storage.size("a/b") == 8
    with storage.open_input("a/b") as source:
        assert source.read() == b"twothree"
    assert storage.list() == ["a/b", "log"]
    assert storage.list("a/") == ["a/b"]
    assert storage.list("nowhere/") == []
    storage.delete("a/b")
    storage.delete("a/b")
    assert not storage.exists("a/b") and storage.exists("log")


def test_a_local_file_grows_by_what_is_appended(tmp_path: Path) -> None:
    storage = Storage.at(str(tmp_path))
    storage.append("logs/a", b"x")
    storage.append("logs/a", b"yz")

    assert storage.read("logs/a") == b"xyz" and storage.list() == ["logs/a"]


@pytest.mark.parametrize("ask", ["read", "size", "open_input"])
def test_a_missing_file_is_file_not_found(storage: Storage, ask: str) -> None:
    with pytest.raises(FileNotFoundError):
        getattr(storage, ask)("nothing")


def test_only_the_first_creator_wins(storage: Storage) -> None:
    assert storage.create("epochs/7", b"mine")
    assert not storage.create("epochs/7", b"yours")
    assert storage.read("epochs/7") == b"mine"
    assert storage.list() == ["epochs/7"]


def test_without_a_client_that_can_tell_who_was_first_nothing_is_created(tmp_path: Path) -> None:
    storage = NotLocal.at(str(tmp_path))

    with pytest.raises(CheckpointError, match="Hadoop's client"):
        storage.create("manifests/7", b"mine")
    assert storage.list() == []


def test_renamed_files_replace_what_was_there(storage: Storage) -> None:
    storage.write("staged/a", b"new")
    storage.write("a", b"old")

    storage.rename("staged/a", "a")

    assert storage.read("a") == b"new" and storage.list() == ["a"]
    with pytest.raises(FileNotFoundError):
        storage.rename("staged/a", "a")


def test_two_processes_cannot_both_create(tmp_path: Path) -> None:
    storage = Storage.at(str(tmp_path))
    readers = []
    for child in range(2):
        read_end, write_end = os.pipe()
        if not os.fork():
            wins = [storage.create(f"m/{n}", f"{child}".encode() * 5000) for n in range(100)]
            os.write(write_end, bytes(wins))
            os._exit(0)
        os.close(write_end)
        readers.append(read_end)
    first, second = (os.read(reader, 100) for reader in readers)
    for _ in range(2):
        os.wait()

    assert all(a + b == 1 for a, b in zip(first, second, strict=True))
    for number, won in enumerate(first):
        assert storage.read(f"m/{number}") == (b"0" if won else b"1") * 5000


def test_a_storage_can_be_pickled_and_has_children(tmp_path: Path) -> None:
    storage = Storage.at(f"file://{tmp_path}")
    storage.child("x", "y").write("z", b"1")
    again: Storage = pickle.loads(pickle.dumps(storage))
    assert again.list() == ["x/y/z"]
    assert again == storage and again.child("x").uri == f"file://{tmp_path}/x"


def test_durable_writes_work_like_others(tmp_path: Path) -> None:
    storage = Storage.at(str(tmp_path))
    storage.write("a", b"x" * 10, durable=True)
    assert storage.read("a") == b"x" * 10


def test_a_full_disk_is_said_plainly_and_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    folder.mkdir()
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a tiny tmpfs")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount a tmpfs here: {mounted.stderr.decode().strip()}")
    try:
        storage = Storage.at(str(folder))
        storage.write("ok", b"x" * 1000)
        for write in (storage.write, storage.create, storage.append):
            with pytest.raises(StorageFull) as full:
                write("big", b"x" * 200_000)
            assert full.value.uri == str(folder)
            storage.delete("big")
        assert os.listdir(folder) == ["ok"]
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
