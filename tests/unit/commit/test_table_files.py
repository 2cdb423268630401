"""Tables on storage: chains of changes make the same table, and every start can read them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.commit.routing_in_use import CHANGES_MAX, TableFiles
from headgate.errors import StateFileError
from headgate.routing.table import hash_table
from headgate.state.storage import Storage
from strategies import examples, quick_folder


def at(folder: Path) -> TableFiles:
    return TableFiles(Storage.at(str(folder)))


def pins(count: int, first: int = 0) -> tuple[np.ndarray, np.ndarray]:
    h = np.arange(first, first + count, dtype=np.uint64)
    return h, (h % np.uint64(3)).astype(np.int32)


def test_tables_are_stored_by_content(tmp_path: Path) -> None:
    files = at(tmp_path)
    table = hash_table(3).pin([pa.array(["a"])], [2])
    same_version = hash_table(3).pin([pa.array(["b"])], [2])

    names = files.save("op", table)

    assert files.save("op", table) == names
    assert files.save("op", same_version) != names
    back = at(tmp_path).load(names)
    assert back.same_routes(table)
    assert back.version == table.version


def test_a_deleted_table_can_be_saved_again(tmp_path: Path) -> None:
    files = at(tmp_path)
    table = hash_table(2).with_buckets(np.zeros(1024, np.int32))
    names = files.save("op", table)

    files.storage.delete(names[0])
    assert files.storage.list() == []
    files.save("op", table)

    assert at(tmp_path).load(names).same_routes(table)


def test_a_few_new_pins_are_stored_as_a_change(tmp_path: Path) -> None:
    files = at(tmp_path)
    large = hash_table(3).pin_hashes(*pins(1_000))
    base = files.save("op", large)
    more = large.pin_hashes(*pins(10, first=995))

    names = files.save("op", more, base)

    assert names[:-1] == base
    change, whole = (Path(tmp_path, name).stat().st_size for name in (names[1], names[0]))
    assert change < whole / 5
    back = at(tmp_path).load(names)
    assert back.same_routes(more) and back.version == more.version


@pytest.mark.parametrize("what", ["fewer pins", "other buckets", "most pins", "other slots"])
def test_other_changes_are_stored_whole(tmp_path: Path, what: str) -> None:
    files = at(tmp_path)
    old = hash_table(3).pin_hashes(*pins(100))
    new = {
        "fewer pins": old.unpin_hashes(pins(1)[0]),
        "other buckets": old.with_buckets(np.zeros(1024, np.int32)),
        "most pins": old.pin_hashes(pins(60)[0], np.full(60, 2, np.int32)),
        "other slots": old.resized(4),
    }[what]

    names = files.save("op", new, files.save("op", old))

    assert len(names) == 1
    assert at(tmp_path).load(names).same_routes(new)


def test_a_chain_of_changes_ends_in_a_whole_table_now_and_then(tmp_path: Path) -> None:
    files = at(tmp_path)
    table = hash_table(3).pin_hashes(*pins(1_000))
    names = files.save("op", table)
    longest = 0
    for step in range(3 * CHANGES_MAX):
        table = table.pin_hashes(*pins(1, first=2_000 + step))
        names = files.save("op", table, names)
        longest = max(longest, len(names))

    assert longest == CHANGES_MAX + 1
    assert at(tmp_path).load(names).same_routes(table)


@examples(40)
@given(steps=st.lists(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 2))), max_size=6))
def test_any_history_of_pins_reads_back(steps: list[list[tuple[int, int]]]) -> None:
    with quick_folder() as folder:
        files, table = at(folder), hash_table(3, buckets=4).pin_hashes(*pins(30))
        names = files.save("op", table)
        for step in steps:
            h = np.array([k for k, _ in step], np.uint64)
            table = table.pin_hashes(h, np.array([s for _, s in step], np.int32))
            names = files.save("op", table, names)
            assert at(folder).load(names).same_routes(table)
            assert files.load(names).same_routes(table)


def test_a_missing_table_is_a_clear_error(tmp_path: Path) -> None:
    names = at(tmp_path).save("op", hash_table(2))
    at(tmp_path).storage.delete(names[0])

    with pytest.raises(StateFileError, match="bring it back"):
        at(tmp_path).load(names)


@pytest.mark.parametrize("which", [0, 1])
def test_no_flipped_bit_and_no_cut_goes_unseen(tmp_path: Path, which: int) -> None:
    """In a whole table and in a change: a key would get a second owner."""
    files = at(tmp_path)
    table = hash_table(3, buckets=4).pin_hashes(*pins(30))
    names = files.save("op", table.pin_hashes(*pins(3, first=28)), files.save("op", table))
    path = tmp_path / names[which]
    whole = path.read_bytes()
    damaged = [whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :] for at in range(len(whole))]
    for data in (*damaged, *(whole[:length] for length in range(0, len(whole), 50))):
        path.write_bytes(data)
        with pytest.raises(StateFileError, match="bring it back") as caught:
            at(tmp_path).load(names)
        assert caught.value.file == names[which]
