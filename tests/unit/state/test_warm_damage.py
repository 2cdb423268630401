"""Bits of a warm copy change between two sessions: slower, never wrong.

The oracle is the same work without a warm copy, from the committed files: every value that is read
must be equal, and the files written must have the same names, which are digests of their content.
"""

from __future__ import annotations

import os
import pickle
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headgate.operator.rows import KeyedRows
from headgate.routing.identity import Identity
from headgate.state.columns import MappedMemory, PrivateMemory
from headgate.state.layout import RowLayout, StateSchema
from headgate.state.rows import StateRows
from headgate.state.seals import WarmCopyDamaged
from headgate.state.session import StateSession
from headgate.state.state_file import Chain
from headgate.state.storage import Storage
from headgate.state.store import StateStore
from headgate.state.table import home_of
from headgate.state.warm_copy import WarmRoom, forget_mappings
from unit.state.keys import Keys, keys_of

TTL_MS = 6_000
KEYS = 120


@dataclass(frozen=True)
class Shape:
    """An operator's state: its schema, the n-th key, and what epoch e writes to it."""

    schema: StateSchema
    key: Callable[[int], tuple[Any, ...]]
    values: Callable[[int, int], dict[str, Any]]
    ttl_ms: int | None = None
    few: int = 60  # number columns are below it in some rows

    def keys(self, numbers: Any) -> Keys:
        return keys_of(self.schema, [self.key(int(n)) for n in numbers])

    def columns(self, numbers: Any, epoch: int) -> dict[str, pa.Array]:
        rows = [self.values(int(n), epoch) for n in numbers]
        return {f.name: pa.array([r[f.name] for r in rows], f.type) for f in self.schema.values}


def _numbers(n: int, epoch: int) -> dict[str, Any]:
    return {
        "count": n * 1000 + epoch,
        "mean": None if n % 5 == 0 else n / (epoch + 1),
        "small": (n + epoch) % 100,
        "on": None if n % 11 == 0 else n % 2 == 0,
        "vector": [n, epoch, -n],
    }


def _texts(n: int, epoch: int) -> dict[str, Any]:
    return {
        "text": None if n % 7 == 0 else f"text {n} of {epoch} " + "x" * (n % 40),
        "pickled": pickle.dumps({"n": n, "epoch": epoch, "more": "y" * (n % 3 * 150)}),
        "series": None if n % 13 == 0 else list(range(n % 6)),
        "price": Decimal(n * 100 + epoch) / 100,
    }


