"""Sessions against a plain dict: whatever is read, written, removed or undone, both agree.

A private state keeps its first write aside: nobody can tell, whatever is done to it.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.errors import SchemaMismatch
from headgate.operator.rows import Groups, KeyedRows
from headgate.state.chain import FOLD_ROWS
from headgate.state.columns import MappedMemory
from headgate.state.layout import StateSchema
from headgate.state.rows import in_units
from headgate.state.session import PrivateSession
from headgate.state.storage import Storage
from headgate.state.store import StateStore
from headgate.state.warm_copy import forget_mappings
from strategies import examples, quick_folder
from unit.state.keys import int_keys, keys_of

SCHEMAS = {
    "int": StateSchema(
        key=pa.schema([("k", pa.int64())]),
        values=pa.schema([("n", pa.int64()), ("s", pa.string())]),
    ),
    "text": StateSchema(
        key=pa.schema([("word", pa.string())]),
        values=pa.schema([("n", pa.int64()), ("s", pa.string())]),
    ),
    "sub": StateSchema(
        key=pa.schema([("word", pa.string())]),
        sub=pa.schema([("at", pa.int64())]),
        values=pa.schema([("n", pa.int64()), ("s", pa.string())]),
    ),
}


def key_tuple(kind: str, number: int) -> tuple[Any, ...]:
    if kind == "int":
        return (number,)
    if kind == "text":
        return (None if number == 3 else f"w{number}",)
    return (f"w{number % 5}", number)


numbers = st.lists(st.integers(0, 25), unique=True, max_size=12)
cells = st.one_of(st.none(), st.integers(-5, 5))
spans = st.lists(st.tuples(st.integers(-3, 9), st.integers(-3, 30)), max_size=2)
actions = st.one_of(
    st.tuples(st.just("write"), numbers, cells, st.sampled_from(["n", "s", "ns"])),
    st.tuples(st.just("read"), numbers),
    st.tuples(st.just("remove"), numbers),
    st.tuples(st.just("select"), st.integers(-5, 5)),
    st.tuples(st.just("scan"), spans),
    st.tuples(st.sampled_from(["take", "drop"])),
    st.tuples(st.sampled_from(["mark", "rollback", "release", "commit", "abandon"])),
)


@settings(max_examples=120, deadline=None)
@given(
    kind=st.sampled_from(sorted(SCHEMAS)),
    steps=st.lists(actions, max_size=25),
    warm=st.booleans(),
    ttl=st.sampled_from([None, 3]),
    fold_rows=st.sampled_from([1, 4, FOLD_ROWS]),
)
def test_a_session_agrees_with_a_dict(
    kind: str, steps: list[Any], warm: bool, ttl: int | None, fold_rows: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Machine(folder, kind, warm, ttl, fold_rows).run(steps)


class Machine:
    """A store and a dict side by side; the dict maps number -> (n, s, touched)."""

    def __init__(
        self, folder: str, kind: str, warm: bool, ttl: int | None, fold_rows: int = FOLD_ROWS
    ) -> None:
        self.kind, self.ttl, self.schema = kind, ttl, SCHEMAS[kind]
        warm_dir = f"{folder}/warm" if warm else None
        self.store = StateStore(
            Storage.at(f"{folder}/files"),
            warm_dir=warm_dir,
            buckets=8,
            compact_after=2,
            fold_rows=fold_rows,
        )
        self.truth: dict[int, tuple[Any, Any, int]] = {}
        self.committed = dict(self.truth)
        self.marks: list[dict[int, tuple[Any, Any, int]]] = []
        self.chain: Any = ()
        self.epoch = 0
        self.taken: Any = None
        self.open()

    def open(self) -> None:
        self.session = self.store.open(
            "op", 0, self.schema, self.chain,
            epoch=self.epoch, level=1, now_ms=self.epoch, ttl_ms=self.ttl,
        )  # fmt: skip
        self.marks = []

    def live(self) -> dict[int, tuple[Any, Any, int]]:
        if self.ttl is None:
            return self.truth
        return {k: v for k, v in self.truth.items() if v[2] > self.epoch - self.ttl}

    def run(self, steps: list[Any]) -> None:
        for name, *arguments in steps:
            getattr(self, name)(*arguments)
        self.commit()
        self.check_all()
        self.session.__exit__(None, None, None)

    def keys(self, numbers: list[int]) -> Any:
        return keys_of(self.schema, [key_tuple(self.kind, number) for number in numbers])

    def write(self, numbers: list[int], cell: int | None, columns: str) -> None:
        keys, values = self.keys(numbers), {}
        held = self.session.read(keys) if cell == 1 else None
        before = {number: self.live().get(number) for number in numbers}
        if "n" in columns:
            values["n"] = pa.array([cell] * len(numbers), pa.int64())
        if "s" in columns:
            texts = [None if cell is None else f"{cell}-{number}" for number in numbers]
            values["s"] = pa.array(texts, pa.string())
        self.session.write(keys, values)
        for number in numbers:
            n, s, _ = self.live().get(number, (0, None, 0))
            n = cell if "n" in columns else n
            s = values["s"][numbers.index(number)].as_py() if "s" in columns else s
            self.truth[number] = (n, s, self.epoch)
        if held is not None:  # still shows what was there when it was read
            assert held["s"].to_pylist() == [b and b[1] for b in before.values()]
            assert held.arrow("n").to_pylist() == [b and b[0] for b in before.values()]

    def read(self, numbers: list[int]) -> None:
        held, live = self.session.read(self.keys(numbers)), self.live()
        assert held.found.tolist() == [number in live for number in numbers]
        assert held["n"].tolist() == [live.get(number, (0,))[0] or 0 for number in numbers]
        assert held["s"].to_pylist() == [live.get(n, (0, None))[1] for n in numbers]
        assert held.arrow("n").to_pylist() == [live.get(n, (None,))[0] for n in numbers]

    def remove(self, numbers: list[int]) -> None:
        self.session.remove(self.keys(numbers))
        for number in numbers:
            self.truth.pop(number, None)

    def select(self, below: int) -> None:
        rows = self.session.select("n", below)
        want = {k: v for k, v in self.live().items() if v[0] is not None and v[0] < below}
        assert sorted(rows["n"].tolist()) == sorted(v[0] for v in want.values())
        self.session.remove_rows(rows)
        for number in want:
            del self.truth[number]

    def take(self) -> None:
        self.taken = self.session.all()

    def drop(self) -> None:
        """Rows that were read a while ago, of which some may be gone, or be new ones."""
        if self.taken is not None:
            self.session.remove_rows(self.taken)
            keys = {tuple(key.values()) for key in self.taken.keys.to_pylist()}
            for number in [n for n in self.truth if key_tuple(self.kind, n) in keys]:
                del self.truth[number]

    def scan(self, spans: list[tuple[int, int]]) -> None:
        column = {"int": "k", "text": None, "sub": "at"}[self.kind]
        if column is None:
            return
        found = self.session.scan(column, spans)
        want = [k for k in self.live() if any(low <= k < high for low, high in spans)]
        assert sorted(found.values.tolist()) == sorted(want)
        odd = found.rows(np.flatnonzero(found.values % 2))
        assert sorted(odd[column].tolist()) == sorted(k for k in want if k % 2)

    def mark(self) -> None:
        self.session.mark()
        self.marks.append(dict(self.truth))

    def rollback(self) -> None:
        if self.marks:
            self.session.rollback()
            self.truth = dict(self.marks[-1])

    def release(self) -> None:
        if self.marks:
            self.session.release()
            self.marks.pop()

    def commit(self) -> None:
        self.chain = self.session.commit()
        self.epoch += 1
        self.committed = dict(self.truth)
        self.open()

    def abandon(self) -> None:
        self.session.__exit__(RuntimeError, RuntimeError(), None)
        self.truth = dict(self.committed)
        self.open()

    def check_all(self) -> None:
        rows = self.session.all()
        live = self.live()
        want = {key_tuple(self.kind, k): v[:2] for k, v in live.items()}
        got = {
            tuple(row.values()): (n, s)
            for row, n, s in zip(
                rows.keys.to_pylist(),
                rows.arrow("n").to_pylist(),
                rows["s"].to_pylist(),
                strict=True,
            )
        }
        assert got == want
        assert len(rows) == len(live)


def open_at(folder: Path, schema: StateSchema, chain: Any = (), **more: Any) -> Any:
    store = StateStore(Storage.at(str(folder)), warm_dir=None, buckets=8)
    return store.open("op", 0, schema, chain, epoch=more.pop("epoch", 1), level=1, now_ms=0)


def test_every_kind_of_column_comes_back_as_it_went_in(tmp_path: Path) -> None:
    content = {
        "flag": pa.array([True, None, False]),
        "small": pa.array([1, 2, None], pa.int8()),
        "real": pa.array([0.5, None, 2.5], pa.float32()),
        "day": pa.array([1, 2, None], pa.date32()),
        "when": pa.array([1, None, 3], pa.timestamp("us", "UTC")),
        "took": pa.array([1, None, 3], pa.duration("ms")),
        "price": pa.array([None, "1.25", "-3.50"]).cast(pa.decimal128(10, 2)),
        "tag": pa.array([b"ab", None, b"cd"], pa.binary(2)),
        "text": pa.array(["", None, "äö" * 50]),
        "long": pa.array(["x", "", None], pa.large_string()),
        "blob": pa.array([b"\x00", None, b""], pa.binary()),
        "items": pa.array([[1, 2], None, []], pa.list_(pa.int32())),
        "trio": pa.array([[1, 2, 3], None, [4, 5, 6]], pa.list_(pa.float64(), 3)),
        "bits": pa.array([[True, False], [False, True], None], pa.list_(pa.bool_(), 2)),
    }
    schema = StateSchema(
        key=pa.schema([("k", pa.int64())]),
        values=pa.schema([(name, array.type) for name, array in content.items()]),
    )
    keys = int_keys(np.array([5, 6, 7]))

    with open_at(tmp_path, schema) as session:
        session.write(keys, content)
        chain = session.commit()

    with open_at(tmp_path, schema, chain, epoch=2) as session:
        held = session.read(keys)
        for name, array in content.items():
            assert held.arrow(name).equals(array), name


def test_two_dimensional_columns_are_numpy(tmp_path: Path) -> None:
    schema = StateSchema(
        key=pa.schema([("k", pa.int64())]),
        values=pa.schema([("sketch", pa.list_(pa.uint32(), 4))]),
    )
    keys, other = int_keys(np.array([1, 2])), int_keys(np.array([2, 9]))
    with open_at(tmp_path, schema) as session:
        session.write(keys, {"sketch": np.arange(8, dtype=np.uint32).reshape(2, 4)})

        assert session.read(other)["sketch"].tolist() == [[4, 5, 6, 7], [0, 0, 0, 0]]


@pytest.mark.parametrize(
    ("values", "column"),
    [
        ({"n": np.array([0.5])}, "n"),
        ({"n": np.array([1, 2])}, "n"),
        ({"nope": np.array([1])}, "nope"),
        ({"n": pa.array(["x"])}, "n"),
    ],
)
def test_values_that_do_not_fit_are_refused_by_name(
    tmp_path: Path, values: Any, column: str
) -> None:
    with open_at(tmp_path, SCHEMAS["int"]) as session:
        with pytest.raises(SchemaMismatch) as refused:
            session.write(int_keys(np.array([1])), values)
        assert refused.value.column == column
        assert not session.changed


def test_a_type_that_state_cannot_hold_is_refused_when_opened(tmp_path: Path) -> None:
    odd = pa.struct([("x", pa.int64())])
    schema = StateSchema(key=pa.schema([("k", pa.int64())]), values=pa.schema([("odd", odd)]))
    with pytest.raises(SchemaMismatch, match="odd"):
        open_at(tmp_path, schema)


def test_nothing_written_means_the_same_chain_object(tmp_path: Path) -> None:
    with open_at(tmp_path, SCHEMAS["int"]) as session:
        session.write(int_keys(np.arange(3)), {"n": np.arange(3)})
        chain = session.commit()

    with open_at(tmp_path, SCHEMAS["int"], chain, epoch=2) as session:
        session.read(int_keys(np.arange(5)))
        session.remove(int_keys(np.array([77])))
        assert session.commit() is chain


def test_the_same_work_writes_the_same_bytes_under_the_same_name(tmp_path: Path) -> None:
    """Whatever the order of keys, the batches they came in, and the layout of the table."""
    chains = []
    for number, order in enumerate([np.arange(3000), np.arange(3000)[::-1]]):
        folder = tmp_path / str(number)
        warm = str(folder / "warm") if number else None
        store = StateStore(Storage.at(str(folder)), warm_dir=warm, buckets=8, compact_after=2)
        chain: Any = ()
        for epoch in range(6):
            with store.open(
                "op", 3, SCHEMAS["int"], chain, epoch=epoch, level=1, now_ms=0
            ) as session:
                for part in np.array_split(order, 1 + number * 3):
                    texts = pa.array([None if k % 7 == 0 else f"{k}" for k in part])
                    session.write(int_keys(part), {"n": part * epoch, "s": texts})
                session.remove(int_keys(np.arange(epoch * 10, epoch * 10 + 5)))
                chain = session.commit()
        chains.append(chain)
        names = [file.name for file in chain]
    assert chains[0] == chains[1]
    for name in names:
        assert (tmp_path / "0" / name).read_bytes() == (tmp_path / "1" / name).read_bytes()


MANY = StateSchema(
    key=pa.schema([("k", pa.int64())]),
    values=pa.schema(
        [
            ("n", pa.int64()),
            ("s", pa.string()),
            ("list", pa.list_(pa.int32())),
            ("pair", pa.list_(pa.float64(), 2)),
            ("price", pa.decimal128(9, 2)),
            ("yes", pa.bool_()),
        ]
    ),
)


@pytest.mark.parametrize("nulls", [0, 7, 1])
@pytest.mark.parametrize("ttl", [None, 5])
def test_a_delta_of_one_write_is_that_of_many(tmp_path: Path, nulls: int, ttl: int | None) -> None:
    """One write has its values at hand, several are gathered: rows, new and old, are the same."""
    keys = np.random.default_rng(3).permutation(2000)
    told = {
        "s": lambda k: f"{k}",
        "list": lambda k: [k, 1],
        "pair": lambda k: [k, 0.5],
        "price": Decimal,
        "yes": lambda k: k % 2 == 0,
    }
    columns: dict[str, Any] = {"n": keys * 2}
    for name, make in told.items():
        values = [None if nulls and k % nulls == 0 else make(k) for k in keys.tolist()]
        columns[name] = pa.array(values, MANY.values.field(name).type)
    chains = []
    for number, parts in enumerate([1, 3]):
        store = StateStore(Storage.at(str(tmp_path / str(number))), warm_dir=None, buckets=8)
        chain: Any = ()
        for epoch, first in enumerate([1000, 0]):
            some = np.arange(first, 2000)
            with store.open(
                "op", 0, MANY, chain, epoch=epoch, level=1, now_ms=epoch, ttl_ms=ttl
            ) as session:
                for part in np.array_split(some, parts):
                    rows = slice(int(part[0]), int(part[-1]) + 1)
                    mine = {n: v[rows] for n, v in columns.items() if epoch or n != "s"}
                    session.write(int_keys(keys[part]), mine)
                chain = session.commit()
        chains.append(chain)
    assert chains[0] == chains[1]


def test_a_caller_may_change_what_it_wrote(tmp_path: Path) -> None:
    numbers, keys = np.arange(5), int_keys(np.arange(5))
    with open_at(tmp_path, SCHEMAS["int"]) as session:
        session.write(keys, {"n": numbers})
        numbers += 1
        chain = session.commit()
    with open_at(tmp_path, SCHEMAS["int"], chain) as session:
        assert sorted(session.all()["n"].tolist()) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("room", [True, False])
def test_a_column_that_is_compared_as_a_whole_leaves_the_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: bool
) -> None:
    """Who scans it reads nothing else; where there is no room for that, it stays and is right."""
    schema = StateSchema(
        key=pa.schema([("k", pa.int64())]),
        values=pa.schema([("n", pa.int64()), ("small", pa.int8())]),
    )
    reserve = MappedMemory.reserve

    def maybe(memory: MappedMemory, name: str, *shape: Any) -> None:
        if name != "seals" and not room:
            raise OSError
        reserve(memory, name, *shape)

    monkeypatch.setattr(MappedMemory, "reserve", maybe)
    store = StateStore(Storage.at(str(tmp_path)), warm_dir=str(tmp_path / "warm"), buckets=8)
    chain: Any = ()
    for epoch in range(6):
        if epoch % 2:
            forget_mappings()
        with store.open("op", 0, schema, chain, epoch=epoch, level=1, now_ms=0) as session:
            keys = np.arange(epoch * 5, epoch * 5 + 100)  # few new ones: no new table
            session.write(int_keys(keys), {"n": keys * 3, "small": keys % 7})
            if epoch:
                found = session.select("n", below=60)
                assert sorted(found["n"].tolist()) == list(range(0, 60, 3))
                assert found["small"].tolist() == (found["n"] // 3 % 7).tolist()
            chain = session.commit()
    files = [path.name.partition("-")[2] for path in (tmp_path / "warm/op/00000").iterdir()]
    assert ("c001" in files) == room and "c002" not in files


FLOATS = StateSchema(
    key=pa.schema([("k", pa.float64())]),
    sub=pa.schema([("j", pa.float32())]),
    values=pa.schema([("n", pa.int64())]),
)
NANS = np.array([0x7FF8 << 48, (0xFFF8 << 48) + (5 << 30)], np.uint64).view(np.float64)


@settings(max_examples=40, deadline=None)
@given(
    epochs=st.lists(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=3), max_size=5),
    warm=st.booleans(),
)
def test_how_a_float_key_is_spelled_makes_no_difference(
    epochs: list[list[tuple[bool, bool]]], warm: bool
) -> None:
    """There is one zero and one NaN, whichever came first, in a warm copy and in a new one."""

    def files(*, spelled: bool, warm: bool) -> Any:
        with quick_folder() as folder:
            place = str(folder / "warm") if warm else None
            store = StateStore(Storage.at(str(folder)), warm_dir=place, buckets=8, compact_after=2)
            chain: Any = ()
            for epoch, writes in enumerate(epochs):
                with store.open("op", 0, FLOATS, chain, epoch=epoch, level=1, now_ms=0) as session:
                    for minus, odd in writes:
                        zero, nan = -0.0 if minus and spelled else 0.0, NANS[int(odd and spelled)]
                        keys = keys_of(FLOATS, [(0.0, 9.0), (9.0, 0.0), (1.0, 2.0)])
                        columns = [pa.array([zero, nan, 1.0]), pa.array([nan, zero, 2.0])]
                        columns[1] = columns[1].cast(pa.float32())
                        batch = pa.RecordBatch.from_arrays(columns, schema=FLOATS.row_key)
                        session.write(replace(keys, columns=batch), {"n": np.full(3, epoch)})
                    chain = session.commit()
            return chain

    assert files(spelled=True, warm=warm) == files(spelled=False, warm=False)


def test_files_that_spell_a_float_key_otherwise_are_read_as_all_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Older releases wrote the spelling of the row that came first."""
    keys = keys_of(FLOATS, [(-0.0, 1.0), (1.0, -0.0)])
    with monkeypatch.context() as older, open_at(tmp_path, FLOATS) as session:
        older.setattr("headgate.state.layout.one_spelling", lambda keys: keys)
        session.write(keys, {"n": np.array([1, 2])})
        chain = session.commit()

    with open_at(tmp_path, FLOATS, chain) as session:
        rows = session.all()
        held = session.read(keys)

    assert not np.signbit(rows["k"]).any() and not np.signbit(rows["j"]).any()
    assert held.found.all()


