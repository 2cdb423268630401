"""Whoever else may write to the warm folder: what they plant is not read, let alone unpickled."""

from __future__ import annotations

import os
import pickle
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headgate.state.layout import RowLayout, StateSchema, Values
from headgate.state.rows import RowIds
from headgate.state.state_file import Chain
from headgate.state.storage import Storage
from headgate.state.store import StateStore
from headgate.state.warm_copy import WarmCopy, forget_mappings
from unit.state.keys import int_keys

SCHEMA = StateSchema(
    key=pa.schema([("k", pa.int64())]), values=pa.schema([("state", pa.large_binary())])
)
KEYS = int_keys(np.arange(20))
UNPICKLED: list[str] = []


class Evil:
    """Says so when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, ("planted",)


def _unpickled(told: str) -> None:
    UNPICKLED.append(told)


@pytest.fixture(autouse=True)
def _start_afresh() -> Iterator[None]:
    UNPICKLED.clear()
    yield
    forget_mappings()


def store_at(folder: Path) -> StateStore:
    return StateStore(
        Storage.at(str(folder / "files")), warm_dir=str(folder / "shared" / "flow"), buckets=8
    )


def committed(store: StateStore) -> Chain:
    with store.open("op", 0, SCHEMA, (), epoch=0, level=1, now_ms=0) as session:
        kept = pa.array([pickle.dumps(n) for n in range(20)], pa.large_binary())
        session.write(KEYS, {"state": kept})
        return session.commit()


def read_back(store: StateStore, chain: Chain, epoch: int = 1) -> list[Any]:
    """As `Update` reads its state."""
    with store.open("op", 0, SCHEMA, chain, epoch=epoch, level=1, now_ms=0) as session:
        return [pickle.loads(value) for value in session.read(KEYS)["state"].to_pylist()]


def plant(store: StateStore) -> None:
    """Forge the warm copy: it stands for the same chain, seals and digests are right."""
    assert store.warm is not None
    layout, copy = RowLayout(SCHEMA), WarmCopy(store.warm, store.warm.path("op", 0))
    attached = copy.attach(layout)
    assert attached is not None
    table, version = attached
    ids = RowIds(KEYS.route, KEYS.h, KEYS.checks)
    evil = pa.array([pickle.dumps(Evil())] * 20, pa.large_binary())
    table.scatter(ids, table.find(ids.h, ids.check)[0], {"value.state": Values(evil)})
    copy.stamp(table, version)
    copy.release()
    forget_mappings()


def give_away(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file to somebody else")
    os.chown(path, 65534, 65534, follow_symlinks=False)


def all_below(folder: Path) -> list[Path]:
    return [folder, *folder.rglob("*")]


def test_a_forged_copy_of_this_user_would_be_believed(tmp_path: Path) -> None:
    """Or the tests below would prove nothing."""
    store = store_at(tmp_path)
    chain = committed(store)
    plant(store)
    read_back(store, chain)
    assert UNPICKLED == ["planted"] * 20


FOREIGN: dict[str, Callable[[Path], list[Path]]] = {
    "everything": all_below,
    "the folder of the flow": lambda flow: [flow],
    "the folder of the operator": lambda flow: [flow / "op"],
    "the folder of the slot": lambda flow: [flow / "op" / "00000"],
    "the lock": lambda flow: [flow / "op" / "00000.lock"],
    "the head": lambda flow: [flow / "op" / "00000" / "head"],
    "the arrays": lambda flow: list((flow / "op" / "00000").glob("*-*")),
}


@pytest.mark.parametrize("which", FOREIGN)
def test_what_belongs_to_somebody_else_is_not_read(tmp_path: Path, which: str) -> None:
    store = store_at(tmp_path)
    chain = committed(store)
    plant(store)
    for path in FOREIGN[which](tmp_path / "shared" / "flow"):
        give_away(path)
    assert read_back(store, chain) == list(range(20))
    assert UNPICKLED == []


@pytest.mark.parametrize("which", FOREIGN)
def test_what_others_may_write_is_not_read(tmp_path: Path, which: str) -> None:
    store = store_at(tmp_path)
    chain = committed(store)
    plant(store)
    for path in FOREIGN[which](tmp_path / "shared" / "flow"):
        path.chmod(path.stat().st_mode | stat.S_IWOTH)
    assert read_back(store, chain) == list(range(20))
    assert UNPICKLED == []


@pytest.mark.parametrize("which", ["", "op", "op/00000", "op/00000.lock", "op/00000/head"])
def test_no_link_is_followed(tmp_path: Path, which: str) -> None:
    """Not to a place that is fine by itself, either."""
    store = store_at(tmp_path)
    chain = committed(store)
    plant(store)
    path = tmp_path / "shared" / "flow" / which
    shutil.move(path, tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert read_back(store, chain) == list(range(20))
    assert UNPICKLED == []


def test_a_folder_put_in_place_of_the_one_in_use_gets_nothing(tmp_path: Path) -> None:
    """In a folder that all may write, anybody may rename what is in it."""
    store = store_at(tmp_path)
    chain = committed(store)
    flow = tmp_path / "shared" / "flow"
    with store.open("op", 0, SCHEMA, chain, epoch=1, level=1, now_ms=0) as session:
        shutil.move(flow, tmp_path / "elsewhere")
        (flow / "op" / "00000").mkdir(parents=True)
        keys = int_keys(np.arange(1000))
        session.write(keys, {"state": pa.array([b"x" * 500] * 1000, pa.large_binary())})
        session.commit()
    assert list((flow / "op" / "00000").iterdir()) == []


def test_a_refused_folder_is_told_once_and_state_stays_right(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "shared" / "flow").mkdir(parents=True)
    (tmp_path / "shared" / "flow").chmod(0o777)
    store = store_at(tmp_path)
    chain = committed(store)
    assert read_back(store, chain) == read_back(store, chain) == list(range(20))
    assert not list((tmp_path / "shared" / "flow").iterdir())
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 1 and str(tmp_path / "shared" / "flow") in told[0]


def test_folders_and_files_are_closed_to_all_others(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        store = store_at(tmp_path)
        chain = committed(store)
        read_back(store, chain)
    finally:
        os.umask(before)
    for path in all_below(tmp_path / "shared" / "flow"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
