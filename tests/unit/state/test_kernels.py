"""The compiled loops over state rows and NumPy find, place and order the same rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.state import kernels
from headgate.state.columns import Packing, PrivateMemory
from headgate.state.layout import RowLayout, StateSchema, Values
from headgate.state.rows import RowIds, sorted_order
from headgate.state.seals import WarmCopyDamaged, row_seals, value_seals
from headgate.state.table import HashTable, home_of
from strategies import examples

built = pytest.mark.skipif(kernels.compiled is None, reason="no C compiler when it was installed")
INT, TEXT = pa.int64(), pa.string()
WORDS = st.sampled_from([0, 1, 2, 7, 1 << 40, (1 << 63) + 5, (1 << 64) - 1])


def in_numpy(work: Any) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "compiled", None)
        return work()


def ids_of(rows: list[tuple[int, int, int]]) -> RowIds:
    parts = np.array(rows, np.uint64).reshape(-1, 3)
    return RowIds(*(np.ascontiguousarray(parts[:, part]) for part in range(3)))


@built
@examples(200)
@given(st.lists(st.tuples(WORDS, WORDS, WORDS), max_size=70))
def test_rows_are_put_in_the_same_order(rows: list[tuple[int, int, int]]) -> None:
    ids = ids_of(rows)

    order, first = sorted_order(ids)

    expected = sorted(range(len(rows)), key=lambda row: (rows[row], row))
    assert order.tolist() == expected == in_numpy(lambda: sorted_order(ids))[0].tolist()
    assert first.tolist() == [i == 0 or rows[r] != rows[expected[i - 1]] for i, r in
                              enumerate(expected)]  # fmt: skip


@built
@pytest.mark.parametrize("key", [INT, TEXT], ids=str)
@examples(100)
@given(data=st.data())
def test_the_table_is_a_dictionary_both_ways(key: pa.DataType, data: st.DataObject) -> None:
    """Hashes share homes, marks differ: a row is found where it is, and only there."""
    layout = RowLayout(StateSchema(pa.schema([("k", key)]), pa.schema([("v", INT)])))
    marks = data.draw(st.sampled_from([st.just(1), st.sampled_from([1, 3, 301])]))
    hashes = st.integers(0, 40).map(lambda n: n << 33)
    rows = data.draw(st.lists(st.tuples(hashes, marks), unique=True, max_size=60))
    gone = data.draw(st.sets(st.sampled_from(rows))) if rows else set()

    def work() -> list[bool]:
        table = HashTable.build(layout, PrivateMemory(), RowIds.none(), layout.blank(0))
        for part in (rows[::2], rows[1::2]):  # what came first is there, and stays
            ids = ids_of([(h, h, mark) for h, mark in part])
            pos, found = table.find(ids.h, ids.check)
            assert not found.any()
            pos = table.ensure(ids, pos, found)
            assert len({*pos.tolist()}) == len(part) and (table.h[pos] == ids.h).all()
        lost = ids_of([(h, h, mark) for h, mark in gone])
        table.remove(table.find(lost.h, lost.check)[0])
        asked = ids_of([(h, h, mark) for h, mark in [*rows, (41 << 33, 1)]])
        pos, found = table.find(asked.h, asked.check)
        again, same = table.find(asked.h, asked.check, home_of(asked.h, table.capacity))
        assert (again == pos).all() and (same == found).all()
        assert table.live == len(rows) - len(gone)
        return list(found.tolist())

    assert work() == in_numpy(work) == [row not in gone for row in rows] + [False]


COLUMNS = ["u1", "?", "i2", "i4", "i8", "f8", "V3", "V16", "i8 x 3", "i2 x 5"]


@built
@examples(100)
@given(st.integers(0, 1200), st.lists(st.tuples(st.sampled_from(COLUMNS), st.booleans())))
def test_rows_have_the_same_seals(rows: int, columns: list[tuple[str, bool]]) -> None:
    rng = np.random.default_rng(rows)
    values = []
    for told, nulls in columns:
        kind, _, width = told.partition(" x ")
        raw = rng.integers(0, 256, (rows, np.dtype(kind).itemsize * int(width or 1)), np.uint8)
        data = raw.view(kind) if width else raw.reshape(-1).view(kind)
        values.append(Values(data, rng.random(rows) < 0.5 if nulls else None))
    h, check = (rng.integers(0, 1 << 64, rows, np.uint64) for _ in range(2))
    for marks in (check, check.astype(np.uint8)):
        pos = rng.permutation(rows)

        def work(marks: Any = marks, pos: Any = pos) -> Any:
            return [made.tolist() for made in row_seals(h, marks, pos, (), values, values[:1])]

        assert work() == in_numpy(work)


@built
@examples(60)
@given(st.integers(0, 400), st.lists(st.sampled_from(["u1", "?", "i2", "f4", "i8", "f8"])))
def test_numbers_of_records_are_read_and_written_alike(rows: int, dtypes: list[str]) -> None:
    rng = np.random.default_rng(rows)
    numbers = {f"{at}": np.dtype(dtype) for at, dtype in enumerate(dtypes)}
    packing = Packing(numbers, sealed=True)
    before = rng.integers(0, 2, (1000, packing.bytes), np.uint8)
    pos = rng.permutation(1000)[:rows]
    columns = [rng.integers(0, 2, rows).astype(dtype) for dtype in dtypes]
    compiled, numpy = before.copy(), before.copy()
    views = [[packing.view(records, name) for name in numbers] for records in (compiled, numpy)]

    kernels.put(kernels.compiled, compiled, pos, views[0], columns)
    for view, column in zip(views[1], columns, strict=True):
        view[pos] = column

    assert (compiled == numpy).all()
    pos = rng.permutation(1000)
    for taken, view in zip(
        kernels.take(kernels.compiled, compiled, pos, views[0]), views[1], strict=True
    ):
        assert taken.dtype == view.dtype and taken.tobytes() == view[pos].tobytes()


@built
@examples(100)
@given(st.lists(st.one_of(st.binary(max_size=40), st.integers(250, 260).map(bytes))), st.integers())
def test_values_have_the_same_seals(values: list[bytes], seed: int) -> None:
    bounds = np.cumsum([0, *map(len, values)])
    body = np.frombuffer(b"".join(values), np.uint8)
    ordinals = np.random.default_rng(abs(seed)).permutation(len(values))

    def work() -> Any:
        return value_seals(bounds, body, ordinals).tolist()

    assert work() == in_numpy(work)


@pytest.mark.parametrize("way", [pytest.param("compiled", marks=built), "numpy"])
def test_a_probe_that_leaves_the_table_means_damage(way: str) -> None:
    layout = RowLayout(StateSchema(pa.schema([("k", TEXT)]), pa.schema([("v", INT)])))
    table = HashTable.build(layout, PrivateMemory(), RowIds.none(), layout.blank(0))
    table.check[:] = 5

    def work() -> None:
        with pytest.raises(WarmCopyDamaged):
            table.find(np.zeros(1, np.uint64), np.array([3], np.uint64))

    work() if way == "compiled" else in_numpy(work)
