"""Lookups in side tables: what they find against a dict, what they refuse, what they are given."""

from __future__ import annotations

from datetime import timedelta

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headgate as hg
from headgate.errors import (
    DeclarationError,
    HeadgateError,
    NameClash,
    OperatorFailed,
    SchemaMismatch,
    UnknownColumn,
)
from headgate.slot.side_table import SideIndex
from headgate.testing import ListSource, run
from headgate.topology import lookup as declared

ROWS = "k bigint, s string, v bigint"
NAMES = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "name": ["one", "two", None]})

numbers = st.one_of(st.none(), st.integers(-3, 3))
texts = st.one_of(st.none(), st.sampled_from(["", "a", "b", "ab", "é" * 200]))
rows = st.lists(st.fixed_dictionaries({"k": numbers, "s": texts, "v": st.integers(0, 9)}))
tables = st.lists(st.tuples(numbers, texts, st.integers(0, 99)), max_size=12)


def stream_of(epochs, schema=ROWS):
    return hg.Flow("looks").source(ListSource(schema, epochs))


def out(stream, **options):
    stream.to_memory("out")
    return run(stream.flow, **options).rows("out")


def by(row):
    return tuple(sorted((name, str(value)) for name, value in row.items()))


LAYOUTS = [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())]


@given(
    rows=rows,
    table=tables,
    on=st.sampled_from(["k", "s", "ks"]),
    how=st.sampled_from(["left", "inner"]),
    layout=st.sampled_from(LAYOUTS),
)
def test_a_lookup_finds_what_a_dict_does(rows, table, on, how, layout):
    known, kept = {}, []
    for k, s, w in table:
        key = tuple({"k": k, "s": s}[name] for name in on)
        if key not in known or None in key:
            kept.append((k, s, w))
            known[key] = w
    side = pa.table(
        {
            "k2": pa.array([k for k, _, _ in kept], pa.int64()),
            "s2": pa.array([s for _, s, _ in kept], pa.string()).cast(layout),
            "w": pa.array([w for _, _, w in kept], pa.int64()),
        }
    )
    pairs = {name: name + "2" for name in on}

    found = out(stream_of([rows]).lookup(side, on=pairs, how=how, columns=["w"]))

    expected = []
    for row in rows:
        key = tuple(row[name] for name in on)
        hit = None not in key and key in known
        if hit or how == "left":
            expected.append(row | {"w": known[key] if hit else None})
    assert sorted(map(by, found)) == sorted(map(by, expected))


def test_a_key_that_is_there_twice_is_named():
    table = pa.table({"k": pa.array([5, 7, 7, 8], pa.int64()), "n": [1, 2, 3, 4]})
    looked = stream_of([[]]).lookup(table, on="k", name="names")
    with pytest.raises(DeclarationError, match=r"'names'.*key \(k=7\) is there 2 times"):
        out(looked)
    nulls = pa.table({"k": pa.array([None, None, 8], pa.int64()), "n": [1, 2, 3]})
    found = out(stream_of([[{"k": None, "s": "", "v": 0}]]).lookup(nulls, on="k"))
    assert [row["n"] for row in found] == [None]


def test_whatever_a_table_comes_as(tmp_path):
    pq.write_table(NAMES, tmp_path / "names.parquet")
    folder = tmp_path / "parts"
    folder.mkdir()
    for row in range(3):
        pq.write_table(NAMES.slice(row, 1), folder / f"{row}.parquet")
    ways = [
        NAMES,
        NAMES.to_pandas(),
        pd.DataFrame({"id": [1, 2], "name": ["one", "two"]}),
        tmp_path / "names.parquet",
        str(folder),
        lambda: NAMES,
    ]
    for table in ways:
        stream = stream_of([[{"k": 2, "s": "x", "v": 0}]]).lookup(table, on={"k": "id"})
        assert stream.schema.names == ["k", "s", "v", "name"]
        assert out(stream) == [{"k": 2, "s": "x", "v": 0, "name": "two"}]


def test_a_function_with_a_schema_is_not_called_when_declared():
    calls = []

    def read():
        calls.append(1)
        return NAMES

    stream = stream_of([[{"k": 1, "s": "", "v": 0}]])
    looked = stream.lookup(read, on={"k": "id"}, schema="id bigint, name string")
    assert not calls
    assert out(looked)[0]["name"] == "one"
    assert len(calls) == 1


def test_columns_and_suffixes():
    table = pa.table({"id": pa.array([1], pa.int64()), "v": [10], "more": ["m"]})
    rows = [[{"k": 1, "s": "x", "v": 3}]]
    with pytest.raises(NameClash, match="suffixes"):
        stream_of(rows).lookup(table, on={"k": "id"})
    looked = stream_of(rows).lookup(table, on={"k": "id"}, suffixes=("", "_table"))
    assert out(looked) == [{"k": 1, "s": "x", "v": 3, "v_table": 10, "more": "m"}]
    looked = stream_of(rows).lookup(table, on={"k": "id"}, columns=["more"])
    assert out(looked.select("more", "s")) == [{"more": "m", "s": "x"}]


