"""Routing tables as a folder: what is saved is what is loaded, and strangers are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headgate as hg
from headgate.errors import HeadgateError
from headgate.routing.table_folder import save_tables


def pinned(slots: int, count: int, seed: int = 0) -> hg.RoutingTable:
    rng = np.random.default_rng(seed)
    h = rng.integers(0, 2**64, count, np.uint64)
    return hg.hash_table(slots).pin_hashes(h, rng.integers(0, slots, count).astype(np.int32))


@given(slots=st.integers(1, 9), count=st.integers(0, 50), seed=st.integers(0, 9))
def test_tables_come_back_as_they_were(
    tmp_path_factory: pytest.TempPathFactory, slots: int, count: int, seed: int
) -> None:
    """Parquet keeps the slots, buckets and version that the Arrow table has in its metadata."""
    folder = tmp_path_factory.mktemp("tables")
    tables = {"by_a": pinned(slots, count, seed), "by-b.2": hg.hash_table(slots)}

    save_tables(tables, folder)
    found = hg.load_tables(folder)

    assert set(found) == set(tables)
    for name, table in tables.items():
        assert found[name].same_routes(table)
        assert found[name].version == table.version


def test_a_uri_is_a_folder_too(tmp_path: Path) -> None:
    save_tables({"a": pinned(3, 5)}, tmp_path.as_uri())

    assert hg.load_tables(tmp_path.as_uri())["a"].same_routes(hg.load_tables(str(tmp_path))["a"])


def test_tables_of_an_earlier_analysis_are_replaced(tmp_path: Path) -> None:
    save_tables({"a": pinned(3, 5), "b": pinned(3, 5)}, tmp_path)
    (tmp_path / "report.html").write_text("stays")

    save_tables({"b": pinned(2, 7), "c": pinned(2, 7)}, tmp_path)

    assert {name: table.slots for name, table in hg.load_tables(tmp_path).items()} == {
        "b": 2,
        "c": 2,
    }
    assert (tmp_path / "report.html").exists()
    assert not list(tmp_path.glob("*.new"))


def test_a_folder_with_data_is_refused_and_kept(tmp_path: Path) -> None:
    pq.write_table(pa.table({"h": [1], "slot": [2]}), tmp_path / "mine.parquet")

    with pytest.raises(HeadgateError, match=r"mine\.parquet is not a routing table"):
        save_tables({"a": pinned(3, 5)}, tmp_path)

    assert [path.name for path in tmp_path.iterdir()] == ["mine.parquet"]
    with pytest.raises(HeadgateError, match="not a routing table"):
        hg.load_tables(tmp_path)


@pytest.mark.parametrize("made", [False, True])
def test_no_tables_says_where_they_come_from(tmp_path: Path, made: bool) -> None:
    folder = tmp_path / "none"
    if made:
        folder.mkdir()

    with pytest.raises(HeadgateError, match=r"no routing tables in .*none.*headgate analyze"):
        hg.load_tables(folder)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"not parquet")

    with pytest.raises(HeadgateError, match=r"a\.parquet cannot be read"):
        hg.load_tables(tmp_path)
