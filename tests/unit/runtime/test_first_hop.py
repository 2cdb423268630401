"""Which host reads a file: that of the slot its rows go to, if folders tell, and if it has room."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headgate as hg
from headgate.routing.hashing import hash_columns
from headgate.routing.route import Here, HereUnlessPinned, Route, ToOwner
from headgate.routing.table import hash_table
from headgate.runtime.first_hop import FULLER, FirstHop, FirstKey, dealt_by_home
from headgate.slot.compile import compile_flow
from headgate.slot.file_rows import files_of, read_pieces
from headgate.slot.task import _chunks
from headgate.topology.files import Files, InputFile

FILES = Files("/in", schema="region string, day int, n bigint")


def file(place: str, size: int) -> InputFile:
    return InputFile(0, f"/in/{place}", size, 0)


def folder(value: object) -> str:
    return "__HIVE_DEFAULT_PARTITION__" if value is None else quote(str(value), safe="")


def first_hop(declare: Callable[[Any], Any]) -> FirstHop | None:
    flow = hg.Flow("hop")
    declare(flow.source(FILES)).to_table("out")
    program = compile_flow(flow.graph())
    return FirstHop.of(program, files_of(program))


def counted(rows: Any, *key: str, **how: Any) -> Any:
    return rows.key_by(*key).process(hg.Count(), name="count", **how)


@pytest.mark.parametrize(
    ("declare", "key"),
    [
        (lambda rows: counted(rows, "region"), ("region",)),
        (lambda rows: counted(rows.filter("n > 0"), "region", "day"), ("region", "day")),
        (lambda rows: counted(rows.select("n", area="region"), "area"), ("region",)),
        (lambda rows: counted(rows.with_columns(region="upper(region)"), "region"), None),
        (lambda rows: counted(rows.map(lambda b: b, FILES.schema), "region"), None),
        (lambda rows: rows.shuffle().map(lambda b: b, FILES.schema, name="same"), None),
        (lambda rows: counted(rows.filter("n > 0"), "day"), ("day",)),
    ],
)
def test_a_key_is_known_where_only_filters_lie_before_it(
    declare: Callable[[Any], Any], key: tuple[str, ...] | None
) -> None:
    found = first_hop(declare)

    assert (None if found is None else found.keys) == (key and {0: FirstKey("count", key)})


@given(
    keys=st.lists(
        st.tuples(st.text("ab %/=", max_size=3) | st.none(), st.integers(-9, 9) | st.none()),
        min_size=1,
        max_size=6,
    ),
    pinned=st.booleans(),
    by=st.sampled_from([ToOwner(), HereUnlessPinned({}), Here()]),
)
def test_the_slot_of_a_folder_is_the_one_to_which_its_rows_go(
    keys: list[tuple[str | None, int | None]], pinned: bool, by: Any
) -> None:
    hop = first_hop(lambda rows: counted(rows, "region", "day"))
    assert hop is not None
    regions, days = zip(*keys, strict=True)
    columns = [pa.array(regions, pa.string()), pa.array(days, pa.int32())]
    table = hash_table(5)
    if pinned:
        table = table.pin([column.slice(0, 1) for column in columns], [3])
    expected: list[int | None]
    expected, pins = (found.tolist() for found in table.look_up(hash_columns(columns, len(keys))))
    if isinstance(by, HereUnlessPinned):
        expected = [slot if pin else None for slot, pin in zip(expected, pins, strict=True)]
    if isinstance(by, Here) or set(expected) == {None}:
        expected = []

    listed = [
        file(f"region={folder(region)}/day={folder(day)}/a.parquet", 1 << 20)
        for region, day in keys
    ]

    assert hop.slots(listed, {"count": Route(table, by)}, cores=1) == expected


@given(
    days=st.lists(st.integers(-9, 9) | st.none(), min_size=1, max_size=6),
    regions=st.lists(st.sampled_from(["a", "b", None]), min_size=6, max_size=6),
    by=st.sampled_from([ToOwner(), HereUnlessPinned({}), Here()]),
)
def test_folders_of_near_columns_are_read_where_keys_without_a_pin_live(
    days: list[int | None], regions: list[str | None], by: Any
) -> None:
    hop = first_hop(lambda rows: rows.key_by("region", "day", near="day").process(hg.Count()))
    assert hop is not None
    columns = [pa.array(regions[: len(days)], pa.string()), pa.array(days, pa.int32())]
    owners = np.random.default_rng(3).integers(0, 5, 1024).astype(np.int32)
    table = hash_table(5).with_buckets(owners)
    expected = table.route(hash_columns(columns, len(days), near=(1,))).tolist()
    listed = [file(f"day={folder(day)}/a.parquet", 1 << 20) for day in days]

    found = hop.slots(listed, {"count_1": Route(table, by)}, cores=1)

    assert found == (expected if isinstance(by, ToOwner) else [])


def test_where_folders_say_nothing_of_use_anybody_reads() -> None:
    hop, routes = first_hop(lambda rows: counted(rows, "day")), {"count": Route(hash_table(5))}
    assert hop is not None

    assert (
        hop.slots([file("a.parquet", 1 << 20), file("day=x/a.parquet", 1 << 20)], routes, 1) == []
    )
    assert hop.slots([file("day=1/a.parquet", 1 << 10)], routes, 1) == [], "not worth it"
    assert hop.slots([file("day=1/a.parquet", 1 << 20)], {}, 1) == []


def test_files_are_read_at_home_up_to_a_share_and_the_rest_by_who_has_least() -> None:
    listed = [file(f"region=r{i}/a.parquet", 1_000_000) for i in range(8)]
    homes = ["a"] * 6 + ["b", ""]

    dealt, places = dealt_by_home(listed, homes, {0: FILES}, {"a": 2, "b": 2})

    read = dict.fromkeys("ab", 0)
    for pieces, place in zip(dealt, places, strict=True):
        read[place] += sum(piece.end - piece.start for piece in pieces)
    at = {p.file.place: place for task, place in zip(dealt, places, strict=True) for p in task}
    assert places == ("a", "a", "b", "b")
    assert sum(read.values()) == 8_000_000
    assert max(read.values()) <= FULLER * 4_000_000
    assert [at[f.place] for f in listed[:5]] == ["a"] * 5
    assert at[listed[6].place] == at[listed[7].place] == "b"


def test_rows_keep_the_order_of_files_whoever_reads_them(tmp_path: Path) -> None:
    for number, region in enumerate("abcabc"):
        (tmp_path / f"region={region}").mkdir(exist_ok=True)
        rows = pa.table({"n": pa.array(range(number * 10, number * 10 + 10))})
        pq.write_table(rows, tmp_path / f"region={region}" / f"{number}.parquet")
    flow, files = hg.Flow("ordered"), Files(tmp_path, schema="region string, n bigint")
    counts = flow.source(files).key_by("region").process(hg.Last("n", ordered=True))
    counts.to_table("out")
    program = compile_flow(flow.graph())
    places = sorted(tmp_path.rglob("*.parquet"), key=lambda path: path.name)
    listed = [
        InputFile(0, str(path), path.stat().st_size, path.stat().st_mtime_ns // 10**6)
        for path in places
    ]

    tasks, _ = dealt_by_home(listed, list("abaaab"), {0: files}, {"a": 1, "b": 2})

    read = [
        (place, n)
        for task in tasks
        for _, batch, order in _chunks(read_pieces(program, task), True)
        for place, n in zip(order.tolist(), batch.column("n").to_pylist(), strict=True)
    ]
    assert FirstHop.of(program, files_of(program)) is not None
    assert read != sorted(read)
    assert [n for _, n in sorted(read)] == list(range(60))


@pytest.mark.parametrize("size", [300_000, 300_000_000])
def test_every_byte_is_read_once_whatever_the_homes(size: int) -> None:
    listed = [file(f"region=r{i}/a.parquet", size * i) for i in range(7)]
    homes = ["gone", "a", "", "b", "b", "a", "b"]

    dealt, places = dealt_by_home(listed, homes, {0: FILES}, {"a": 3, "b": 1})

    read: dict[InputFile, list[tuple[int, int]]] = {}
    for piece in (piece for task in dealt for piece in task):
        read.setdefault(piece.file, []).append((piece.start, piece.end))
    assert len(dealt) == len(places)
    assert set(read) == set(listed[1:]), "an empty file has no rows"
    for whole, parts in read.items():
        ends = [0, *(end for _, end in sorted(parts))]
        assert [start for start, _ in sorted(parts)] == ends[:-1] and ends[-1] == whole.size
