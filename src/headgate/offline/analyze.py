"""Offline analysis: count all pairs of a data set, place its keys, and say what that will bring.

The promised locality and loads come from routing every counted pair with the tables that are
written, so a flow that starts with them on the same rows gets exactly these figures. On later rows
it gets what drift leaves of them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from headgate.errors import HeadgateError
from headgate.offline.analyze_curve import Tables, hash_tables, steps_to, tables_from_top
from headgate.offline.analyze_data import check_columns, read_data, told_by_spark
from headgate.offline.analyze_pairs import I32, Pairs, Shape, graph_of
from headgate.offline.analyze_result import Analysis, AnalyzeOptions, Outlook, TopPair
from headgate.offline.analyze_source import (
    Source,
    find_partitions,
    place_with_source,
    source_of,
    without_source,
)
from headgate.planner.key_graph import KeyGraph
from headgate.planner.partition import Quality, partition
from headgate.planner.tables import to_tables
from headgate.routing.hashing import U64
from headgate.routing.table_folder import save_tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headgate.offline.analyze_count import CountedPairs

TOP_PAIRS = 24
TRIES = 4
MANY_EDGES = 1_000_000


class Progress(Protocol):
    """Told when a stage begins, and what it found."""

    def begin(self, stage: str) -> None: ...
    def end(self, found: str, seconds: float) -> None: ...


def analyze(spark: SparkSession, options: AnalyzeOptions, progress: Progress) -> Analysis:
    """Count, plan, and judge the plan. Nothing is written."""
    from headgate.offline.analyze_count import CountedPairs

    clock = _Clock(progress)
    shape = options.shape
    with told_by_spark(options.data, options.form), clock.stage("count") as found:
        frame = read_data(spark, options.data, options.form, options.schema)
        types = check_columns(frame, shape.counted, options.data)
        source = _source(frame, options)
        pairs = CountedPairs(frame, shape.counted, options.max_edges)
        known = pairs.heaviest
        if not pairs.rows:
            raise HeadgateError(f"{options.data} has no rows", data=options.data)
        found.append(f"{pairs.rows:,} rows, {sum(pairs.pair_counts):,} pairs")
    with pairs:
        with clock.stage("partition") as found:
            whole = graph_of(known, shape.counted, pairs.loads, _fixed(shape, source))
            graph = whole if source is None else without_source(whole)
            plan = partition(
                graph,
                options.slots,
                alpha=options.alpha,
                seed=options.seed,
                quality=options.quality,
                tries=_tries(graph),
            )
            tables = to_tables(graph, plan, options.slots, cap=options.max_pins)
            expected = _outlook(pairs, shape, tables, source)
            hashed = _outlook(pairs, shape, hash_tables(shape.operators, options.slots), source)
            found.append(f"locality {expected.locality:.1%}, hash {hashed.locality:.1%}")
        without = None
        if source is not None:
            with clock.stage("source") as found:
                without = expected
                plan = place_with_source(
                    whole,
                    plan,
                    options.source_weight,
                    alpha=options.alpha,
                    seed=options.seed,
                    quality=options.quality,
                    tries=_tries(whole),
                )
                tables = to_tables(whole, plan, options.slots, cap=options.max_pins)
                expected = _outlook(pairs, shape, tables, source)
                found.append(
                    f"{source.partitions:,} partitions, first hop "
                    f"{expected.first_hop_locality:.1%} local, "
                    f"{without.first_hop_locality:.1%} if ignored"
                )
        curve: tuple[tuple[int, float], ...] = ()
        if options.curve:
            with clock.stage("curve") as found:
                curve = _curve(pairs, options, graph, source, (without or expected).locality)
                found.append(f"{len(curve)} plans from fewer pairs")
        with told_by_spark(options.data, options.form), clock.stage("names") as found:
            between = known.before(len(shape.edges))
            top = _top_pairs(frame, between, shape, tables)
            found.append(f"of the {len(top)} heaviest pairs")
        totals = sum(pairs.pair_counts), pairs.rows * len(shape.counted.edges)
        return Analysis(
            options,
            types,
            pairs.rows,
            dict(zip(shape.operators, pairs.key_counts, strict=False)),
            dict(zip(shape.counted.edge_names, pairs.pair_counts, strict=True)),
            totals[0] - len(known),
            totals[1] - int(known.n.sum()),
            plan,
            tables,
            expected,
            hashed,
            top,
            curve,
            clock.seconds,
            source,
            without,
        )


def write(analysis: Analysis, folder: Path, progress: Progress) -> list[Path]:
    """Tables, `analysis.json` and `report.html`; returns their paths."""
    from headgate.offline.analyze_report import render

    told, report = folder / "analysis.json", folder / "report.html"
    with _Clock(progress).stage("write") as found:
        files = [Path(path) for path in save_tables(analysis.tables, folder).values()]
        told.write_text(json.dumps(analysis.facts(), indent=2) + "\n", encoding="utf-8")
        report.write_text(render(analysis), encoding="utf-8")
        found.append(f"{len(files)} tables, figures, report")
    return [*files, told, report]


def check_solver(quality: Quality) -> None:
    """Cut a graph of two keys, to see that the solver is there before minutes of counting."""
    one = np.zeros(1, np.uint64)
    graph = KeyGraph.build(("a", "b"), [(0, 1, one, one, np.ones(1))])
    partition(graph, 2, quality=quality)


# --- inside ---------------------------------------------------------------------------------
class _Clock:
    """Stages with their seconds, told to whoever watches."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[list[str]]:
        begun = time.perf_counter()
        found: list[str] = []
        self._progress.begin(name)
        yield found
        self.seconds[name] = time.perf_counter() - begun
        self._progress.end(", ".join(found), self.seconds[name])