def test_a_delta_is_written_even_if_its_name_exists(tmp_path: Path) -> None:
    names = []
    for _ in range(2):
        with open_at(tmp_path, SCHEMAS["int"]) as session:
            session.write(int_keys(np.arange(3)), {"n": np.arange(3)})
            (file,) = session.commit()
        names.append(file.name)
        (tmp_path / file.name).write_bytes(b"half a file")
    with open_at(tmp_path, SCHEMAS["int"]) as session:
        session.write(int_keys(np.arange(3)), {"n": np.arange(3)})
        session.commit()

    assert names[0] == names[1]
    assert (tmp_path / names[0]).stat().st_size == file.bytes


def test_a_table_whose_rows_come_and_go_is_not_rebuilt_in_every_session(tmp_path: Path) -> None:
    """Each session brings as many rows as it removes, more than a rebuilt table has room for."""
    warm = str(tmp_path / "warm")
    store = StateStore(Storage.at(str(tmp_path / "files")), warm_dir=warm, buckets=8)
    generations, sizes, chain = [], [], ()
    for epoch in range(24):
        with store.open(
            "op", 0, SCHEMAS["int"], chain, epoch=epoch, level=1, now_ms=epoch
        ) as session:
            keys = int_keys(np.arange(epoch * 1000, epoch * 1000 + 1000))
            session.write(keys, {"n": np.full(1000, epoch)})
            session.remove_rows(session.select("n", below=epoch))
            generations.append(session._table.memory.generation)
            sizes.append(session._table.capacity)
            chain = session.commit()

    assert len({*generations}) <= 24 // 2
    assert max(sizes) < 8 * 1000


