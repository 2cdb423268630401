"""An object store: the store picks the one winner, and its errors are those of a file system."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from headgate.errors import StorageFailed
from headgate.state.object_files import WHOLE_BYTES_MAX, ObjectFiles
from headgate.state.storage import Storage
from object_store import LocalS3, Respond

RACES = [200, pytest.param(1_000, marks=pytest.mark.slow)]


@pytest.fixture
def answering(s3: LocalS3) -> Iterator[LocalS3]:
    yield s3
    s3.answer = None


@pytest.mark.parametrize("races", RACES)
def test_of_two_who_create_one_object_exactly_one_wins(races: int, s3: LocalS3) -> None:
    uri = s3.folder()
    start = threading.Barrier(2)

    def drive(me: bytes) -> list[bool]:
        storage, won = Storage.at(uri), []
        for number in range(races):
            start.wait()
            won.append(storage.create(f"manifests/{number}", me))
        return won

    with ThreadPoolExecutor(2) as drivers:
        first, second = drivers.map(drive, (b"first", b"second"))

    assert [a + b for a, b in zip(first, second, strict=True)] == [1] * races
    assert 0 < sum(first) < races, "they did not race"
    for number in range(0, races, 97):
        assert Storage.at(uri).read(f"manifests/{number}") == (
            b"first" if first[number] else b"second"
        )


RACER = """
import json, sys
from headgate.state.storage import Storage
storage = Storage.at(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
print(json.dumps([storage.create(f"m/{n}", sys.argv[2].encode()) for n in range(100)]))
"""


def test_of_two_processes_exactly_one_wins_each_object(s3: LocalS3) -> None:
    uri = s3.folder()
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, uri, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in ("a", "b")
    ]
    for racer in racers:
        assert racer.stdout is not None and racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("\n")
        racer.stdin.flush()
    first, second = (json.loads(racer.communicate()[0]) for racer in racers)

    assert [a + b for a, b in zip(first, second, strict=True)] == [1] * 100


def test_who_created_an_object_knows_it_when_the_answer_was_lost(answering: LocalS3) -> None:
    storage = Storage.at(answering.folder())
    lost = []

    def lose_first_answer(environ: dict[str, Any], start: Any, app: Respond) -> Iterable[bytes]:
        answer = app(environ, start if lost else lambda *_: None)
        if lost:
            return answer
        lost.append(b"".join(answer))
        start("500 Internal Server Error", [("Content-Length", "0")])
        return []

    answering.answer = lose_first_answer

    assert storage.create("manifests/7", b"mine")
    assert lost and not storage.create("manifests/7", b"mine")
    assert storage.read("manifests/7") == b"mine"


def test_who_loses_is_told_so_though_both_wrote_the_same(s3: LocalS3) -> None:
    uri = s3.folder()

    assert Storage.at(uri).create("generations/1", b"same")
    assert not Storage.at(uri).create("generations/1", b"same")


@pytest.mark.parametrize(
    ("status", "error"), [("403 Forbidden", PermissionError), ("400 Bad Request", OSError)]
)
def test_the_errors_of_a_store_are_those_of_files(
    answering: LocalS3, status: str, error: type[OSError]
) -> None:
    def refuse(environ: dict[str, Any], start: Any, app: Respond) -> Iterable[bytes]:
        start(status, [("Content-Length", "0")])
        return []

    storage = Storage.at(answering.folder())
    answering.answer = refuse
    for ask in (
        lambda: storage.read("a"),
        lambda: storage.write("a", b"x"),
        lambda: storage.create("a", b"x"),
        lambda: storage.exists("a"),
        lambda: storage.open_input("a"),
    ):
        with pytest.raises(StorageFailed) as caught:
            ask()
        assert isinstance(caught.value.__cause__, error)
        assert storage.uri in str(caught.value) and "Debug source" not in str(caught.value)
    with pytest.raises(OSError, match=status):
        storage.list()


def test_a_large_object_goes_in_parts_and_is_read_in_ranges(s3: LocalS3) -> None:
    storage = Storage.at(s3.folder())
    pieces = [bytes([n]) * (WHOLE_BYTES_MAX // 2 + n) for n in range(4)]
    whole = b"".join(pieces)

    storage.write("state/big", pieces)

    assert storage.size("state/big") == len(whole)
    with storage.open_input("state/big") as source:
        assert source.size() == len(whole)
        assert source.read_at(8, 0) == whole[:8]
        source.seek(WHOLE_BYTES_MAX - 3)
        middle = source.read_buffer(4_000_000).to_pybytes()
    assert middle == whole[WHOLE_BYTES_MAX - 3 :][:4_000_000]
    assert storage.read("state/big") == whole


NAMES = ["a b/c", "ü#%.txt", "x%20y", "~t", "k=v/1", "q?w", "plus+", "日本", "a..b", "{x}"]


def test_names_are_kept_as_they_are(s3: LocalS3) -> None:
    storage = Storage.at(f"{s3.folder()}/with space%20/é")
    for name in NAMES:
        storage.write(name, name.encode())

    assert storage.list() == sorted(NAMES)
    assert all(storage.read(name) == name.encode() for name in NAMES)
    storage.delete(*NAMES, "not there")
    assert storage.list() == []


def test_credentials_may_stand_in_a_profile(
    answering: LocalS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = []

    def note(environ: dict[str, Any], start: Any, app: Respond) -> Iterable[bytes]:
        keys.append(environ.get("HTTP_AUTHORIZATION", "").partition("Credential=")[2])
        return app(environ, start)

    credentials = tmp_path / "credentials"
    credentials.write_text("[work]\naws_access_key_id = of-profile\naws_secret_access_key = s\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(credentials))
    monkeypatch.setenv("AWS_PROFILE", "work")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    answering.answer = note

    Storage.at(answering.folder()).write("a", b"1")

    assert keys and all(key.startswith("of-profile/") for key in keys)


def test_a_store_is_opened_by_its_own_kind_of_client() -> None:
    for uri in ("gs://bucket/a", "abfss://container@account.dfs.core.windows.net/a"):
        assert isinstance(Storage.at(uri)._files, ObjectFiles)
