"""Offline analysis without Spark: what is asked, the arithmetic, the report, the edges bench."""

from __future__ import annotations

import re
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.errors import ParseException

import headgate as hg
from headgate.demo import trends
from headgate.errors import DeclarationError, HeadgateError, UnknownColumn
from headgate.offline.analyze import (
    Analysis,
    AnalyzeOptions,
    TopPair,
    check_solver,
    hash_tables,
    steps_to,
    write,
)
from headgate.offline.analyze_input import check_columns, format_of, shape_of, spark_errors
from headgate.offline.analyze_report import render
from headgate.offline.pairs import Outlook, Shape, count_pairs, graph_of, hashes_of
from headgate.planner.key_graph import to_tables
from headgate.planner.partition import partition
from headgate.routing.table import RoutingTable

CHAIN = shape_of(["a", "b", "c"])
TREE = shape_of(["a", "b", "c"], edges=["a:b", "a:c"])
JOIN = shape_of(["a", "b", "c"], edges=["a:c", "b:c"])


def analysis_of(rows: pa.Table, shape: Shape, slots: int, *, cap: int = 10_000) -> Analysis:
    """What `analyze` gives, counted here instead of on Spark."""
    pairs = count_pairs(hashes_of(rows, shape.keys), shape.edges)
    graph = graph_of(pairs, shape)
    plan = partition(graph, slots)
    tables = to_tables(graph, plan.slot, slots, cap=cap)
    hashed = hash_tables(shape.operators, slots)
    return Analysis(
        AnalyzeOptions("posts <1>.parquet", "parquet", shape, slots=slots, max_pins=cap),
        dict.fromkeys(shape.columns, "string"),
        rows.num_rows,
        dict(zip(shape.operators, np.diff(graph.starts).tolist(), strict=True)),
        {name: len(pairs.on(i)) for i, name in enumerate(shape.edge_names)},
        0,
        0,
        plan,
        tables,
        Outlook(shape, pairs.traffic(shape, tables)),
        Outlook(shape, pairs.traffic(shape, hashed)),
        (TopPair(shape.edge_names[0], "<i>", "x", 7, 0, 1), TopPair("a->b", "y", "z", 5, 1, 1)),
        ((10, 0.3), (100, 0.5)),
    )


# --- what is asked --------------------------------------------------------------------------
def test_keys_become_a_chain_named_after_their_columns() -> None:
    shape = shape_of(["state", "hash tag, party"])

    assert shape.operators == ("state", "hash_tag_party")
    assert shape.keys == (("state",), ("hash tag", "party"))
    assert shape.edge_names == ["state->hash_tag_party"]
    assert shape.columns == ["state", "hash tag", "party"]


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"keys": ["a"]}, "at least twice"),
        ({"keys": ["a", "b,"]}, "empty"),
        ({"keys": ["a", "b"], "operators": ["x"]}, "1 operators for 2 keys"),
        ({"keys": ["a", "a"]}, "same name"),
        ({"keys": ["a", "b"], "operators": ["x", "y/z"]}, "'y/z'"),
        ({"keys": ["a", "b"], "edges": ["a:z"]}, "operators of a, b"),
        ({"keys": ["a", "b"], "edges": ["a"]}, "PRODUCER:CONSUMER"),
        ({"keys": ["a", "b"], "edges": ["a:b", "b:a"]}, "feed back"),
        ({"keys": ["a", "b", "c"], "edges": ["a:b"]}, "c: on no --edge"),
    ],
)
def test_what_cannot_be_analysed_is_refused(asked: dict[str, Any], told: str) -> None:
    with pytest.raises(DeclarationError, match=re.escape(told)):
        shape_of(**asked)


