"""Source partitions in an analysis: who is where, and keys drawn to where their rows come in."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.errors import HeadgateError, SchemaMismatch, UnknownSlot
from headgate.offline import analyze_input
from headgate.offline.analyze import (
    Analysis,
    AnalyzeOptions,
    TopPair,
    hash_tables,
    place_with_source,
    without_source,
)
from headgate.offline.analyze_input import Source, shape_of, source_of
from headgate.offline.analyze_report import render
from headgate.offline.pairs import Outlook, Pairs, Shape, count_pairs, graph_of, hashes_of
from headgate.planner.key_graph import KeyGraph, to_tables
from headgate.planner.partition import Partition, partition
from strategies import examples

SLOTS = 3
CHAIN = shape_of(["a", "b"], source="p")


def worlds(seed: int, rows: int = 600, stray: float = 0.1) -> pa.Table:
    """Keys of a world meet each other; all but some rows of a world come from two partitions."""
    draw = np.random.default_rng(seed)
    world = draw.integers(0, 6, rows)
    part = np.where(draw.random(rows) < stray, draw.integers(0, 12, rows), 2 * world + rows % 2)
    return pa.table(
        {
            "a": world * 10 + draw.integers(0, 5, rows),
            "b": np.where(draw.random(rows) < stray, draw.integers(0, 60, rows), world * 10),
            "p": [f"part-{n:02}" for n in part],
        }
    )


def counted(rows: pa.Table, shape: Shape) -> tuple[Pairs, KeyGraph, Source]:
    whole = shape.counted
    pairs = count_pairs(hashes_of(rows, whole.keys), whole.edges)
    found = rows.group_by(list(shape.source)).aggregate([])
    source = source_of(shape.source, None, found, SLOTS)
    fixed = {len(shape.operators): (source.h, source.slot)}
    return pairs, graph_of(pairs, whole, None, fixed), source


def planned(rows: pa.Table, weight: float) -> tuple[Partition, Partition, KeyGraph]:
    _, graph, _ = counted(rows, CHAIN)
    without = partition(without_source(graph), SLOTS, seed=1)
    options = AnalyzeOptions("", "", CHAIN, slots=SLOTS, seed=1, source_weight=weight)
    return place_with_source(graph, without, options), without, graph


def local(graph: KeyGraph, slot: Any, *, first_hop: bool) -> float:
    """Rows that stay, by a loop: of the first hop, or between operators."""
    start = graph.starts[-2]
    return sum(
        w
        for u, v, w in zip(graph.u, graph.v, graph.w, strict=True)
        if (u >= start) == first_hop and slot[u] == slot[v]
    )


# --- partitions and their slots ---------------------------------------------------------------
def test_partitions_are_dealt_over_the_slots_in_their_order() -> None:
    found = pa.table({"p": ["c", None, "a", "b"]})
    source = source_of(("p",), None, found, SLOTS)

    assert source.slot_by_text == [("a", 0), ("b", 1), ("c", 2), ("null", 0)]
    assert source.table.route(source.h).tolist() == [0, 1, 2, 0]


def test_a_column_may_say_where_a_partition_is() -> None:
    found = pa.table({"p": [7, 5], "q": ["x", "y"], "at": pa.array([2, 1], pa.int16())})
    source = source_of(("p", "q"), "at", found, SLOTS)

    assert [slot for _, slot in source.slot_by_text] == [1, 2]


@pytest.mark.parametrize(
    ("slots", "kind", "told"),
    [
        ([0, 3], UnknownSlot, r"is 3 for partition 2, but there are 3 slots \(0..2\)"),
        ([0, None], UnknownSlot, "is null for partition 2"),
        ([0.0, 1.0], SchemaMismatch, "whole numbers"),
    ],
)
def test_slots_that_cannot_be_are_told(slots: list[Any], kind: type, told: str) -> None:
    found = pa.table({"p": [1, 2], "at": slots})
    with pytest.raises(kind, match=told):
        source_of(("p",), "at", found, SLOTS)


def test_a_partition_is_at_one_slot() -> None:
    found = pa.table({"p": [1, 2, 2], "at": [0, 1, 2]})
    with pytest.raises(UnknownSlot, match="several slots for partition 2"):
        source_of(("p",), "at", found, SLOTS)


def test_a_column_of_rows_is_no_column_of_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analyze_input, "MOST_PARTITIONS", 3)
    with pytest.raises(HeadgateError, match="more than 3 distinct values"):
        source_of(("p",), None, pa.table({"p": range(4)}), SLOTS)


def test_the_source_feeds_the_operators_that_nobody_else_does() -> None:
    joined = shape_of(["a", "b", "c"], edges=["a:c", "b:c"], source="p,q")

    assert joined.counted.operators[-1] == "source:p,q"
    assert joined.counted.edges == ((0, 2), (1, 2), (3, 0), (3, 1))


# --- the plan ---------------------------------------------------------------------------------
def test_keys_are_drawn_to_where_their_rows_come_in() -> None:
    """Without the source, which slot a world gets is chance; with it, the one of its rows."""
    with_source, without, graph = planned(worlds(3, 3_000), 1.0)

    home = graph.fixed[graph.starts[-2] :]
    assert (with_source.slot[graph.starts[-2] :] == home).all()
    rows = 3_000
    assert local(graph, with_source.slot, first_hop=True) > 0.7 * rows
    blind = np.concatenate([without.slot, home])
    assert local(graph, blind, first_hop=True) < 0.6 * rows
    assert with_source.imbalance[:2] == pytest.approx(without.imbalance, abs=0.03)


@given(seed=st.integers(0, 10_000), weight=st.sampled_from([0.0, 0.3, 1.0]))
@examples(15)
def test_the_source_never_costs_more_than_it_brings(seed: int, weight: float) -> None:
    """Against the plan that ignores it, under whatever names its slots have."""
    with_source, without, graph = planned(worlds(seed, stray=0.4), weight)

    home = graph.fixed[graph.starts[-2] :]
    blind = np.concatenate([without.slot, home])
    worth = [
        local(graph, slot, first_hop=False) + weight * local(graph, slot, first_hop=True)
        for slot in (with_source.slot, blind)
    ]
    assert with_source.bound_holds or not without.bound_holds
    if with_source.bound_holds == without.bound_holds:
        assert worth[0] >= worth[1] - 1e-6


def test_no_table_is_made_for_the_source_and_the_report_tells_of_it() -> None:
    rows = worlds(5)
    pairs, graph, source = counted(rows, CHAIN)
    blind = partition(without_source(graph), SLOTS)
    options = AnalyzeOptions("posts.parquet", "parquet", CHAIN, slots=SLOTS)
    plan = place_with_source(graph, blind, options)

    def outlook(tables: Any) -> Outlook:
        tables = {**tables, CHAIN.counted.operators[-1]: source.table}
        return Outlook(CHAIN, pairs.traffic(CHAIN.counted, tables))

    tables = to_tables(graph, plan.slot, SLOTS)
    without = outlook(to_tables(without_source(graph), blind.slot, SLOTS))
    analysis = Analysis(
        options,
        dict.fromkeys(CHAIN.counted.columns, "string"),
        rows.num_rows,
        {"a": 30, "b": 60},
        dict.fromkeys(CHAIN.counted.edge_names, 1),
        0,
        0,
        plan,
        tables,
        outlook(tables),
        outlook(hash_tables(CHAIN.operators, SLOTS)),
        (TopPair("a->b", "x", "y", 7, 0, 1),),
        source=source,
        without=without,
    )

    assert set(tables) == {"a", "b"}
    facts = analysis.facts()["source"]
    assert facts["partitions"] == 12 and sum(facts["rows_by_slot"]) == rows.num_rows
    assert facts["first_hop_locality"] > facts["without"]["first_hop_locality"]
    page = render(analysis)
    assert "part-00" in page and "if the source is ignored" in page
