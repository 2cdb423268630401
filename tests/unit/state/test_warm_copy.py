"""The warm copy may be retained, behind, ahead, dirty, locked, evicted or killed: never wrong."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headgate.state import store as store_module
from headgate.state.columns import FixedColumn, HeapColumn, MappedMemory, PrivateMemory
from headgate.state.layout import StateSchema
from headgate.state.state_file import Chain
from headgate.state.storage import Storage
from headgate.state.store import StateStore
from headgate.state.table import HashTable
from headgate.state.warm_copy import WarmCopy, forget_mappings
from unit.state.keys import int_keys

SCHEMA = StateSchema(
    key=pa.schema([("k", pa.int64())]), values=pa.schema([("n", pa.int64()), ("s", pa.string())])
)
Truth = dict[int, tuple[int, str | None]]


@pytest.fixture(autouse=True)
def _no_mappings_left() -> Iterator[None]:
    yield
    forget_mappings()


def store_at(folder: Path, **more: Any) -> StateStore:
    return StateStore(
        Storage.at(str(folder / "files")),
        warm_dir=str(folder / "warm"),
        buckets=8,
        compact_after=more.pop("compact_after", 100),
        **more,
    )


def step(store: StateStore, chain: Chain, epoch: int, truth: Truth, slot: int = 0) -> Chain:
    """One epoch: adds, changes, removes; the dict follows."""
    rng = np.random.default_rng(epoch)
    keys = np.unique(rng.integers(0, 60 + epoch * 40, 80))
    gone = np.unique(rng.integers(0, 60 + epoch * 40, 10))
    with store.open("op", slot, SCHEMA, chain, epoch=epoch, level=1, now_ms=0) as session:
        batch = int_keys(keys)
        held = session.read(batch)
        assert held["n"].tolist() == [truth.get(k, (0, None))[0] for k in keys.tolist()]
        texts = [None if k % 9 == 0 else f"{epoch}/{k}" for k in keys.tolist()]
        session.write(batch, {"n": held["n"] + keys, "s": pa.array(texts, pa.string())})
        session.remove(int_keys(gone))
        chain = session.commit()
    for k, text in zip(keys.tolist(), texts, strict=True):
        truth[k] = (truth.get(k, (0, None))[0] + k, text)
    for k in gone.tolist():
        truth.pop(k, None)
    return chain


def content(store: StateStore, chain: Chain, slot: int = 0) -> Truth:
    with store.open("op", slot, SCHEMA, chain, epoch=99, level=1, now_ms=0) as session:
        rows = session.all()
        assert session.rows == len(rows)
        keys = rows.keys["k"].to_pylist()
        return dict(
            zip(keys, zip(rows["n"].tolist(), rows["s"].to_pylist(), strict=True), strict=True)
        )


@pytest.fixture
def rebuilds(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Notes every table built from files."""
    seen: list[str] = []
    build = HashTable.build.__func__  # type: ignore[attr-defined]

    def noted(cls: Any, layout: Any, memory: Any, *rest: Any) -> HashTable:
        seen.append(type(memory).__name__)
        return build(cls, layout, memory, *rest)

    monkeypatch.setattr(HashTable, "build", classmethod(noted))
    return seen


def test_epochs_go_on_from_the_retained_mapping(tmp_path: Path, rebuilds: list[str]) -> None:
    store, chain, truth = store_at(tmp_path), (), Truth()
    for epoch in range(8):
        chain = step(store, chain, epoch, truth)
    assert content(store, chain) == truth
    assert rebuilds == ["MappedMemory"]


def test_another_process_goes_on_from_the_files(tmp_path: Path, rebuilds: list[str]) -> None:
    """Mappings that this process kept must see what the others did, growth and heaps included."""
    store, truth = store_at(tmp_path), Truth()
    chain: Chain = step(store, (), 0, truth)
    for epoch in range(1, 7):
        if epoch % 2:
            known, before = chain, dict(truth)
            in_child(
                lambda known=known, before=before, epoch=epoch: step(store, known, epoch, before)
            )
            store_elsewhere = StateStore(store.storage, warm_dir=None, buckets=8)
            chain = step(store_elsewhere, chain, epoch, truth)  # the same names, by determinism
        else:
            chain = step(store, chain, epoch, truth)
    del rebuilds[:]
    assert content(store, chain) == truth
    assert rebuilds == []