def test_rows_selected_by_their_keys_only_are_removed_as_whole_ones_are(tmp_path: Path) -> None:
    schema, files = SCHEMAS["text"], []
    keys = keys_of(schema, [(f"k{n}",) for n in range(300)])
    texts = pa.array([None if n % 7 == 0 else f"s{n}" for n in range(300)])
    for keys_only in (False, True):
        store = StateStore(Storage.at(str(tmp_path / str(keys_only))), warm_dir=None, buckets=8)
        with store.open("op", 0, schema, (), epoch=0, level=1, now_ms=0) as session:
            session.write(keys, {"n": np.arange(300), "s": texts})
            rows = session.select("n", below=200, keys_only=keys_only)
            assert sorted(rows.keys["word"].to_pylist()) == sorted(f"k{n}" for n in range(200))
            session.remove_rows(rows)
            chain = session.commit()
        files.append([file.digest for file in chain])
        with store.open("op", 0, schema, chain, epoch=1, level=1, now_ms=0) as session:
            left = {(row["n"], row["s"]) for row in session.all().batch().to_pylist()}
        assert left == {(n, texts[n].as_py()) for n in range(200, 300)}
    assert files[0] == files[1]


def test_rows_that_move_are_neither_lost_nor_doubled(tmp_path: Path) -> None:
    schema = SCHEMAS["sub"]
    store = StateStore(Storage.at(str(tmp_path)), warm_dir=None, buckets=8, compact_after=3)
    keys = keys_of(schema, [(f"w{n % 40}", n) for n in range(400)])
    give: Any = ()
    for epoch in range(5):
        with store.open("op", 0, schema, give, epoch=epoch, level=1, now_ms=7, ttl_ms=99) as giver:
            giver.write(keys, {"n": np.arange(400) + epoch})
            give = giver.commit()
    pinned = keys.route[:3]
    buckets, keep = np.array([1, 6]), keys.route[10:12]

    rows = store.moved_rows("op", 0, schema, give, buckets=buckets, routes=pinned)
    stay = np.isin(rows.route, keep)
    moving = rows.take(~stay)
    with store.open("op", 1, schema, (), epoch=9, level=1, now_ms=50, ttl_ms=99) as taker:
        taker.absorb(moving)
        taken = taker.commit()
    with store.open("op", 0, schema, give, epoch=9, level=1, now_ms=50, ttl_ms=99) as giver:
        dropped = giver.drop_units(buckets, pinned, keep)
        left = giver.commit()

    both = [store.scan("op", slot, schema, c) for slot, c in ((0, left), (1, taken))]
    assert dropped == len(moving) == both[1].num_rows > 0
    assert sorted(both[0]["at"].to_pylist() + both[1]["at"].to_pylist()) == list(range(400))
    assert in_units(moving.route, 8, buckets, pinned).all()
    assert moving.touched_ms is not None and set(moving.touched_ms.tolist()) == {7}
    with store.open("op", 1, schema, taken, epoch=10, level=1, now_ms=106, ttl_ms=99) as taker:
        assert len(taker.all()) == 0  # they kept their old clock: touched at 7, over at 106


