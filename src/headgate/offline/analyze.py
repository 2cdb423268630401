"""Offline analysis: count all pairs of a data set, place its keys, and say what that will achieve.

The promised locality and loads come from routing every counted pair with the tables that are
written, so a flow that starts with them on the same rows gets exactly these figures. On later rows
it gets what drift leaves of them.

The partitions of a source, if named, are vertices of the key graph in given slots. A key whose rows
come mostly from one partition is drawn to that partition's slot, so fewer rows change place on
their first hop. Partitions weigh nothing: the bound of every operator is as without them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headgate.errors import HeadgateError
from headgate.offline.analyze_input import (
    Source,
    check_columns,
    find_partitions,
    read_data,
    source_of,
    spark_errors,
)
from headgate.offline.pairs import CountedPairs, Outlook, Pairs, Shape, Tables, key_texts
from headgate.planner.first_cut import Quality
from headgate.planner.key_graph import CAP, FREE, KeyGraph, to_tables
from headgate.planner.partition import Partition, best_matching, improve, partition
from headgate.routing.table import hash_table, save_tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOP_PAIRS = 24  # shown in a report
MAX_EDGES = 5_000_000  # pairs that the driver holds: 24 bytes each, and as much again to plan
# More seeds than a manager takes, which plans between two epochs: 4 while that is seconds.
TRIES, MANY_EDGES = 4, 1_000_000

Progress = Callable[[str, str, float], None]
"""Called with a stage when it begins (""), and again with what it found and its seconds."""


def _ignore(stage: str, found: str, seconds: float) -> None: ...


@dataclass(frozen=True)
class AnalyzeOptions:
    """What to analyse and how; `max_edges` bounds what the driver holds, `max_pins` a table.

    `source_slot` is the column with the slot of a row's source partition; without it they are
    dealt in turn. `source_weight` is what a row of the first hop is worth against one between
    operators.
    """

    data: str
    form: str
    shape: Shape
    slots: int = 4
    alpha: float = 1.03
    seed: int = 0
    quality: Quality = "metis"
    max_pins: int = CAP
    max_edges: int = MAX_EDGES
    schema: str | None = None
    curve: bool = True
    source_slot: str | None = None
    source_weight: float = 1.0

    def plan(self, graph: KeyGraph) -> Partition:
        return partition(
            graph,
            self.slots,
            alpha=self.alpha,
            seed=self.seed,
            quality=self.quality,
            tries=TRIES if graph.edges <= MANY_EDGES else None,
        )

    def tables(self, graph: KeyGraph, plan: Partition) -> Tables:
        return to_tables(graph, plan.slot, self.slots, cap=self.max_pins)


@dataclass(frozen=True)
class TopPair:
    """One of the heaviest pairs, as people read it, and where its keys live."""

    edge: str
    a: str
    b: str
    rows: int
    slot_a: int
    slot_b: int


@dataclass(frozen=True)
class Analysis:
    """All that was found. `without` is the outlook of a plan that ignores the source."""

    options: AnalyzeOptions
    types: Mapping[str, str]
    rows: int
    keys: Mapping[str, int]
    pairs: Mapping[str, int]
    left_out_pairs: int
    left_out_rows: int
    plan: Partition
    tables: Tables
    expected: Outlook
    hashed: Outlook
    top: tuple[TopPair, ...] = ()
    curve: tuple[tuple[int, float], ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    source: Source | None = None
    without: Outlook | None = None

    @property
    def floor(self) -> dict[str, float]:
        """What the heaviest keys force on each operator's max/mean load."""
        return dict(zip(self.options.shape.operators, self.plan.floor.tolist(), strict=False))

    @property
    def notes(self) -> list[str]:
        """What a reader should know before trusting the figures."""
        slots, alpha, notes = self.options.slots, self.options.alpha, []
        for name, count in self.keys.items():
            got, low = self.expected.imbalance[name], self.floor[name]
            if count < slots:
                notes.append(f"{name} has {count} keys for {slots} slots: some slots stay empty.")
            elif low > alpha:
                notes.append(
                    f"{name}: single keys are heavier than their share, no placement is below "
                    f"{low:.3f} (alpha {alpha:g})."
                )
            elif got > alpha + 5e-4:
                notes.append(
                    f"{name}: busiest slot at {got:.3f} of the mean, above alpha {alpha:g}."
                )
            pins = len(self.tables[name].pinned_h)
            if pins < count:
                notes.append(
                    f"{name}: {pins:,} of {count:,} keys have an entry, others are hashed."
                )
        if self.left_out_pairs:
            share = self.left_out_rows / max(1, self.rows * len(self.pairs))
            notes.append(
                f"{self.left_out_pairs:,} light pairs ({share:.1%} of the rows) were left out of "
                "the plan (--max-edges); the figures count them."
            )
        return notes

    def facts(self) -> dict[str, Any]:
        """Everything as JSON, tables apart."""
        shape, options = self.options.shape, self.options
        return {
            "data": options.data,
            "format": options.form,
            "rows": self.rows,
            "operators": dict(zip(shape.operators, map(list, shape.keys), strict=True)),
            "types": dict(self.types),
            "slots": options.slots,
            "alpha": options.alpha,
            "seed": options.seed,
            "quality": options.quality,
            "max_pins": options.max_pins,
            "max_edges": options.max_edges,
            "keys": dict(self.keys),
            "pairs": dict(self.pairs),
            "left_out": {"pairs": self.left_out_pairs, "rows": self.left_out_rows},
            "pins": {name: len(table.pinned_h) for name, table in self.tables.items()},
            "locality": self.expected.locality,
            "hash_locality": self.hashed.locality,
            "imbalance": self.expected.imbalance,
            "hash_imbalance": self.hashed.imbalance,
            "floor": self.floor,
            "loads": self.expected.loads,
            "edge_locality": {e: self.expected.edge_locality[e] for e in shape.edge_names},
            "hash_edge_locality": {e: self.hashed.edge_locality[e] for e in shape.edge_names},
            "source": self._source_facts(),
            "curve": [{"edges": k, "locality": share} for k, share in self.curve],
            "top_pairs": [asdict(pair) for pair in self.top],
            "notes": self.notes,
            "seconds": dict(self.seconds),
        }

    def _source_facts(self) -> dict[str, Any] | None:
        if self.source is None or self.without is None:
            return None
        return {
            "columns": list(self.options.shape.source),
            "weight": self.options.source_weight,
            "partitions": len(self.source.texts),
            "first_hop_locality": self.expected.first_hop_locality,
            "hash_first_hop_locality": self.hashed.first_hop_locality,
            "without": {
                "locality": self.without.locality,
                "first_hop_locality": self.without.first_hop_locality,
                "imbalance": self.without.imbalance,
            },
            "rows_by_slot": self.expected.first_hop[0].sum(axis=1).tolist(),
            "slots": [{"partition": text, "slot": slot} for text, slot in self.source.slot_by_text],
        }