SHAPES = {
    "numbers": Shape(
        StateSchema(
            key=pa.schema([("k", pa.int64())]),
            values=pa.schema(
                [
                    ("count", pa.int64()),
                    ("mean", pa.float64()),
                    ("small", pa.int8()),
                    ("on", pa.bool_()),
                    ("vector", pa.list_(pa.int32(), 3)),
                ]
            ),
        ),
        key=lambda n: (n,),
        values=_numbers,
        few=60_000,
    ),
    "texts": Shape(
        StateSchema(
            key=pa.schema([("k", pa.string())]),
            values=pa.schema(
                [
                    ("text", pa.string()),
                    ("pickled", pa.large_binary()),
                    ("series", pa.list_(pa.int64())),
                    ("price", pa.decimal128(12, 2)),
                ]
            ),
        ),
        key=lambda n: (f"key number {n}",),
        values=_texts,
    ),
    "windows with a time to live": Shape(
        StateSchema(
            key=pa.schema([("k", pa.string()), ("j", pa.int32())]),
            sub=pa.schema([("start", pa.timestamp("us", "UTC"))]),
            values=pa.schema([("count", pa.int64()), ("text", pa.string())]),
        ),
        key=lambda n: (f"key {n // 4}", n // 8, (n % 4) * 1_000_000),
        values=lambda n, e: {"count": n + e, "text": f"{n}/{e}"},
        ttl_ms=TTL_MS,
    ),
    "keys alone": Shape(
        StateSchema(key=pa.schema([("k", pa.int64())]), values=pa.schema([])),
        key=lambda n: (n,),
        values=lambda n, e: {},
    ),
}


class State:
    """One state with a warm copy, and the same without."""

    def __init__(self, folder: Path, shape: Shape) -> None:
        self.shape, self.folder = shape, folder / "warm" / "op" / "00000"
        storage = Storage.at(str(folder / "files"))
        self.store = StateStore(
            storage, warm_dir=str(folder / "warm"), buckets=8, compact_after=100
        )
        self.chain: Chain = ()
        for epoch in range(4):
            self.go_on(epoch, _fill)

    def go_on(self, epoch: int, does: Work) -> None:
        """One more epoch with the warm copy, from which `be_clean` starts hereafter."""
        self.chain = self.work(self.store, self.chain, epoch, does)[1]
        self._kept = {path.name: path.read_bytes() for path in self.folder.iterdir()}

    def work(self, store: StateStore, chain: Chain, epoch: int, does: Work) -> tuple[Any, Chain]:
        with store.open(
            "op", 0, self.shape.schema, chain,
            epoch=epoch, level=1, now_ms=epoch * 1000, ttl_ms=self.shape.ttl_ms,
        ) as session:  # fmt: skip
            seen = does(self.shape, session, epoch)
            return seen, session.commit()

    def again(self, chain: Chain, epoch: int, does: Work) -> tuple[Any, Chain]:
        """As a slot's task does it: if the warm copy is damaged, once more without."""
        try:
            return self.work(self.store, chain, epoch, does)
        except WarmCopyDamaged:
            return self.work(self.store.cold(), chain, epoch, does)

    def be_clean(self) -> None:
        """Have the warm copy again that stands for `chain`, with all that it went through."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(mode=0o700)
        for name, content in self._kept.items():
            (self.folder / name).write_bytes(content)
        forget_mappings()
        self.work(self.store, self.chain, 4, lambda *_: None)  # would raise

    def files(self) -> list[str]:
        """Files of the warm copy, without the random part of their names."""
        return sorted(path.name.partition("-")[2] or path.name for path in self.folder.iterdir())

    def marks(self) -> Any:
        """What each position of the table is: 0 is empty, 2 removed, all others live."""
        positions = self.path("h").stat().st_size // 8
        return np.fromfile(self.path("check"), f"u{self.path('check').stat().st_size // positions}")

    def per_position(self) -> list[str]:
        """Files of as many cells as the table has positions."""
        others = ("head", "-bounds", "-body", "-seals")
        return [file for file in self.files() if not file.endswith(others)]

    def change(self, file: str, change: Callable[[Any], None]) -> None:
        """Write into a file that has cells, as bytes; mappings of it see that at once."""
        cells = np.fromfile(self.path(file), np.uint8).reshape(len(self.marks()), -1)
        change(cells)
        with self.path(file).open("r+b") as opened:
            opened.write(cells.tobytes())

    def path(self, file: str) -> Path:
        if file == "head":
            return self.folder / file
        return next(p for p in self.folder.iterdir() if p.name.partition("-")[2] == file)


Work = Callable[[Shape, StateSession, int], Any]


def told(rows: StateRows) -> list[Any]:
    return [rows.batch().to_pylist(), rows.ids.h.tolist(), rows.route.tolist()]


def _fill(shape: Shape, session: StateSession, epoch: int) -> None:
    numbers = np.unique(np.random.default_rng(epoch).integers(0, KEYS, KEYS // 2))
    session.write(shape.keys(numbers), shape.columns(numbers, epoch))
    session.remove(shape.keys(np.arange(epoch * 3, epoch * 3 + 3)))


def _read_all(shape: Shape, session: StateSession, epoch: int) -> Any:
    """Keys that are there and keys that are not; key columns too."""
    held = session.read(shape.keys(np.arange(KEYS + 60)))
    names = [*shape.schema.row_key.names, *shape.schema.values.names]
    return [held.found.tolist(), [held.arrow(name).to_pylist() for name in names]]


def _read_values(shape: Shape, session: StateSession, epoch: int) -> Any:
    """As most operators do it: keys are known, so nobody looks at those in the table."""
    held = session.read(shape.keys(np.arange(KEYS + 60)))
    return [held.arrow(name).to_pylist() for name in shape.schema.values.names]


def _update(shape: Shape, session: StateSession, epoch: int) -> Any:
    """Read, write what was read and new keys, in two batches, so keys come from the table."""
    seen = []
    for numbers in (np.arange(0, KEYS, 2), np.arange(1, KEYS + 20, 3)):
        keys = shape.keys(numbers)
        held = session.read(keys)
        seen.append([held.arrow(name).to_pylist() for name in shape.schema.values.names])
        session.write(keys, shape.columns(numbers, epoch))
    return [seen, session.rows]


def _write_blindly(shape: Shape, session: StateSession, epoch: int) -> None:
    """One column of few rows: the others are never looked at, and must come out right."""
    numbers = np.arange(10, 40)
    one = dict(list(shape.columns(numbers, epoch).items())[:1])
    session.write(shape.keys(numbers), one)


def _remove(shape: Shape, session: StateSession, epoch: int) -> Any:
    held = session.read(shape.keys(np.arange(0, 30)))
    session.remove(shape.keys(np.arange(0, KEYS, 5)))
    return held.arrow(shape.schema.key.names[0]).to_pylist()


def _select(shape: Shape, session: StateSession, epoch: int) -> Any:
    seen = []
    for name in sorted({"count", "start"} & {*shape.schema.values.names, *shape.schema.sub.names}):
        few = session.select(name, below=shape.few)
        seen.append(told(few))
        session.remove_rows(few)
    return seen


def _scan(shape: Shape, session: StateSession, epoch: int) -> Any:
    everything = session.all()
    assert {*session.sample_routes(50).tolist()} <= {*everything.route.tolist()}
    return [told(everything), _select(shape, session, epoch)]


def _look(shape: Shape, session: StateSession, epoch: int) -> Any:
    return [_read_all(shape, session, epoch), told(session.all())]


def _grow(shape: Shape, session: StateSession, epoch: int) -> None:
    numbers = np.arange(KEYS, KEYS + 400)
    session.write(shape.keys(numbers), shape.columns(numbers, epoch))


def _move(shape: Shape, session: StateSession, epoch: int) -> int:
    none = np.zeros(0, np.uint64)
    return session.drop_units(np.arange(3), none, none)


def _undo(shape: Shape, session: StateSession, epoch: int) -> None:
    session.write(shape.keys(np.arange(5)), shape.columns(np.arange(5), epoch))
    session.mark()
    _update(shape, session, epoch + 1)
    session.remove(shape.keys(np.arange(0, KEYS, 3)))
    session.rollback()
    session.release()


def _sweep(shape: Shape, session: StateSession, epoch: int) -> None:
    """Nothing but what `commit` does: in one of 16 epochs it removes the expired rows."""


WORKS: list[Work] = [
    _read_all, _update, _write_blindly, _remove, _scan, _grow, _move, _undo, _sweep,
]  # fmt: skip


@pytest.fixture(autouse=True)
def _no_mappings_left() -> Iterator[None]:
    yield
    forget_mappings()


@pytest.fixture
def folder() -> Iterator[Path]:
    """In memory if there is a place: what these tests write need not survive."""
    shared = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=shared) as made:
        yield Path(made)


@pytest.fixture(params=["sealed at once", "sealed in parts"])
def _pace(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tables are sealed when they are built; of large ones a digest covers the rest.

    Sessions that ask for as many rows as a table holds give some of them back to the digest.
    """
    if request.param == "sealed in parts":
        monkeypatch.setattr("headgate.state.seals.SEALED_AT_LEAST", 3)
        monkeypatch.setattr("headgate.state.seals._HELD_PER_ASKED", 1)


@pytest.fixture(params=SHAPES)
def state(request: pytest.FixtureRequest, folder: Path, _pace: None) -> State:
    return State(folder, SHAPES[request.param])


def flip(path: Path, rng: np.random.Generator, bits: int = 1) -> None:
    """Write into the file, as another program would; mappings of it see that at once."""
    size = path.stat().st_size
    with path.open("r+b", buffering=0) as file:
        for _ in range(bits):
            # most arrays are longer than what they hold: half of the flips go where the rows are
            at = int(rng.integers(0, size if rng.random() < 0.5 else max(1, size // 4)))
            file.seek(at)
            byte = file.read(1)[0] ^ 1 << int(rng.integers(0, 8))
            file.seek(at)
            file.write(bytes([byte]))


def overwrite(path: Path, rng: np.random.Generator, content: bytes) -> None:
    with path.open("r+b", buffering=0) as file:
        file.seek(int(rng.integers(0, max(1, path.stat().st_size - len(content)))))
        file.write(content[: path.stat().st_size])


KINDS = ["one bit", "one bit", "some bits", "some bits", "a hole", "noise", "cut off"]
DAMAGE: dict[str, Callable[[Path, np.random.Generator], None]] = {
    "one bit": flip,
    "some bits": lambda path, rng: flip(path, rng, 30),
    "a hole": lambda path, rng: overwrite(path, rng, bytes(64)),
    "noise": lambda path, rng: overwrite(path, rng, rng.bytes(64)),
    "cut off": lambda path, rng: os.truncate(path, path.stat().st_size // 2),
}


def expected(state: State, chain: Chain, works: list[Work]) -> list[Any]:
    return outcome(state, chain, works, state.store.cold())


def outcome(state: State, chain: Chain, works: list[Work], store: StateStore | None) -> list[Any]:
    """What all these sessions in a row see and write."""
    seen = []
    for epoch, does in enumerate(works, 5):
        if store is None:
            told, chain = state.again(chain, epoch, does)
        else:
            told, chain = state.work(store, chain, epoch, does)
        seen.append([told, [file.name for file in chain]])
    return seen


def test_damage_to_any_file_never_shows(state: State) -> None:
    """In every file; the epochs after it see and write what they would without a warm copy.

    The first of them may pass by what is damaged: it must not make it look right. Every other time
    the mappings of the sessions before are retained, as in a worker that goes on.
    """
    rng = np.random.default_rng(7)
    right = [expected(state, state.chain, [does, _look]) for does in WORKS]
    state.be_clean()
    for number, file in enumerate(state.files()):
        for step in (0, 2, 3, 5, 7):
            which = (number + step) % len(WORKS)
            state.be_clean()
            kind = rng.choice(KINDS)
            DAMAGE[kind](state.path(file), rng)
            if rng.random() < 0.5:
                forget_mappings()
            seen = outcome(state, state.chain, [WORKS[which], _look], None)
            assert seen == right[which], (WORKS[which], file, kind)


def test_damage_is_noticed_while_a_copy_catches_up(state: State) -> None:
    """Files of other hosts are applied to it: onto rows that are still what they were."""
    rng = np.random.default_rng(8)
    state.be_clean()
    elsewhere = state.store.cold()
    _, later = state.work(elsewhere, state.chain, 5, _update)
    right = expected(state, later, [_look])
    for file in state.files():
        for _ in range(3):
            state.be_clean()
            flip(state.path(file), rng)
            assert outcome(state, later, [_look], None) == right, file


def _update_and_scan(shape: Shape, session: StateSession, epoch: int) -> None:
    _select(shape, session, epoch)
    _update(shape, session, epoch)


@pytest.mark.parametrize("name", ["numbers", "windows with a time to live"])
def test_damage_between_two_scans_never_shows(folder: Path, name: str) -> None:
    """What a session scanned it gives a digest as a whole, and the next one trusts that."""
    state, rng = State(folder, SHAPES[name]), np.random.default_rng(10)
    state.go_on(5, _update_and_scan)
    right = expected(state, state.chain, [_select, _look])
    for file in state.files():
        for _ in range(3):
            state.be_clean()
            flip(state.path(file), rng, 20)
            assert outcome(state, state.chain, [_select, _look], None) == right, file


@pytest.mark.parametrize("name", ["numbers", "windows with a time to live"])
@pytest.mark.parametrize("does", [_select, _read_all, _update, _scan, _remove])
def test_rows_that_are_all_wrong_by_one_bit_never_show(folder: Path, name: str, does: Work) -> None:
    """Cells and marks that would all be fine elsewhere, one file at a time."""
    state = State(folder, SHAPES[name])
    state.go_on(5, _update_and_scan)
    right = expected(state, state.chain, [does, _look])
    live = np.flatnonzero(~np.isin(state.marks(), (0, 2)))

    def flip_one_bit(cells: Any) -> None:
        cells[live, 0] ^= 1

    for file in state.per_position():
        state.be_clean()
        state.change(file, flip_one_bit)
        assert outcome(state, state.chain, [does, _look], None) == right, file


def test_damage_in_many_places_at_once_never_shows(state: State) -> None:
    rng = np.random.default_rng(9)
    works: list[Work] = [_update, _look]
    right = expected(state, state.chain, works)
    for _ in range(20):
        state.be_clean()
        for file in state.files():
            flip(state.path(file), rng, 3)
        assert outcome(state, state.chain, works, None) == right


def test_no_bit_of_a_row_goes_unguarded(folder: Path) -> None:
    """Of its value, its key, its identity and seals, its state: live or removed."""
    state = State(folder, SHAPES["numbers"])
    state.go_on(4, _remove)
    check = np.fromfile(state.path("check"), np.uint8)
    live, removed = (int(np.flatnonzero(check == mark)[0]) for mark in (1, 2))
    right = expected(state, state.chain, [_read_values, _look])
    for name, row, width in (
        ("check", live, 1),
        ("check", removed, 1),
        ("c000", live, 8),
        ("records", live, state.path("records").stat().st_size // len(check)),
        ("h", live, 8),
        *(("seals", kind * len(check) + live, 4) for kind in range(2)),
    ):
        for bit in range(0, width * 8, 1 if width == 1 else 5):
            state.be_clean()
            at = row * width + bit // 8
            with state.path(name).open("r+b", buffering=0) as opened:
                opened.seek(at)
                byte = opened.read(1)[0] ^ 1 << bit % 8
                opened.seek(at)
                opened.write(bytes([byte]))
            assert outcome(state, state.chain, [_read_values, _look], None) == right, (name, bit)
    for mark in (0, 1, 3, 255):  # not one bit apart, but the row was live once
        state.be_clean()
        with state.path("check").open("r+b", buffering=0) as opened:
            opened.seek(removed)
            opened.write(bytes([mark]))
        assert outcome(state, state.chain, [_read_values, _look], None) == right, mark


@pytest.mark.parametrize("first", [KEYS, KEYS - 20], ids=["new keys", "old keys too"])
@pytest.mark.parametrize("name", ["numbers", "texts", "windows with a time to live"])
def test_new_rows_start_blank_whatever_lay_in_their_place(
    folder: Path, name: str, first: int
) -> None:
    """Nobody seals what an empty position holds, so a row that comes there must not inherit it."""
    state, rng = State(folder, SHAPES[name]), np.random.default_rng(11)

    def write_one_column(shape: Shape, session: StateSession, epoch: int) -> None:
        numbers = np.arange(first, KEYS + 10)
        one = dict(list(shape.columns(numbers, epoch).items())[-1:])
        session.write(shape.keys(numbers), one)

    right = expected(state, state.chain, [write_one_column, _look])
    empty = np.flatnonzero(state.marks() == 0)

    def fill_empty(cells: Any) -> None:
        cells[empty] = rng.integers(1, 120, cells[empty].shape)

    for file in state.per_position():
        if not file.startswith("c0"):
            continue
        state.be_clean()
        state.change(file, fill_empty)
        assert outcome(state, state.chain, [write_one_column, _look], None) == right, file


def test_a_probe_never_leaves_the_table(state: State) -> None:
    """No position says that it is empty, not even the last one, which ends every probe."""
    right = expected(state, state.chain, [_update, _look])
    size = state.path("check").stat().st_size
    state.path("check").write_bytes(b"\x03" * size)
    assert outcome(state, state.chain, [_update, _look], None) == right


def test_new_values_go_where_the_head_says(folder: Path) -> None:
    """The bound behind the last value is no guide: any of its bits may have flipped."""
    state = State(folder, SHAPES["texts"])

    def append(shape: Shape, session: StateSession, epoch: int) -> None:
        numbers = np.arange(KEYS, KEYS + 5)  # so few that the table is not built anew
        session.write(shape.keys(numbers), shape.columns(numbers, epoch))

    right = expected(state, state.chain, [append, _look])
    bounds = np.fromfile(state.path("c001-bounds"), np.int64)
    last = int(np.argmax(bounds))
    for bit in range(0, 64, 3):
        state.be_clean()
        with state.path("c001-bounds").open("r+b") as file:
            file.seek(last * 8)
            file.write((bounds[last].astype(np.uint64) ^ np.uint64(1 << bit)).tobytes())
        assert outcome(state, state.chain, [append, _look], None) == right, bit


def test_no_part_of_the_head_goes_unguarded(folder: Path) -> None:
    state, rng = State(folder, SHAPES["texts"]), np.random.default_rng(12)
    right = expected(state, state.chain, [_update])
    size = state.path("head").stat().st_size
    for at in (*range(0, 24, 3), *range(24, size, 31)):
        state.be_clean()
        content = bytearray(state.path("head").read_bytes())
        content[at] ^= 1 << int(rng.integers(0, 8))
        state.path("head").write_bytes(content)
        assert outcome(state, state.chain, [_update], None) == right, at


def test_a_file_that_is_cut_off_under_its_mapping_is_not_touched(state: State) -> None:
    """Whoever reads a mapped page beyond the end of its file is killed, without an exception."""
    layout = RowLayout(state.shape.schema, state.shape.ttl_ms is not None)
    for file in state.files():
        state.be_clean()  # retains the mappings
        os.truncate(state.path(file), 0)
        copy = WarmRoom(str(state.folder.parents[1]), 1 << 30).lock("op", 0)
        assert copy is not None
        attached = copy.attach(layout)
        copy.release()
        assert attached is None, file


def test_a_row_that_seems_gone_is_not_overwritten(folder: Path) -> None:
    """Of two new keys with one home the second steps on, beyond what was looked at: onto it."""
    schema = SHAPES["keys alone"].schema
    store = StateStore(Storage.at(str(folder / "f")), warm_dir=str(folder / "w"), buckets=8)
    h = np.random.default_rng(1).integers(0, 2**63, 10_000).astype(np.uint64)
    home = home_of(h, 64)
    old, new = h[home == 31][:1], h[home == 30][:2]

    def keys(h: Any) -> Keys:
        batch = pa.RecordBatch.from_arrays([pa.array(h.astype(np.int64))], names=["k"])
        return Keys(h, h, np.ones(len(h), np.uint64), batch)

    with store.open("op", 0, schema, (), epoch=0, level=1, now_ms=0) as session:
        session.write(keys(old), {})
        chain = session.commit()
    path = next((folder / "w" / "op" / "00000").glob("*-check"))
    check = np.fromfile(path, np.uint8)
    assert check[31] == 1
    check[31] = 0
    path.write_bytes(check.tobytes())
    with (
        pytest.raises(WarmCopyDamaged),
        store.open("op", 0, schema, chain, epoch=1, level=1, now_ms=0) as session,
    ):
        session.write(keys(new), {})


def _flip_in_live_row(state: State, file: str, row: int) -> None:
    live = np.flatnonzero(~np.isin(state.marks(), (0, 2)))

    def change(cells: Any) -> None:
        cells[live[row], 0] ^= 1

    state.change(file, change)


@pytest.mark.parametrize("full", ["no room", "h", "records"])
def test_a_damaged_row_is_still_known_in_a_table_that_left_the_files(
    folder: Path, full: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no room for the rebuilt table, or none for one of its last files."""
    state = State(folder, SHAPES["numbers"])
    install = MappedMemory.install

    def fail(memory: MappedMemory, name: str, array: Any) -> Any:
        if full in ("no room", name):
            raise OSError
        return install(memory, name, array)

    def grow_and_look(shape: Shape, session: StateSession, epoch: int) -> Any:
        _grow(shape, session, epoch)
        assert isinstance(session._table.memory, PrivateMemory)
        return _look(shape, session, epoch)

    right = state.work(state.store.cold(), state.chain, 5, grow_and_look)[0]
    monkeypatch.setattr(MappedMemory, "install", fail)
    state.be_clean()
    assert state.work(state.store, state.chain, 5, grow_and_look)[0] == right
    for file in ("c000", "records"):
        state.be_clean()
        _flip_in_live_row(state, file, row=7)
        with pytest.raises(WarmCopyDamaged):
            state.work(state.store, state.chain, 5, grow_and_look)
    state.be_clean()
    _flip_in_live_row(state, "seals", row=7)  # of rows that are right, noticed or not
    assert state.again(state.chain, 5, grow_and_look)[0] == right


@pytest.mark.parametrize("name", SHAPES)
def test_no_row_is_lost_or_changed_by_a_rebuild(folder: Path, name: str) -> None:
    """A damaged hash would take its row to where nobody looks, a damaged mark leave it behind, and
    a damaged reference would be replaced by a right one, to another value."""
    state = State(folder, SHAPES[name])
    state.go_on(4, _remove)
    marks = state.marks()
    empty, removed, live = marks == 0, marks == 2, ~np.isin(marks, (0, 2))

    def rebuild(shape: Shape, session: StateSession, epoch: int) -> None:
        session._table._rebuild(session.rows)

    references = [file for file in state.files() if file.endswith("-ref")]
    for file in ("h", "check", *references):
        for which in (empty, removed, live) if file == "check" else (live,):
            for at in np.flatnonzero(which)[[0, -1]]:

                def change(cells: Any, at: int = at) -> None:
                    cells[at, 0] ^= 4

                state.be_clean()
                state.change(file, change)
                with pytest.raises(WarmCopyDamaged):
                    state.work(state.store, state.chain, 5, rebuild)


def _rebuild(shape: Shape, session: StateSession, epoch: int) -> None:
    session.write(shape.keys([1]), shape.columns([1], epoch))  # or it would not be stamped
    session._table._rebuild(session.rows)


@pytest.mark.parametrize("shared", [True, False])
def test_what_a_rebuild_takes_over_is_compared_when_it_is_read(
    folder: Path, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts stay where they are and only their ordinals move; also where no files can be had."""
    state = State(folder, SHAPES["texts"])
    state.go_on(4, _rebuild)  # without garbage from here on
    bodies = [file for file in state.files() if file.endswith("-body")]
    kept = {file: state.path(file).stat().st_ino for file in bodies}
    state.work(state.store, state.chain, 5, _rebuild)
    assert {file: state.path(file).stat().st_ino for file in bodies} == kept

    def rebuild_and_read(shape: Shape, session: StateSession, epoch: int) -> Any:
        was_shared = isinstance(session._table.memory, MappedMemory)
        _rebuild(shape, session, epoch)
        is_shared = isinstance(session._table.memory, MappedMemory)
        assert is_shared == (shared and was_shared)
        return _read_all(shape, session, epoch)

    right = state.work(state.store.cold(), state.chain, 5, rebuild_and_read)[0]
    if not shared:

        def no_room(memory: MappedMemory, *given: Any) -> None:
            raise OSError

        monkeypatch.setattr(MappedMemory, "take_over", no_room)
    damaged = 0
    for file in bodies:
        state.be_clean()
        held = state.path(file).read_bytes().rstrip(b"\0")
        for at in range(0, len(held), len(held) // 9):
            state.be_clean()
            with state.path(file).open("r+b") as opened:
                opened.seek(at)
                opened.write(bytes([held[at] ^ 1]))
            try:
                assert state.work(state.store, state.chain, 5, rebuild_and_read)[0] == right
            except WarmCopyDamaged:
                damaged += 1
    assert damaged > len(bodies)  # bytes of values that nobody reads any more are not looked at


def test_values_that_nobody_has_are_left_behind(folder: Path) -> None:
    """A heap is rewritten when a third of it may be garbage."""
    state = State(folder, SHAPES["texts"])
    heap = [file for file in state.files() if file.endswith("-body")][-1]  # the first are keys

    def write_often(shape: Shape, session: StateSession, epoch: int) -> None:
        for number in range(3):
            session.write(shape.keys(np.arange(KEYS)), shape.columns(np.arange(KEYS), number))

    state.go_on(4, write_often)
    before = state.path(heap).stat().st_ino
    state.work(state.store, state.chain, 5, _rebuild)
    assert state.path(heap).stat().st_ino != before
    assert state.work(state.store, state.chain, 5, _read_all)


def test_a_damaged_copy_is_built_anew(folder: Path) -> None:
    state = State(folder, SHAPES["numbers"])
    state.be_clean()
    before = {path.name for path in state.folder.iterdir()}
    overwrite(state.path("records"), np.random.default_rng(1), b"\xff" * 600)
    with pytest.raises(WarmCopyDamaged):
        state.work(state.store, state.chain, 5, _read_all)
    assert not state.folder.exists()
    seen, _ = state.work(state.store, state.chain, 5, _read_all)
    assert seen == state.work(state.store.cold(), state.chain, 5, _read_all)[0]
    assert not before & {path.name for path in state.folder.iterdir()} - {"head"}


def test_nothing_is_suspected_without_cause(state: State) -> None:
    """All the same work on copies that nobody touched: not one is built again."""
    forget = np.random.default_rng(3)
    for does in WORKS:
        state.be_clean()
        chain = state.chain
        for epoch, work in enumerate([does, _update, does, _scan, _read_all], 5):
            if forget.random() < 0.5:
                forget_mappings()
            _, chain = state.work(state.store, chain, epoch, work)  # would raise


def test_the_one_row_of_a_global_operator_is_not_suspected(folder: Path) -> None:
    """It has no key columns, with which rows get the seals of their keys."""
    identity = Identity.new()
    storage, warm = Storage.at(str(folder / "files")), str(folder / "warm")
    store = StateStore(storage, warm_dir=warm, buckets=8, identity=identity)
    schema = StateSchema(key=pa.schema([]), values=pa.schema([("count", pa.int64())]))
    batch = pa.record_batch({"v": pa.array([1, 2])})
    chain: Chain = ()
    for epoch in range(4):
        with store.open("op", 0, schema, chain, epoch=epoch, level=1, now_ms=0) as session:
            assert len(session.sample_routes(100)) == len(session.all()) == min(epoch, 1)
            session.write(KeyedRows(batch, [], None, identity).groups, {"count": np.array([epoch])})
            chain = session.commit()