def test_one_key_is_looked_up_with_all_its_sub_rows(tmp_path: Path) -> None:
    schema = SCHEMAS["sub"]
    store = StateStore(Storage.at(str(tmp_path)), warm_dir=None, buckets=1)
    keys = keys_of(schema, [(f"w{n % 4}", n) for n in range(20)])
    with store.open("op", 0, schema, (), epoch=1, level=1, now_ms=0) as session:
        session.write(keys, {"n": np.arange(20)})
        chain = session.commit()

    found = store.scan("op", 0, schema, chain, route=int(keys.route[2]))

    assert sorted(found["at"].to_pylist()) == [2, 6, 10, 14, 18]
    assert found.schema.names == ["word", "at", "n", "s"]


def test_expired_rows_are_swept_from_the_chain(tmp_path: Path) -> None:
    store = StateStore(Storage.at(str(tmp_path)), warm_dir=None, buckets=8)
    chain: Any = ()
    for epoch in range(1, 34):
        with store.open(
            "op", 0, SCHEMAS["int"], chain, epoch=epoch, level=1, now_ms=epoch, ttl_ms=5
        ) as session:
            session.write(int_keys(np.array([epoch])), {"n": np.array([1])})
            chain = session.commit()

    kept = store.scan("op", 0, SCHEMAS["int"], chain)["k"].to_pylist()
    assert len(kept) <= 5 + 16
    assert set(range(29, 34)) <= set(kept)


