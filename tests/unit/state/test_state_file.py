"""State files: damage is found, an older file stands in where one is kept, ranges read little."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash

from headgate.errors import StateFileError
from headgate.state.layout import StateSchema
from headgate.state.state_file import Chain, StateFile
from headgate.state.storage import Storage
from headgate.state.store import StateStore
from unit.state.keys import int_keys
from unit.state.remote import NotLocal

SCHEMA = StateSchema(
    key=pa.schema([("k", pa.int64())]), values=pa.schema([("n", pa.int64()), ("s", pa.string())])
)


def written(
    folder: Path, epochs: int, rows: int = 50, **more: int
) -> tuple[StateStore, list[Chain]]:
    place = Storage.at(str(folder))
    store = StateStore(place, warm_dir=None, buckets=16, compact_after=2, **more)
    chains: list[Chain] = [()]
    for epoch in range(epochs):
        with store.open("op", 0, SCHEMA, chains[-1], epoch=epoch, level=1, now_ms=0) as session:
            keys = np.arange(epoch, epoch + rows)
            session.write(int_keys(keys), {"n": keys * epoch, "s": pa.array(keys.astype(str))})
            chains.append(session.commit())
    return store, chains


def content(store: StateStore, chain: Chain) -> dict[int, int]:
    batch = store.scan("op", 0, SCHEMA, chain)
    return dict(zip(batch["k"].to_pylist(), batch["n"].to_pylist(), strict=True))


def damage(path: Path, how: str) -> None:
    raw = bytearray(path.read_bytes())
    if how == "missing":
        path.unlink()
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "cut":
        path.write_bytes(raw[:-100])
    else:
        raw[{"head": 60, "middle": len(raw) // 2, "end": len(raw) - 1}[how]] ^= 0x10
        path.write_bytes(raw)


HOW = ["missing", "empty", "cut", "head", "middle", "end"]


@pytest.mark.parametrize("how", HOW)
def test_a_damaged_delta_is_an_error_that_names_it(tmp_path: Path, how: str) -> None:
    store, chains = written(tmp_path, 1)
    (file,) = chains[-1]
    damage(tmp_path / file.name, how)

    with pytest.raises(StateFileError) as raised:
        store.open("op", 0, SCHEMA, chains[-1], epoch=9, level=1, now_ms=0)

    error = pickle.loads(pickle.dumps(raised.value))
    assert (error.operator, error.slot, error.epoch, error.file) == ("op", 0, 0, file.name)
    assert "Bring the file back" in str(error)


@pytest.mark.parametrize("how", HOW)
def test_a_damaged_snapshot_falls_back_on_what_it_replaced(tmp_path: Path, how: str) -> None:
    store, chains = written(tmp_path, 6)
    chain = next(c for c in chains if c and c[0].kind == "snapshot")
    before = content(store, chain)
    pinned = int_keys(np.array([3, 20])).route
    damage(tmp_path / chain[0].name, how)

    assert content(store, chain) == before
    moved = store.moved_rows("op", 0, SCHEMA, chain, buckets=np.zeros(0, int), routes=pinned)
    assert sorted(moved.keys["k"].to_pylist()) == [3, 20]

    damage(tmp_path / chain[0].replaces[0].name, how)
    with pytest.raises(StateFileError, match="folded from"):
        content(store, chain)


@pytest.mark.parametrize("how", HOW)
def test_a_damaged_piece_falls_back_on_what_its_fold_replaces(tmp_path: Path, how: str) -> None:
    """For its own routes only: others have been folded by now, or count in the old files."""
    for touched in (50, 1):  # a fold in larger and in smaller steps
        folder = tmp_path / str(touched)
        store, chains = written(folder, 1, rows=400, fold_rows=1)
        damaged = 0
        for epoch in range(1, 14):
            with store.open("op", 0, SCHEMA, chains[-1], epoch=epoch, level=1, now_ms=0) as session:
                keys = np.arange(epoch, epoch + touched)
                session.write(int_keys(keys), {"n": keys * epoch})
                if epoch % 3 == 0:
                    session.remove(int_keys(np.arange(epoch, epoch + 3)))
                chains.append(session.commit())
            chain = chains[-1]
            truth = content(store, chain)
            for piece in [file for file in chain if file.piece]:
                kept = (folder / piece.name).read_bytes()
                damage(folder / piece.name, how)
                assert content(store, chain) == truth
                (folder / piece.name).write_bytes(kept)
                damaged += 1
        assert damaged > 5


def test_no_flipped_bit_goes_unseen(tmp_path: Path) -> None:
    store, chains = written(tmp_path, 1, rows=5)
    (file,) = chains[-1]
    path = tmp_path / file.name
    raw = path.read_bytes()
    want = store.scan("op", 0, SCHEMA, chains[-1])
    routes = int_keys(np.arange(5)).route
    for at in range(0, len(raw), 3):
        path.write_bytes(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])
        with pytest.raises(StateFileError):
            store.scan("op", 0, SCHEMA, chains[-1])
        try:  # a range read may miss damage outside the blocks it uses, but never gives wrong rows
            rows = store.moved_rows(
                "op", 0, SCHEMA, chains[-1], buckets=np.zeros(0, int), routes=routes
            )
            assert rows.batch().equals(want), at
        except StateFileError:
            pass


def as_format_1(path: Path, file: StateFile) -> StateFile:
    """The file as earlier versions wrote it: digests of 64 bits, and one of the head at the end."""
    raw = path.read_bytes()
    start = 8 + int.from_bytes(raw[4:8], "little")
    schema = pa.ipc.read_schema(pa.py_buffer(raw[:start]))
    told = json.loads(schema.metadata[b"headgate"]) | {"format": 1}
    at = start
    for block in told["blocks"]:
        block[4] = xxhash.xxh3_64_hexdigest(raw[at : at + block[1]])
        at += block[1]
    meta = json.dumps(told, sort_keys=True, separators=(",", ":")).encode()
    head = schema.with_metadata({b"headgate": meta}).serialize().to_pybytes()
    made = head + raw[start:] + xxhash.xxh3_64_digest(head)
    path.write_bytes(made)
    return replace(file, bytes=len(made), digest=xxhash.xxh3_128_hexdigest(made))


def test_files_of_headgate_0_1_are_refused_with_a_way_out(tmp_path: Path) -> None:
    store, chains = written(tmp_path, 1, rows=20_000)
    (file,) = chains[-1]

    old = as_format_1(tmp_path / file.name, file)

    with pytest.raises(StateFileError, match=r"headgate 0\.1 wrote it, and headgate 0\.2 does not"):
        content(store, (old,))


@pytest.mark.parametrize("buckets", [1, 16, 65536])
def test_moved_rows_are_those_of_the_units_and_no_others(tmp_path: Path, buckets: int) -> None:
    store, chains = written(tmp_path, 7, rows=40_000)
    store = StateStore(store.storage, warm_dir=None, buckets=buckets)
    all_keys = int_keys(np.arange(50_000))
    shift = 64 - (buckets.bit_length() - 1)
    mine = np.zeros(50_000, np.int64) if buckets == 1 else (all_keys.route >> shift).astype(int)
    wanted = np.unique(mine)[: max(1, buckets // 8)]
    pinned = all_keys.route[[5, 49_999, 17]]
    state = content(store, chains[-1])

    rows = store.moved_rows("op", 0, SCHEMA, chains[-1], buckets=wanted, routes=pinned)

    hit = np.isin(mine, wanted)
    hit[[5, 49_999, 17]] = True
    want = {k: state[k] for k in np.flatnonzero(hit).tolist() if k in state}
    assert dict(zip(rows.keys["k"].to_pylist(), rows["n"].tolist(), strict=True)) == want


def test_a_moved_bucket_is_read_alone(tmp_path: Path) -> None:
    """Blocks of other buckets may even be damaged: they are not looked at."""
    store, chains = written(tmp_path, 1, rows=100_000)
    (file,) = chains[-1]
    routes = np.sort(int_keys(np.arange(100_000)).route)
    path = tmp_path / file.name
    raw = bytearray(path.read_bytes())
    raw[-3000] ^= 1
    path.write_bytes(raw)

    rows = store.moved_rows(
        "op", 0, SCHEMA, chains[-1], buckets=np.zeros(0, int), routes=routes[:10]
    )
    assert len(rows) == 10
    with pytest.raises(StateFileError):
        store.moved_rows("op", 0, SCHEMA, chains[-1], buckets=np.zeros(0, int), routes=routes[-1:])


def test_any_arrow_reader_can_open_a_state_file(tmp_path: Path) -> None:
    _, chains = written(tmp_path, 1, rows=40_000)
    table = pa.ipc.open_stream(tmp_path / chains[-1][0].name).read_all()
    routes: Any = table["_route"].to_numpy()
    assert table.num_rows == 40_000
    assert (np.diff(routes.astype(object)) > 0).all()


def test_state_on_remote_storage_reads_the_same(tmp_path: Path) -> None:
    store, chains = written(tmp_path, 5, rows=20_000)
    remote = StateStore(NotLocal.at(str(tmp_path)), warm_dir=None, buckets=16)
    assert content(remote, chains[-1]) == content(store, chains[-1])
    routes = int_keys(np.array([7, 20_001])).route
    rows = remote.moved_rows("op", 0, SCHEMA, chains[-1], buckets=np.array([3]), routes=routes)
    same = store.moved_rows("op", 0, SCHEMA, chains[-1], buckets=np.array([3]), routes=routes)
    assert rows.batch().equals(same.batch())
    with remote.open("op", 0, SCHEMA, chains[-1], epoch=9, level=1, now_ms=0) as session:
        session.write(int_keys(np.array([7])), {"n": np.array([-1])})
        chain = session.commit()
    assert content(store, chain)[7] == -1