def analyze(spark: SparkSession, options: AnalyzeOptions, progress: Progress = _ignore) -> Analysis:
    """Count, plan, and judge the plan. Nothing is written."""
    shape, source, without = options.shape, None, None
    seconds: dict[str, float] = {}
    curve: list[tuple[int, float]] = []
    with spark_errors(options.data, options.form), _stage("count", progress, seconds) as found:
        frame = read_data(spark, options.data, options.form, options.schema)
        types = check_columns(frame, shape.counted, options.data)
        if shape.source:
            parts = find_partitions(frame, shape.source, options.source_slot, options.data)
            source = source_of(shape.source, options.source_slot, parts, options.slots)
        pairs = CountedPairs(frame, shape.counted, options.max_edges)
        if not pairs.rows:
            raise HeadgateError(f"{options.data} has no rows", data=options.data)
        found.append(f"{pairs.rows:,} rows, {sum(pairs.pair_counts):,} pairs")

    def outlook(tables: Tables) -> Outlook:
        at_source = {} if source is None else {shape.counted.operators[-1]: source.table}
        return Outlook(shape, pairs.traffic({**tables, **at_source}))

    with pairs:
        with _stage("partition", progress, seconds) as found:
            fixed = {} if source is None else {len(shape.operators): (source.h, source.slot)}
            whole = pairs.graph(fixed)
            graph = whole if source is None else without_source(whole)
            plan = options.plan(graph)
            tables = options.tables(graph, plan)
            expected = outlook(tables)
            hashed = outlook(hash_tables(shape.operators, options.slots))
            found.append(f"locality {expected.locality:.1%}, hash {hashed.locality:.1%}")
        if source is not None:
            with _stage("source", progress, seconds) as found:
                without = expected
                plan = place_with_source(whole, plan, options)
                tables = options.tables(whole, plan)
                expected = outlook(tables)
                found.append(
                    f"{len(source.texts):,} partitions, first hop "
                    f"{expected.first_hop_locality:.1%} local, "
                    f"{without.first_hop_locality:.1%} if ignored"
                )
        if options.curve:
            with _stage("curve", progress, seconds) as found:
                # Caneill et al. 2016, figure 12: how many pairs are worth keeping?
                *fewer, everything = steps_to(graph.edges)
                for k in fewer:
                    some = graph.top_edges(k)
                    routed = outlook(options.tables(some, options.plan(some)))
                    curve.append((k, routed.locality))
                curve.append((everything, (without or expected).locality))  # the plan itself
                found.append(f"{len(curve)} plans from fewer pairs")
        with spark_errors(options.data, options.form), _stage("names", progress, seconds) as found:
            top = _top_pairs(frame, pairs.heaviest, shape, tables)
            found.append(f"of the {len(top)} heaviest pairs")
        return Analysis(
            options=options,
            types=types,
            rows=pairs.rows,
            keys=dict(zip(shape.operators, pairs.key_counts(whole), strict=False)),
            pairs=dict(zip(shape.counted.edge_names, pairs.pair_counts, strict=True)),
            left_out_pairs=sum(pairs.pair_counts) - len(pairs.heaviest),
            left_out_rows=pairs.rows * len(pairs.pair_counts) - int(pairs.heaviest.n.sum()),
            plan=plan,
            tables=tables,
            expected=expected,
            hashed=hashed,
            top=top,
            curve=tuple(curve),
            seconds=seconds,
            source=source,
            without=without,
        )