def test_a_ttl_may_be_declared_later_and_taken_away_again(tmp_path: Path) -> None:
    """Rows from before the TTL count as touched when they were first opened with it."""
    store = StateStore(Storage.at(str(tmp_path)), warm_dir=None, buckets=8, compact_after=2)
    chain: Any = ()
    for epoch, (now_ms, ttl_ms) in enumerate(
        [(0, None), (100, 50), (110, 50), (120, 50), (140, 50), (149, 50), (500, None)]
    ):
        with store.open(
            "op", 0, SCHEMAS["int"], chain, epoch=epoch, level=1, now_ms=now_ms, ttl_ms=ttl_ms
        ) as session:
            assert session.read(int_keys(np.arange(epoch))).found.all()
            session.write(int_keys(np.array([epoch])), {"n": np.array([epoch])})
            chain = session.commit()
    assert len(store.scan("op", 0, SCHEMAS["int"], chain)) == 7


def test_levels_of_an_epoch_build_on_each_other(tmp_path: Path) -> None:
    store = StateStore(
        Storage.at(str(tmp_path / "f")), warm_dir=str(tmp_path / "w"), buckets=8, compact_after=3
    )
    chain: Any = ()
    for epoch in range(5):
        for level in (1, 2):
            with store.open(
                "op", 0, SCHEMAS["int"], chain, epoch=epoch, level=level, now_ms=0
            ) as session:
                keys = int_keys(np.arange(level, 10))
                session.write(keys, {"n": session.read(keys)["n"] + level})
                chain = session.commit()
    state = store.scan("op", 0, SCHEMAS["int"], chain)
    assert sorted(state["n"].to_pylist()) == [5, *[15] * 8]


