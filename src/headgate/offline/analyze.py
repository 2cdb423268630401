"""Offline analysis: count all pairs of a data set, place its keys, and say what that will bring.

The promised locality and loads come from routing every counted pair with the tables that are
written, so a flow that starts with them on the same rows gets exactly these figures. On later rows
it gets what drift leaves of them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headgate.arrays import I64, U64
from headgate.errors import HeadgateError
from headgate.offline.analyze_data import check_columns, read_data, spark_errors
from headgate.offline.analyze_pairs import (
    CountedPairs,
    Pairs,
    Shape,
    Tables,
    graph_of,
    key_texts,
    local_share,
    slot_loads,
)
from headgate.offline.analyze_source import (
    Source,
    find_partitions,
    place_with_source,
    source_of,
    without_source,
)
from headgate.planner.key_graph import CAP, KeyGraph, to_tables
from headgate.planner.partition import Partition, Quality, partition
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
    dealt. `source_weight` is what a row of the first hop is worth against one between operators.
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

    def how(self, graph: KeyGraph) -> dict[str, Any]:
        """Named arguments of `partition` for this graph."""
        tries = TRIES if graph.edges <= MANY_EDGES else None
        return {"alpha": self.alpha, "seed": self.seed, "quality": self.quality, "tries": tries}

    def plan(self, graph: KeyGraph) -> Partition:
        return partition(graph, self.slots, **self.how(graph))

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
class Outlook:
    """What tables bring on the counted rows: rows per edge from slot i to slot j.

    `first_hop` is the same from the slots of the source's partitions to the first operators.
    """

    shape: Shape
    traffic: tuple[I64, ...]
    first_hop: tuple[I64, ...] = ()

    @property
    def locality(self) -> float:
        return local_share(self.traffic)

    @property
    def first_hop_locality(self) -> float:
        return local_share(self.first_hop)

    @property
    def edge_locality(self) -> dict[str, float]:
        named = zip(self.shape.edge_names, self.traffic, strict=True)
        return {name: local_share([matrix]) for name, matrix in named}

    @property
    def hop_locality(self) -> dict[str, float]:
        """Of every edge, those from the source too."""
        named = zip(self.shape.counted.edge_names, self.matrices, strict=True)
        return {name: local_share([matrix]) for name, matrix in named}

    @property
    def matrices(self) -> tuple[I64, ...]:
        """Of every edge, in the order of `shape.counted`."""
        return *self.traffic, *self.first_hop

    @property
    def loads(self) -> dict[str, list[int]]:
        return slot_loads(self.traffic, self.shape)

    @property
    def imbalance(self) -> dict[str, float]:
        """Busiest slot over the mean, per operator."""
        return {
            op: max(by_slot) * len(by_slot) / sum(by_slot) for op, by_slot in self.loads.items()
        }


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
        slots, alpha = self.options.slots, self.options.alpha
        notes = []
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
            "edge_locality": self.expected.edge_locality,
            "hash_edge_locality": self.hashed.edge_locality,
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
            "partitions": self.source.partitions,
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
    shape, seconds = options.shape, dict[str, float]()
    with spark_errors(options.data, options.form), _stage("count", progress, seconds) as found:
        frame = read_data(spark, options.data, options.form, options.schema)
        types = check_columns(frame, shape.counted, options.data)
        source = _source(frame, options)
        pairs = CountedPairs(frame, shape.counted, options.max_edges)
        known = pairs.heaviest
        if not pairs.rows:
            raise HeadgateError(f"{options.data} has no rows", data=options.data)
        found.append(f"{pairs.rows:,} rows, {sum(pairs.pair_counts):,} pairs")
    with pairs:
        with _stage("partition", progress, seconds) as found:
            fixed = {} if source is None else {len(shape.operators): (source.h, source.slot)}
            whole = graph_of(known, shape.counted, pairs.loads, fixed)
            graph = whole if source is None else without_source(whole)
            plan = options.plan(graph)
            tables = options.tables(graph, plan)
            expected = _outlook(pairs, shape, tables, source)
            hashed = _outlook(pairs, shape, hash_tables(shape.operators, options.slots), source)
            found.append(f"locality {expected.locality:.1%}, hash {hashed.locality:.1%}")
        without = None
        if source is not None:
            with _stage("source", progress, seconds) as found:
                without = expected
                plan = place_with_source(whole, plan, options.source_weight, **options.how(whole))
                tables = options.tables(whole, plan)
                expected = _outlook(pairs, shape, tables, source)
                found.append(
                    f"{source.partitions:,} partitions, first hop "
                    f"{expected.first_hop_locality:.1%} local, "
                    f"{without.first_hop_locality:.1%} if ignored"
                )
        curve: list[tuple[int, float]] = []
        if options.curve:
            with _stage("curve", progress, seconds) as found:
                # Caneill et al. 2016, figure 12: how many pairs are worth keeping?
                *fewer, everything = steps_to(graph.edges)
                for k in fewer:
                    some = graph.top_edges(k)
                    routed = options.tables(some, options.plan(some))
                    curve.append((k, _outlook(pairs, shape, routed, source).locality))
                curve.append((everything, (without or expected).locality))  # the plan itself
                found.append(f"{len(curve)} plans from fewer pairs")
        with spark_errors(options.data, options.form), _stage("names", progress, seconds) as found:
            top = _top_pairs(frame, known.before(len(shape.edges)), shape, tables)
            found.append(f"of the {len(top)} heaviest pairs")
        return Analysis(
            options=options,
            types=types,
            rows=pairs.rows,
            keys=dict(zip(shape.operators, pairs.key_counts, strict=False)),
            pairs=dict(zip(shape.counted.edge_names, pairs.pair_counts, strict=True)),
            left_out_pairs=sum(pairs.pair_counts) - len(known),
            left_out_rows=pairs.rows * len(shape.counted.edges) - int(known.n.sum()),
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


# --- inside ---------------------------------------------------------------------------------
@contextmanager
def _stage(name: str, progress: Progress, seconds: dict[str, float]) -> Iterator[list[str]]:
    """Time a stage, and report when it begins, what it found and how long it took."""
    begun = time.perf_counter()
    found: list[str] = []
    progress(name, "", 0.0)
    yield found
    seconds[name] = time.perf_counter() - begun
    progress(name, ", ".join(found), seconds[name])


def _source(frame: DataFrame, options: AnalyzeOptions) -> Source | None:
    columns, slot = options.shape.source, options.source_slot
    if not columns:
        return None
    found = find_partitions(frame, columns, slot, options.data)
    return source_of(options.shape.counted.operators[-1], columns, slot, found, options.slots)


def _outlook(pairs: CountedPairs, shape: Shape, tables: Tables, source: Source | None) -> Outlook:
    found = pairs.traffic(tables if source is None else {**tables, source.name: source.table})
    edges = len(shape.edges)
    return Outlook(shape, tuple(found[:edges]), tuple(found[edges:]))


def _top_pairs(frame: Any, known: Pairs, shape: Shape, tables: Tables) -> tuple[TopPair, ...]:
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