def write(analysis: Analysis, folder: Path, progress: Progress = _ignore) -> list[Path]:
    """Tables, `analysis.json` and `report.html`; returns their paths."""
    from headgate.offline.analyze_report import render

    figures, report = folder / "analysis.json", folder / "report.html"
    with _stage("write", progress, {}) as found:
        files = [Path(path) for path in save_tables(analysis.tables, folder).values()]
        figures.write_text(json.dumps(analysis.facts(), indent=2) + "\n", encoding="utf-8")
        report.write_text(render(analysis), encoding="utf-8")
        found.append(f"{len(files)} tables, figures, report")
    return [*files, figures, report]


def check_solver(quality: Quality) -> None:
    """Cut a graph of two keys, to see that the solver is there before minutes of counting."""
    one = np.zeros(1, np.uint64)
    graph = KeyGraph.build(("a", "b"), [(0, 1, one, one, np.ones(1))])
    partition(graph, 2, quality=quality)


def hash_tables(operators: Sequence[str], slots: int) -> Tables:
    """Empty tables, to compare with."""
    return {name: hash_table(slots) for name in operators}


def steps_to(edges: int, *, first: int = 10, per_decade: int = 2) -> list[int]:
    """Numbers of edges to try: evenly spaced on a logarithmic axis, the last is all of them.

    Examples:
        >>> steps_to(2_000)
        [10, 32, 100, 316, 1000, 2000]
    """
    decades = np.log10(max(edges, 1) / first)
    powers = np.arange(0, max(decades, 0), 1 / per_decade)
    steps = np.unique(np.rint(first * 10**powers).astype(int))
    return [int(k) for k in steps if k < 0.75 * edges] + [edges]


def without_source(graph: KeyGraph) -> KeyGraph:
    """The same keys and loads, and only the pairs between operators; the source comes last."""
    end = int(graph.starts[-2])
    kept = graph.u < end
    keys = (graph.op[:end], graph.h[:end], graph.load[:end])
    return KeyGraph(graph.operators[:-1], *keys, graph.u[kept], graph.v[kept], graph.w[kept])


def place_with_source(graph: KeyGraph, without: Partition, options: AnalyzeOptions) -> Partition:
    """The better of two: the plan `without` the source, renamed and refined, and a fresh one.

    Better has more local rows, where a row of the first hop counts `source_weight`. So the source
    never costs more rows than it saves. O(a partition).
    """
    slots, end = without.slots, int(graph.starts[-2])
    first = graph.u >= end
    part, home = without.slot[graph.v[first]], graph.fixed[graph.u[first]]
    assert not (home == FREE).any()
    # Name the plan's slots so that most rows of the first hop stay.
    stays = np.zeros((slots, slots))
    np.add.at(stays, (part, home), graph.w[first])
    named = np.concatenate([best_matching(stays)[without.slot], graph.fixed[end:]])
    graph = replace(graph, w=np.where(first, options.source_weight * graph.w, graph.w))
    method = f"{options.quality}, renamed"
    refined = improve(
        graph, named.astype(np.int32), slots, options.alpha, options.seed, method=method
    )
    refined.check(graph)
    plans = (refined, options.plan(graph))
    return min(plans, key=lambda plan: (not plan.bound_holds, -plan.locality))


@contextmanager
def _stage(name: str, progress: Progress, seconds: dict[str, float]) -> Iterator[list[str]]:
    """Time a stage, and report when it begins, what it found and how long it took."""
    begun = time.perf_counter()
    found: list[str] = []
    progress(name, "", 0.0)
    yield found
    seconds[name] = time.perf_counter() - begun
    progress(name, ", ".join(found), seconds[name])


def _top_pairs(frame: DataFrame, pairs: Pairs, shape: Shape, tables: Tables) -> tuple[TopPair, ...]:
    between = pairs.at(np.flatnonzero(pairs.edge < len(shape.edges)))
    top = between.heaviest(TOP_PAIRS)
    texts = key_texts(frame, shape, np.concatenate([top.a, top.b]))
    found = []
    for edge, a, b, rows in zip(top.edge, top.a, top.b, top.n.tolist(), strict=True):
        slots = (
            int(tables[shape.operators[op]].route(np.array([h]))[0])
            for op, h in zip(shape.edges[edge], (a, b), strict=True)
        )
        names = texts.get(int(a), "?"), texts.get(int(b), "?")
        found.append(TopPair(shape.edge_names[edge], *names, rows, *slots))
    return tuple(found)