def test_what_was_not_read_in_the_session_cannot_be_read_after_it(tmp_path: Path) -> None:
    with open_at(tmp_path, SCHEMAS["int"]) as session:
        keys = int_keys(np.arange(3))
        session.write(keys, {"n": np.arange(3)})
        held = session.read(keys)
        assert held["n"].tolist() == [0, 1, 2]
        session.commit()

    assert held["n"].tolist() == [0, 1, 2]
    with pytest.raises(RuntimeError, match="session ended"):
        held["s"]


def test_a_state_that_was_emptied_has_an_empty_chain_in_the_end(tmp_path: Path) -> None:
    store = StateStore(
        Storage.at(str(tmp_path / "f")), warm_dir=str(tmp_path / "w"), buckets=8, compact_after=2
    )
    chain: Any = ()
    lengths = []
    for epoch in range(8):
        with store.open("op", 0, SCHEMAS["int"], chain, epoch=epoch, level=1, now_ms=0) as session:
            keys = int_keys(np.arange(4))
            if epoch % 2:
                session.remove(keys)
            else:
                assert not session.read(keys).found.any()
                session.write(keys, {"n": np.arange(4)})
            chain = session.commit()
            lengths.append(len(chain))
    assert len(store.scan("op", 0, SCHEMAS["int"], chain)) == 0
    assert 0 in lengths and max(lengths) < 4


