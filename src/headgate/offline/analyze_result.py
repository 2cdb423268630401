"""What an analysis was asked and what it found: plain values, and their form as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from headgate.offline.analyze_curve import Tables
from headgate.offline.analyze_pairs import I64, Shape, local_share, slot_loads
from headgate.offline.analyze_source import Source
from headgate.planner.partition import Partition, Quality
from headgate.planner.tables import CAP

MAX_EDGES = 5_000_000


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
        told = []
        for name, count in self.keys.items():
            got, low = self.expected.imbalance[name], self.floor[name]
            if count < slots:
                told.append(f"{name} has {count} keys for {slots} slots: some slots stay empty.")
            elif low > alpha:
                told.append(
                    f"{name}: single keys are heavier than their share, no placement is below "
                    f"{low:.3f} (alpha {alpha:g})."
                )
            elif got > alpha + 5e-4:
                told.append(
                    f"{name}: busiest slot at {got:.3f} of the mean, above alpha {alpha:g}."
                )
            pins = len(self.tables[name].pinned_h)
            if pins < count:
                told.append(f"{name}: {pins:,} of {count:,} keys have an entry, others are hashed.")
        if self.left_out_pairs:
            share = self.left_out_rows / max(1, self.rows * len(self.pairs))
            told.append(
                f"{self.left_out_pairs:,} light pairs ({share:.1%} of the rows) were left out of "
                "the plan (--max-edges); the figures count them."
            )
        return told

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