@pytest.mark.parametrize(
    ("name", "form"),
    [("x.parquet", "parquet"), ("x.csv.gz", "csv"), ("x.JSONL", "json"), ("d/part-0.orc", "orc")],
)
def test_the_file_name_tells_the_format(tmp_path: Path, name: str, form: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("")
    (path.parent / "_SUCCESS").write_text("")

    assert format_of(str(path)) == form
    assert format_of(str(path.parent)) == form
    assert format_of(f"s3://bucket/{name}") == form


def test_unknown_formats_and_missing_files_are_told(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")

    with pytest.raises(HeadgateError, match="--format"):
        format_of(str(tmp_path / "data"))
    with pytest.raises(HeadgateError, match=r"there is no .*nowhere"):
        format_of(str(tmp_path / "nowhere"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(HeadgateError, match="no file in"):
        format_of(str(tmp_path / "empty"))


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("\n[PARSE_SYNTAX_ERROR] Syntax error at 'x' (line 1)\n\n== SQL ==\na x", "[PARSE_SYNTAX_"),
        ("Job aborted.\nCaused by: a.B: first\n\tat c.D\nCaused by: a.B: the last", "the last"),
        ("", "no reason given"),
    ],
)
def test_what_spark_says_is_one_line(said: str, told: str) -> None:
    with pytest.raises(HeadgateError) as raised, spark_errors("posts", "csv"):
        raise ParseException(said)

    assert str(raised.value).startswith(f"Spark cannot read posts as csv: {told}")
    assert "\n" not in str(raised.value)


def test_a_missing_column_lists_those_there_are() -> None:
    frame: Any = SimpleNamespace(columns=["a", "x"])

    with pytest.raises(UnknownColumn, match="no column 'b', 'c'; its columns are a, x"):
        check_columns(frame, CHAIN, "data.csv")


# --- the arithmetic -------------------------------------------------------------------------
def random_rows(seed: int, rows: int = 200) -> pa.Table:
    rng = np.random.default_rng(seed)
    values = {name: rng.integers(0, 9, rows).astype(str) for name in "abc"}
    return pa.table(values)


@given(seed=st.integers(0, 50), slots=st.integers(1, 5))
@pytest.mark.parametrize("shape", [CHAIN, TREE, JOIN], ids=["chain", "tree", "join"])
def test_traffic_is_what_routing_every_row_gives(shape: Shape, seed: int, slots: int) -> None:
    rows = random_rows(seed)
    keys = hashes_of(rows, shape.keys)
    pairs = count_pairs(keys, shape.edges)
    tables: dict[str, RoutingTable] = {}
    rng = np.random.default_rng(seed)
    for name, h in zip(shape.operators, keys, strict=True):
        some = np.unique(h)[::2]
        owners = rng.integers(0, slots, len(some)).astype(np.int32)
        tables[name] = hg.hash_table(slots).pin_hashes(some, owners)

    found = Outlook(shape, pairs.traffic(shape, tables))

    homes = [tables[name].route(h) for name, h in zip(shape.operators, keys, strict=True)]
    for matrix, (a, b) in zip(found.traffic, shape.edges, strict=True):
        expected = Counter(zip(homes[a].tolist(), homes[b].tolist(), strict=True))
        assert {(i, j): matrix[i, j] for i, j in expected} == expected
        assert matrix.sum() == rows.num_rows
    stayed = sum(int((homes[a] == homes[b]).sum()) for a, b in shape.edges)
    assert found.locality == stayed / (rows.num_rows * len(shape.edges))
    for number, name in enumerate(shape.operators):
        once = np.bincount(homes[number], minlength=slots) * shape.copies(number)
        assert found.loads[name] == once.tolist()


@pytest.mark.parametrize("shape", [CHAIN, TREE, JOIN], ids=["chain", "tree", "join"])
def test_loads_are_the_rows_that_reach_each_key(shape: Shape) -> None:
    rows = random_rows(1)
    keys = hashes_of(rows, shape.keys)

    graph = graph_of(count_pairs(keys, shape.edges).sorted(), shape)

    for number, h in enumerate(keys):
        once = np.unique(h, return_counts=True)[1] * shape.copies(number)
        mine = slice(graph.starts[number], graph.starts[number + 1])
        assert graph.load[mine].tolist() == once.tolist()


def test_the_plan_beats_hash_and_holds_its_bound() -> None:
    found = analysis_of(trends(20_000, seed=1, epoch=0), shape_of(["region", "hashtag"]), 3)

    assert found.expected.locality > found.hashed.locality + 0.2
    assert found.expected.locality == pytest.approx(found.plan.locality)
    for name, ratio in found.expected.imbalance.items():
        assert ratio <= max(1.03, found.floor[name]) + 1e-6


def test_steps_grow_evenly_and_end_with_all() -> None:
    assert steps_to(7) == [7]
    assert steps_to(10_000) == [10, 32, 100, 316, 1000, 3162, 10_000]


def test_a_missing_solver_is_told_before_counting() -> None:
    check_solver("metis")
    if find_spec("mtkahypar") is None:
        with pytest.raises(HeadgateError, match=r"headgate\[quality\]"):
            check_solver("mt-kahypar")
    else:
        check_solver("mt-kahypar")


def test_no_pairs_known_is_hash_routing() -> None:
    shape = shape_of(["region", "hashtag"])
    rows = trends(2_000, seed=1, epoch=0).select(shape.columns)
    graph = graph_of(count_pairs(hashes_of(rows, shape.keys), shape.edges), shape)

    unknown = graph.top_edges(0)
    none = to_tables(unknown, partition(unknown, 4).slot, 4)

    assert all(table.same_routes(hg.hash_table(4)) for table in none.values())


# --- the report -----------------------------------------------------------------------------
def test_the_report_is_one_page_with_pictures_and_no_links() -> None:
    page = render(analysis_of(trends(3_000, seed=1, epoch=0), shape_of(["region", "hashtag"]), 3))

    assert page.count("<svg") == 5
    assert "http" not in page and "<script" not in page
    assert "posts &lt;1&gt;.parquet" in page and "&lt;i&gt;" in page
    assert "region → hashtag" in page


@pytest.mark.parametrize(
    ("shape", "title"), [(CHAIN, "a → b → c"), (TREE, "a → b, a → c"), (JOIN, "a → c, b → c")]
)
def test_the_title_draws_the_flow(shape: Shape, title: str) -> None:
    assert f"<h1>Analysis of {title}</h1>" in render(analysis_of(random_rows(1), shape, 2))


def test_a_longer_chain_has_a_picture_per_edge() -> None:
    page = render(analysis_of(random_rows(1), CHAIN, 2))

    assert page.count("From slot to slot") == 2


def test_notes_say_what_the_figures_hide() -> None:
    rows = random_rows(1).set_column(0, "a", pa.array(["x"] * 150 + ["y"] * 50))

    notes = " ".join(analysis_of(rows, CHAIN, 4, cap=5).notes)

    assert "a has 2 keys for 4 slots" in notes
    assert "b: 5 of 9 keys have an entry" in notes


def test_all_is_written_and_the_tables_are_those_of_the_plan(tmp_path: Path) -> None:
    found = analysis_of(random_rows(1), CHAIN, 2)

    files = write(found, tmp_path / "deep" / "out")

    assert {path.name for path in files} == {
        *("a.parquet", "b.parquet", "c.parquet"),
        *("analysis.json", "report.html"),
    }
    loaded = hg.load_tables(tmp_path / "deep" / "out")
    assert all(loaded[name].same_routes(table) for name, table in found.tables.items())