def _tries(graph: KeyGraph) -> int | None:
    """More seeds than a manager takes, which plans between two epochs: 4 while that is seconds."""
    return TRIES if graph.edges <= MANY_EDGES else None


def _source(frame: DataFrame, options: AnalyzeOptions) -> Source | None:
    columns, slot = options.shape.source, options.source_slot
    if not columns:
        return None
    found = find_partitions(frame, columns, slot, options.data)
    return source_of(options.shape.counted.operators[-1], columns, slot, found, options.slots)


def _fixed(shape: Shape, source: Source | None) -> dict[int, tuple[U64, I32]]:
    return {} if source is None else {len(shape.operators): (source.h, source.slot)}


def _outlook(pairs: CountedPairs, shape: Shape, tables: Tables, source: Source | None) -> Outlook:
    found = pairs.traffic({**tables, **(source.tables if source is not None else {})})
    edges = len(shape.edges)
    return Outlook(shape, tuple(found[:edges]), tuple(found[edges:]))


def _curve(
    pairs: CountedPairs,
    options: AnalyzeOptions,
    graph: KeyGraph,
    source: Source | None,
    all_known: float,
) -> tuple[tuple[int, float], ...]:
    """Of pairs between operators; the last step knows all, which is the plan itself."""
    *fewer, everything = steps_to(graph.edges)
    points = []
    for k in fewer:
        tables = tables_from_top(
            graph,
            k,
            options.slots,
            alpha=options.alpha,
            seed=options.seed,
            quality=options.quality,
            tries=_tries(graph),
            cap=options.max_pins,
        )
        points.append((k, _outlook(pairs, options.shape, tables, source).locality))
    return (*points, (everything, all_known))


def _top_pairs(frame: Any, known: Pairs, shape: Shape, tables: Tables) -> tuple[TopPair, ...]:
    from headgate.offline.analyze_count import key_texts

    top = known.heaviest(TOP_PAIRS)
    wanted: list[U64] = [np.empty(0, np.uint64) for _ in shape.operators]
    ends = [shape.edges[edge] for edge in top.edge]
    for (a, b), ha, hb in zip(ends, top.a, top.b, strict=True):
        wanted[a], wanted[b] = np.append(wanted[a], ha), np.append(wanted[b], hb)
    texts = key_texts(frame, shape, wanted)
    found = []
    for number, (a, b) in enumerate(ends):
        ha, hb = top.a[number : number + 1], top.b[number : number + 1]
        found.append(
            TopPair(
                shape.edge_names[top.edge[number]],
                texts[a].get(int(ha[0]), "?"),
                texts[b].get(int(hb[0]), "?"),
                int(top.n[number]),
                int(tables[shape.operators[a]].route(ha)[0]),
                int(tables[shape.operators[b]].route(hb)[0]),
            )
        )
    return tuple(found)