def test_a_pending_key_stays_for_what_follows():
    """The rows are looked up where they are; the exchange comes behind."""
    rows = [[{"k": n % 3, "s": "x", "v": n} for n in range(9)]]
    looked = stream_of(rows).key_by("k").lookup(NAMES, on={"k": "id"}, how="inner")
    sums = looked.process(hg.Sum("v"), name="sums")
    sums.discard()
    done = run(sums.flow, slots=3)
    assert {row["k"]: row["sum"] for row in done.state("sums")} == {1: 12, 2: 15}
    [edge] = [e for e in done.coordinator.program.graph.edges if e.exchanges]
    assert done.coordinator.program.graph.nodes[edge.consumer].name == "sums"


def test_what_does_not_fit_is_refused_when_declared(tmp_path):
    stream = stream_of([[]])
    for error, message, asked in (
        (SchemaMismatch, "int64.*string|string.*int64", {"on": {"s": "id"}}),
        (UnknownColumn, "'x'", {"on": {"x": "id"}}),
        (DeclarationError, "no column 'x'", {"on": {"k": "x"}}),
        (DeclarationError, "no column 'y'", {"on": {"k": "id"}, "columns": ["y"]}),
        (DeclarationError, "leave it out", {"on": {"k": "id"}, "columns": ["id"]}),
        (DeclarationError, "how", {"on": {"k": "id"}, "how": "full"}),
        (DeclarationError, "on=", {"on": {}}),
        (DeclarationError, "same rows again", {"on": {"k": "id"}, "refresh": "1 minute"}),
    ):
        with pytest.raises(error, match=message):
            stream.lookup(NAMES, **asked)
    for table, message in (
        (tmp_path / "none.parquet", "cannot be read as Parquet"),
        (7, "side table is"),
        (lambda: 7, "must return a pyarrow Table"),
    ):
        with pytest.raises(DeclarationError, match=message):
            stream.lookup(table, on="k")
    keys = pa.table({"k": pa.array([1], pa.int64())})
    with pytest.raises(SchemaMismatch, match="no column but its key"):
        stream.lookup(keys, on="k")


def test_an_inner_lookup_in_keys_alone_is_a_filter():
    keys = pa.table({"k": pa.array([1, 3], pa.int64())})
    rows = [[{"k": n, "s": "", "v": n} for n in range(5)]]
    found = out(stream_of(rows).lookup(keys, on="k", how="inner"))
    assert sorted(row["v"] for row in found) == [1, 3]


def test_a_table_that_is_too_large_is_refused(monkeypatch):
    monkeypatch.setattr(declared, "ROWS_MAX", 2)
    with pytest.raises(DeclarationError, match=r"3 rows.*columns=\[\.\.\.\]"):
        out(stream_of([[]]).lookup(NAMES, on={"k": "id"}))


def test_a_table_that_cannot_be_read_stops_the_start():
    def broken():
        raise OSError("the server is away")

    looked = stream_of([[]]).lookup(broken, on={"k": "id"}, schema="id bigint, name string")
    with pytest.raises(OperatorFailed, match=r"lookup_1.*function broken.*the server is away"):
        out(looked)


def test_a_large_table_is_found_by_every_key():
    size = 50_000
    table = pa.table({"a": [f"k{n}" for n in range(size)], "b": pa.array(range(size), pa.int32())})
    index = SideIndex.of(table, ["a", "b"])
    wanted = table.take(pa.array([*range(0, size, 7), 3]))
    at, found = index.find(
        [wanted["a"].combine_chunks(), wanted["b"].combine_chunks()], len(wanted)
    )
    assert found.all()
    assert index.rows.take(pa.array(at))["a"].to_pylist() == wanted["a"].to_pylist()
    others = [pa.array(["k1"]), pa.array([2], pa.int32())]
    assert not index.find(others, 1)[1].any()


def test_a_lookup_says_what_it_is():
    stream = stream_of([[]]).lookup(NAMES, on={"k": "id"}, name="names")
    stream.to_memory("out")
    assert "lookup (left) in pyarrow Table by id" in str(stream.flow.explain())


def test_refresh_is_a_duration():
    with pytest.raises(HeadgateError, match="duration"):
        stream_of([[]]).lookup(lambda: NAMES, on={"k": "id"}, refresh="often")
    stream_of([[]]).lookup(lambda: NAMES, on={"k": "id"}, refresh=timedelta(minutes=1))
