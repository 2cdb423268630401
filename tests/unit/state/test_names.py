"""Names from a manifest never leave their folder, whatever is asked and wherever it is kept."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from headgate.commit.checkpoint import Checkpoint, Collector
from headgate.commit.manifest import Manifest
from headgate.errors import UnsafeName
from headgate.state.state_file import StateFile
from headgate.state.storage import Storage
from object_store import LocalS3
from unit.state.remote import NotLocal

UNSAFE = ["../precious", "a/../../precious", "/etc/passwd", "a//b", "", ".", "a/.", "a/", "a\0b"]
ASKS: dict[str, Callable[[Storage, str], object]] = {
    "read": lambda s, n: s.read(n),
    "write": lambda s, n: s.write(n, b"x"),
    "create": lambda s, n: s.create(n, b"x"),
    "append": lambda s, n: s.append(n, b"x"),
    "rename from": lambda s, n: s.rename(n, "there"),
    "rename to": lambda s, n: s.rename("here", n),
    "exists": lambda s, n: s.exists(n),
    "delete": lambda s, n: s.delete("here", n),
    "size": lambda s, n: s.size(n),
    "open": lambda s, n: s.open_input(n),
    "flush": lambda s, n: s.flush([n]),
    "child": lambda s, n: s.child(n),
}


@pytest.fixture(params=["local", "hadoop", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "s3":
        return Storage.at(f"{request.getfixturevalue('s3').folder()}/root")
    return (Storage if request.param == "local" else NotLocal).at(str(tmp_path / "root"))


@pytest.mark.parametrize("ask", ASKS)
def test_a_name_that_leads_out_of_the_folder_is_refused(storage: Storage, ask: str) -> None:
    outside = Storage.at(storage.uri.rpartition("/")[0])
    outside.write("precious", b"mine")
    storage.write("here", b"1")
    before = outside.list()

    for name in UNSAFE:
        with pytest.raises(UnsafeName) as caught:
            ASKS[ask](storage, name)
        assert caught.value.name == name and caught.value.uri == storage.uri
    with pytest.raises(UnsafeName):
        storage.list("../")

    assert outside.list() == before and outside.read("precious") == b"mine"


def test_control_characters_are_refused_where_the_store_has_no_spelling_for_them(
    s3: LocalS3,
) -> None:
    with pytest.raises(UnsafeName):
        Storage.at(s3.folder()).read("a\nb")


LINKS = [ask for ask in ASKS if ask not in ("child", "delete", "flush")]


@pytest.mark.parametrize("ask", LINKS)
@pytest.mark.parametrize("name", ["file", "folder/precious"])
def test_a_link_that_leads_out_is_not_followed(tmp_path: Path, ask: str, name: str) -> None:
    outside, root = tmp_path / "outside", tmp_path / "root"
    outside.mkdir()
    (outside / "precious").write_bytes(b"mine")
    root.mkdir()
    (root / "here").write_bytes(b"1")
    (root / "file").symlink_to(outside / "precious")
    (root / "folder").symlink_to(outside)

    with pytest.raises(UnsafeName, match="outside"):
        ASKS[ask](Storage.at(str(root)), name)

    assert (outside / "precious").read_bytes() == b"mine"
    assert os.listdir(outside) == ["precious"]


def test_deleting_a_link_deletes_the_link(tmp_path: Path) -> None:
    outside, root = tmp_path / "outside", tmp_path / "root"
    outside.mkdir()
    root.mkdir()
    (outside / "precious").write_bytes(b"mine")
    (root / "file").symlink_to(outside / "precious")
    (root / "folder").symlink_to(outside)
    storage = Storage.at(str(root))

    storage.delete("file")
    with pytest.raises(UnsafeName):
        storage.delete("folder/precious")

    assert storage.list() == [] and (outside / "precious").read_bytes() == b"mine"


def test_links_may_lead_elsewhere_in_the_folder_and_the_folder_may_be_one(tmp_path: Path) -> None:
    (tmp_path / "disk" / "here").mkdir(parents=True)
    (tmp_path / "root").symlink_to(tmp_path / "disk")
    (tmp_path / "disk" / "there").symlink_to("here")
    storage = Storage.at(str(tmp_path / "root"))

    storage.write("there/a", b"1")

    assert storage.read("here/a") == b"1"


@pytest.mark.parametrize("where", ["chain", "fallback", "sink", "sink's folder"])
def test_a_forged_manifest_deletes_nothing_outside_of_its_folders(
    tmp_path: Path, where: str
) -> None:
    precious = tmp_path / "precious.txt"
    precious.write_text("mine")
    checkpoint = Checkpoint(str(tmp_path / "checkpoint"))
    up = StateFile("../../precious.txt", "delta", 0, 1, 4, "d")
    fine = StateFile("count/0/e000000000-d.delta", "delta", 0, 1, 4, "d")
    chain = {"chain": (up,), "fallback": (StateFile(fine.name, "snapshot", 0, 1, 4, "d", (up,)),)}
    sinks = {
        "sink": {"out": [{"name": "../../../precious.txt"}]},
        "sink's folder": {"../..": [{"name": "precious.txt"}]},
    }
    chains = {"count": {0: chain.get(where, (fine,))}}
    collector = Collector(checkpoint, keep=2)
    collector.after_commit(Manifest(0, "q", 1, {}, chains, sinks.get(where, {})))
    collector.after_commit(Manifest(1, "q", 1, {}, {}, {}))

    with pytest.raises(UnsafeName):
        collector.after_commit(Manifest(2, "q", 1, {}, {}, {}))

    assert precious.read_text() == "mine"
