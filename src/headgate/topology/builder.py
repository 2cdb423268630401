"""Declare a flow: its sources, and the graph that all calls on its streams make. Nothing runs here.

Every call checks what it can at once (columns, keys, types, names), so a mistake shows on the
line that makes it, before a cluster is touched.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from itertools import count
from typing import Any

import pyarrow as pa

from headgate.errors import DeclarationError, NameClash, SchemaMismatch
from headgate.topology.arguments import check_count, check_name, duration_us
from headgate.topology.graph import (
    Edge,
    FlowGraph,
    Grouping,
    Node,
    SourceSpec,
    check_event_time,
    without_needless_shuffles,
)
from headgate.topology.schema import SchemaLike, column_of, source_schema, to_schema
from headgate.topology.stream import Stream

DEAD_LETTER_SCHEMA = to_schema("operator string, slot int, epoch bigint, reason string, row string")


class FlowBuilder:
    """A flow being declared; `graph()` freezes it."""

    def __init__(self, name: str) -> None:
        check_name(name, "flow")
        self.name = name
        self._nodes: list[Node] = []
        self._edges: list[Edge] = []
        self._dead_letters: int | None = None

    def source(
        self,
        frame: Any,
        *,
        schema: SchemaLike | None = None,
        name: str | None = None,
        event_time: str | None = None,
        watermark: str | timedelta | None = None,
        idle_after: int = 3,
    ) -> Stream:
        """Read from a DataFrame (streaming or batch), or from a function SparkSession -> DataFrame.

        A function needs `schema`, since declaring runs nothing; one of two arguments is also told
        how many rows an epoch should have (None: no wish), as `start(rows_per_epoch=)` says or
        the flow chooses. A `Reader` is such a function for Spark's own formats. `event_time`
        names the column of event times; `watermark` is how late rows may come. A source that
        brings no row for `idle_after` epochs no longer holds the watermark back.
        """
        rows = source_schema(frame, schema)
        idle_after = check_count(idle_after, "idle_after= of a source")
        if watermark is not None and event_time is None:
            raise DeclarationError("watermark= needs event_time=, the column it is measured on")
        if event_time is not None:
            kind = column_of(rows, event_time, "source").type
            if not (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
                raise SchemaMismatch(
                    f"event_time column {event_time!r} is {kind}; it must be a timestamp or date",
                    column=event_time,
                )
        spec = SourceSpec(frame, event_time, duration_us(watermark or timedelta(0)), idle_after)
        return Stream(self, (self._add("source", name, rows, spec),), rows)

    def dead_letters(self) -> Stream:
        """Bad rows, instead of stopping the flow: operator, slot, epoch, reason, row (as JSON).

        Attach exactly one sink to it.
        """
        return Stream(self, (), DEAD_LETTER_SCHEMA, dead_letters=True)

    def graph(self) -> FlowGraph:
        """Freeze and validate the whole declaration."""
        if not self._nodes:
            raise DeclarationError(f"flow {self.name!r} has no source")
        if not any(n.kind in ("sink", "stateful") for n in self._nodes):
            raise DeclarationError(
                f"flow {self.name!r} has neither a sink nor a stateful operator: "
                "it would compute nothing that anyone can see"
            )
        check_event_time(self._nodes, self._edges)
        edges = without_needless_shuffles(self._nodes, self._edges)
        return FlowGraph(self.name, tuple(self._nodes), edges, self._dead_letters)

    def _add(
        self, kind: Any, name: str | None, schema: pa.Schema, spec: Any, key: tuple[str, ...] = ()
    ) -> int:
        taken = {n.name for n in self._nodes}
        if name is None:
            stem = kind if kind != "stateful" else type(spec).__name__.lower()
            name = next(n for i in count(1) if (n := f"{stem}_{i}") not in taken)
        check_name(name, kind)
        if name in taken:
            raise NameClash(
                f"flow {self.name!r} already has an operator called {name!r}; choose another name=",
                name=name,
            )
        self._nodes.append(Node(len(self._nodes), name, kind, schema, spec, key))
        return len(self._nodes) - 1

    def _connect(self, producers: Iterable[int], consumer: int, grouping: Grouping) -> None:
        for producer in producers:
            self._edges.append(Edge(len(self._edges), producer, consumer, grouping))