SCHEMA = StateSchema(
    pa.schema({"k": pa.string()}),
    pa.schema(
        [
            pa.field("n", pa.int64(), nullable=False),
            pa.field("maybe", pa.int64()),
            pa.field("text", pa.string()),
        ]
    ),
    pa.schema([]),
)


def groups_of(keys: list[str | None]) -> Groups:
    return KeyedRows(pa.RecordBatch.from_pydict({"k": pa.array(keys, pa.string())}), ["k"]).groups


def eager() -> PrivateSession:
    """One whose table is built from the start."""
    session = PrivateSession(SCHEMA)
    real = session._write

    def write(*given: Any) -> None:
        real(*given)
        session._make_ready()

    session._write = write  # type: ignore[method-assign]
    return session


def told(session: PrivateSession) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = session.all().batch().to_pylist()
    return rows


KEYS = st.lists(st.none() | st.sampled_from("abcdef"), min_size=1, max_size=8)
STEPS = st.lists(
    st.tuples(st.sampled_from(["add", "note", "mark", "undo", "remove", "drop", "look"]), KEYS),
    max_size=8,
)


@examples(150)
@given(STEPS)
def test_it_behaves_as_if_it_had_a_table_from_the_start(steps: list[tuple[str, Any]]) -> None:
    one, other = PrivateSession(SCHEMA), eager()
    marks = 0
    for number, (step, keys) in enumerate(steps):
        for session in (one, other):
            groups = groups_of(keys)
            if step == "add":
                held = session.read(groups)
                session.write(groups, {"n": held["n"] + groups.sizes})
            elif step == "note":
                some = groups.take(np.arange(len(groups)) % 2 == 0)
                texts = pa.array([f"{number}" if i % 3 else None for i in range(len(some))])
                numbers = pa.array([None if i % 2 else i for i in range(len(some))], pa.int64())
                session.write(some, {"text": texts, "maybe": numbers})
            elif step == "mark":
                session.mark()
            elif step == "undo" and marks:
                session.rollback()
            elif step == "remove":
                session.remove(groups)
            elif step == "drop":
                session.remove_rows(session.select("n", below=2))
            session.forget_changes() if not marks and step == "look" else None
        marks += step == "mark"
        assert one.rows == other.rows
    assert told(one) == told(other)
    assert one.bytes >= 0


def test_the_table_is_not_built_for_one_call() -> None:
    session = PrivateSession(SCHEMA)
    groups = groups_of(["b", "a", "b", None])
    values = session.read(groups)["n"] + groups.sizes
    session.write(groups, {"n": values})
    values[:] = 0  # the caller's array is the caller's again

    assert session._table.live == 0 and session.rows == 3 and session.bytes > 0
    assert sorted((r["n"], str(r["k"])) for r in told(session)) == [(1, "None"), (1, "a"), (2, "b")]
    assert session._table.live == 0


def test_there_is_nothing_to_commit() -> None:
    with pytest.raises(AssertionError, match="nothing to commit"):
        PrivateSession(SCHEMA).commit()