def test_files_that_were_put_back_from_a_copy_are_what_is_read(
    tmp_path: Path, rebuilds: list[str]
) -> None:
    """They have the names of those that the worker still has mapped, and another content."""
    store, truth = store_at(tmp_path), {}
    chain = step(store, (), 0, truth)
    shutil.copytree(tmp_path / "warm", tmp_path / "kept")
    with store.open("op", 0, SCHEMA, chain, epoch=1, level=1, now_ms=0) as session:
        session.write(int_keys(np.array(sorted(truth))), {"n": np.zeros(len(truth), np.int64)})
        session.commit()  # an epoch that is undone, as its files are
    shutil.rmtree(tmp_path / "warm")
    shutil.copytree(tmp_path / "kept", tmp_path / "warm")

    assert content(store, chain) == truth
    assert len(rebuilds) == 1, "only the first was built"


def test_a_copy_that_is_behind_applies_only_what_is_missing(
    tmp_path: Path, rebuilds: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, truth = store_at(tmp_path), Truth()
    chain = step(store, (), 0, truth)
    elsewhere = StateStore(store.storage, warm_dir=str(tmp_path / "other"), buckets=8)
    for epoch in range(1, 4):
        chain = step(elsewhere, chain, epoch, truth)
    del rebuilds[:]
    applied: list[Any] = []
    apply = store_module._apply
    monkeypatch.setattr(
        store_module, "_apply", lambda table, rows: (applied.append(rows), apply(table, rows))
    )
    assert content(store, chain) == truth
    assert (len(applied), rebuilds) == (3, [])


def test_a_copy_that_is_behind_applies_a_run_made_since(
    tmp_path: Path, rebuilds: list[str]
) -> None:
    store = store_at(tmp_path, compact_after=3)
    elsewhere = StateStore(
        store.storage, warm_dir=str(tmp_path / "other"), buckets=8, compact_after=3
    )
    truth, chain, epoch = Truth(), (), 0
    with store.open("op", 0, SCHEMA, (), epoch=0, level=1, now_ms=0) as session:
        session.write(int_keys(np.arange(5000, 9000)), {"n": np.ones(4000, np.int64)})
        chain = session.commit()
    truth.update(dict.fromkeys(range(5000, 9000), (1, None)))
    while not (len(chain) > 1 and chain[-1].kind == "delta" and chain[0].kind == "snapshot"):
        epoch += 1
        chain = step(store, chain, epoch, truth)
    while chain[-1].kind != "run":
        epoch += 1
        chain = step(elsewhere, chain, epoch, truth)
    del rebuilds[:]
    assert content(store, chain) == truth
    assert rebuilds == []


def test_a_copy_that_lacks_files_which_a_fold_replaced_is_rebuilt_without_them(
    tmp_path: Path, rebuilds: list[str]
) -> None:
    """To bring it up to date their rows would be applied; the chain itself needs none of them."""
    store, elsewhere = (
        StateStore(
            Storage.at(str(tmp_path / "files")),
            warm_dir=str(tmp_path / name),
            buckets=8,
            compact_after=3,
        )
        for name in ("here", "there")
    )
    truth, epoch = Truth(), 0
    chain = step(store, (), epoch, truth)
    while not chain[-1].replaces:
        epoch += 1
        chain = step(elsewhere, chain, epoch, truth)
    (tmp_path / "files" / chain[-1].replaces[-1].name).unlink()
    del rebuilds[:]
    assert content(store, chain) == truth
    assert rebuilds == ["MappedMemory"]


def test_a_copy_that_is_ahead_is_rebuilt(tmp_path: Path, rebuilds: list[str]) -> None:
    """An attempt that Spark refused must leave no trace."""
    store, truth = store_at(tmp_path), Truth()
    chain = step(store, (), 0, truth)
    step(store, chain, 1, dict(truth))
    del rebuilds[:]
    assert content(store, chain) == truth
    assert rebuilds == ["MappedMemory"]


def fail_after_writing(store: StateStore, chain: Chain) -> None:
    with store.open("op", 0, SCHEMA, chain, epoch=1, level=1, now_ms=0) as session:
        session.write(int_keys(np.arange(1000)), {"n": np.ones(1000, np.int64)})
        raise RuntimeError("the operator failed")


def test_an_abandoned_session_leaves_no_trace(tmp_path: Path) -> None:
    store, truth = store_at(tmp_path), Truth()
    chain = step(store, (), 0, truth)
    for _ in range(2):
        with pytest.raises(RuntimeError):
            fail_after_writing(store, chain)
        assert content(store, chain) == truth


def test_who_does_not_get_the_lock_works_on_a_private_copy(
    tmp_path: Path, rebuilds: list[str]
) -> None:
    store, truth = store_at(tmp_path), Truth()
    chain = step(store, (), 0, truth)
    ready, go_on = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        with store.open("op", 0, SCHEMA, chain, epoch=1, level=1, now_ms=0) as session:
            session.write(int_keys(np.arange(1000)), {"n": np.ones(1000, np.int64)})
            os.write(ready[1], b"x")
            os.read(go_on[0], 1)
            os._exit(0)
    os.read(ready[0], 1)
    del rebuilds[:]
    try:
        assert content(store, chain) == truth
        assert step(store, chain, 1, dict(truth)) != chain
        assert rebuilds == ["PrivateMemory", "PrivateMemory"]
        assert not store.drop("op", 0)
    finally:
        os.write(go_on[1], b"x")
        os.waitpid(child, 0)
    assert content(store, chain) == truth


def test_a_child_forked_in_mid_session_does_not_keep_the_lock(
    tmp_path: Path, rebuilds: list[str]
) -> None:
    store, truth = store_at(tmp_path), Truth()
    chain = step(store, (), 0, truth)
    go_on = os.pipe()
    session = store.open("op", 0, SCHEMA, chain, epoch=1, level=1, now_ms=0)
    child = os.fork()
    if not child:
        session.__exit__(None, None, None)  # unwinding in a fork must not unlock the parent's
        os.read(go_on[0], 1)
        os._exit(0)
    try:
        session.write(int_keys(np.array([0])), {"n": np.array([5])})
        del rebuilds[:]
        assert content(store, chain) == truth
        assert rebuilds == ["PrivateMemory"]  # still locked by this session
        chain = session.commit()
        del rebuilds[:]
        assert content(store, chain)[0][0] == 5
        assert rebuilds == []
    finally:
        os.write(go_on[1], b"x")
        os.waitpid(child, 0)


KILLS: dict[str, tuple[Any, str]] = {
    "before a row is claimed": (HashTable, "insert"),
    "between columns": (FixedColumn, "scatter"),
    "while strings are added": (HeapColumn, "scatter"),
    "before a removal": (HashTable, "remove"),
    "while a generation is written": (MappedMemory, "install"),
    "before the image is marked dirty": (WarmCopy, "mark_dirty"),
    "before the stamp": (WarmCopy, "stamp"),
    "before old files are cleaned": (MappedMemory, "clean"),
    "before the lock is released": (WarmCopy, "release"),
}


@pytest.mark.parametrize("where", KILLS)
@pytest.mark.parametrize("nth", [1, 2, 4])
@pytest.mark.parametrize("retained", [True, False])
def test_a_killed_worker_leaves_the_state_right(
    tmp_path: Path, where: str, nth: int, retained: bool
) -> None:
    store, truth = store_at(tmp_path), Truth()
    chain: Chain = ()
    for epoch in range(3):
        chain = step(store, chain, epoch, truth)
    after = dict(truth)
    plain = StateStore(store.storage, warm_dir=None, buckets=8)
    accepted = step(plain, chain, 3, after)
    owner, name = KILLS[where]

    def work() -> None:
        if not retained:
            forget_mappings()
        kill_at(owner, name, nth)
        step(store, chain, 3, dict(truth))

    in_child(work)

    assert content(store, chain) == truth
    in_child(work)
    assert content(store, accepted) == after
    later = step(store, accepted, 4, after)
    assert content(store, later) == after


def kill_at(owner: Any, name: str, nth: int) -> None:
    """From now on, the n-th call of a method half-does its work and then kills the process."""
    calls = [0]
    original: Callable[..., Any] = getattr(owner, name)

    def deadly(self: Any, *given: Any) -> Any:
        calls[0] += 1
        if calls[0] == nth:
            if name == "scatter" and isinstance(self, FixedColumn):
                self.data[given[0][: len(given[0]) // 2]] = 12345
            os.kill(os.getpid(), signal.SIGKILL)
        return original(self, *given)

    setattr(owner, name, deadly)


def in_child(work: Callable[[], Any]) -> None:
    child = os.fork()
    if not child:
        try:
            work()
            os._exit(0)
        except BaseException as error:
            os.write(2, repr(error).encode())
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert status in (0, signal.SIGKILL), f"the child failed with {status}"


def test_an_image_of_another_boot_is_not_trusted(
    tmp_path: Path, rebuilds: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, truth = store_at(tmp_path), Truth()
    chain = step(store, (), 0, truth)
    del rebuilds[:]
    monkeypatch.setattr("headgate.state.warm_copy._boot_id", lambda: "another")
    assert content(store, chain) == truth
    assert rebuilds == ["MappedMemory"]


@pytest.mark.parametrize("damage", ["head", "column"])
def test_a_damaged_image_is_rebuilt(tmp_path: Path, damage: str) -> None:
    store, truth = store_at(tmp_path), Truth()
    chain = step(store, (), 0, truth)
    forget_mappings()
    folder = tmp_path / "warm" / "op" / "00000"
    if damage == "head":
        raw = bytearray((folder / "head").read_bytes())
        raw[40] ^= 1
        (folder / "head").write_bytes(raw)
    else:
        next(path for path in folder.iterdir() if path.name.endswith("-h")).unlink()
    assert content(store, chain) == truth


def test_the_budget_evicts_the_least_recently_used(tmp_path: Path) -> None:
    store = store_at(tmp_path, budget_bytes=400_000)
    truths: list[Truth] = [{}, {}, {}]
    chains: list[Chain] = [(), (), ()]
    for slot in range(3):
        with store.open("op", slot, SCHEMA, (), epoch=0, level=1, now_ms=0) as session:
            keys = np.arange(2000)
            session.write(int_keys(keys), {"n": keys})
            chains[slot] = session.commit()
        truths[slot] = {k: (k, None) for k in range(2000)}
        os.utime(store.warm.path("op", slot) + "/head", (slot, slot))  # type: ignore[union-attr]
    folders = [(tmp_path / "warm" / "op" / f"{slot:05d}").exists() for slot in range(3)]
    assert folders == [False, False, True] or folders == [False, True, True]
    for slot in range(3):
        assert content(store, chains[slot], slot) == truths[slot]


def test_a_note_stays_while_there_are_copies_that_were_used_before_it(tmp_path: Path) -> None:
    store = store_at(tmp_path, budget_bytes=400_000)
    assert store.warm is not None
    copy = store.warm.lock("noted", 0)
    assert copy is not None
    copy.keep_note(b"measured")
    copy.release()
    for slot in range(3):
        with store.open("op", slot, SCHEMA, (), epoch=0, level=1, now_ms=0) as session:
            keys = np.arange(2000)
            session.write(int_keys(keys), {"n": keys})
            session.commit()
        os.utime(store.warm.path("op", slot) + "/head", (slot, slot))

    assert not Path(store.warm.path("op", 0)).exists()
    kept = store.warm.lock("noted", 0)
    assert kept is not None
    assert kept.note() == b"measured"
    kept.release()


def test_a_budget_for_nothing_means_private_tables(tmp_path: Path) -> None:
    store, chain, truth = store_at(tmp_path, budget_bytes=0), (), Truth()
    for epoch in range(3):
        chain = step(store, chain, epoch, truth)
    assert content(store, chain) == truth
    assert not list((tmp_path / "warm").rglob("*-h"))


def test_a_dropped_copy_is_gone_and_comes_back(tmp_path: Path) -> None:
    store, truth = store_at(tmp_path), Truth()
    chain = step(store, (), 0, truth)
    assert store.drop("op", 0)
    assert not (tmp_path / "warm" / "op" / "00000").exists()
    assert content(store, chain) == truth


def test_old_generations_leave_no_files(tmp_path: Path) -> None:
    store, chain, truth = store_at(tmp_path), (), Truth()
    for epoch in range(12):
        chain = step(store, chain, epoch, truth)
    names = {path.name for path in (tmp_path / "warm" / "op" / "00000").iterdir()}
    generations = {name.split("-")[0] for name in names if name != "head"}
    assert len(generations) == 1


def test_a_full_disk_means_a_private_table_and_no_error(tmp_path: Path) -> None:
    warm = tmp_path / "tiny"
    warm.mkdir()
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a tiny tmpfs")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(warm)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount a tmpfs here: {mounted.stderr.decode().strip()}")
    try:
        store = StateStore(Storage.at(str(tmp_path / "files")), warm_dir=str(warm), buckets=8)
        chain, truth = (), Truth()
        for epoch in range(6):  # grows out of the tmpfs on the way
            chain = step(store, chain, epoch, truth)
            with store.open("op", 0, SCHEMA, chain, epoch=50 + epoch, level=1, now_ms=0) as session:
                keys = np.arange(epoch * 1000, epoch * 1000 + 1000)
                texts = pa.array([f"text {k}" for k in keys])
                session.write(int_keys(keys), {"n": keys, "s": texts})
                chain = session.commit()
            truth.update({k: (k, f"text {k}") for k in keys.tolist()})
            assert content(store, chain) == truth
        forget_mappings()
        assert content(store, chain) == truth
    finally:
        forget_mappings()
        subprocess.run(["umount", "-l", str(warm)], check=True)


def test_private_memory_is_what_tests_and_twins_use() -> None:
    memory, array = PrivateMemory(), np.arange(3)
    memory.install("x", array)
    assert memory.arrays["x"] is array
    memory.extend("x", 5)
    assert memory.arrays["x"].tolist() == [0, 1, 2, 0, 0]
