"""Declare a flow: its sources, and the graph that all calls on its streams make. Nothing runs here.

Every call checks what it can at once (columns, keys, types, names), so a mistake shows on the
line that makes it, before a cluster is touched.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from headgate.errors import DeclarationError, NameClash
from headgate.topology.arguments import absolute, check_count, check_name, duration_us
from headgate.topology.changelog import Changelog
from headgate.topology.graph import (
    Edge,
    FlowGraph,
    Grouping,
    Node,
    SourceSpec,
    check_event_time,
    told_apart,
    with_parallelism,
    without_needless_shuffles,
)
from headgate.topology.joining import Asked
from headgate.topology.keys import NO_KEY, Key
from headgate.topology.lookup import Lookup
from headgate.topology.schema import SchemaLike, check_arrival, source_schema, time_of, to_schema
from headgate.topology.stream import Stream

log = logging.getLogger("headgate")

FILES = frozenset({"parquet", "json", "csv", "orc", "text", "delta"})
FILE_OPTION = "maxFilesPerTrigger"
ROW_OPTIONS: Mapping[str, str] = {
    "kafka": "maxOffsetsPerTrigger",
    "rate-micro-batch": "rowsPerBatch",
    "iceberg": "streaming-max-rows-per-micro-batch",
}
SAMPLED_FILES = 8  # footers that are read to learn how many rows a Parquet file has
DEAD_LETTER_SCHEMA = to_schema("operator string, slot int, epoch bigint, reason string, row string")


class FlowBuilder:
    """A flow being declared; `graph()` freezes it."""

    def __init__(self, name: str) -> None:
        check_name(name, "flow")
        self.name = name
        self._nodes: list[Node] = []
        self._edges: list[Edge] = []
        self._dead_letters: int | None = None
        self._discards = False

    def source(
        self,
        frame: Any,
        *,
        schema: SchemaLike | None = None,
        name: str | None = None,
        event_time: str | None = None,
        watermark: str | timedelta | None = None,
        idle_after: int = 3,
        arrival: str | None = None,
    ) -> Stream:
        """Read from a DataFrame (streaming or batch), or from a function SparkSession -> DataFrame.

        A function needs `schema`, since declaring runs nothing; one of two arguments is also told
        how many rows an epoch should have (None: no wish), as `start(rows_per_epoch=)` says or
        the flow chooses. A `Reader` is such a function for Spark's own formats. `event_time`
        names the column of event times; `watermark` is how late rows may come. A source that
        brings no row for `idle_after` epochs no longer holds the watermark back. `arrival` names
        the column with the time at which a row came into being, such as Kafka's `timestamp`: the
        latency of rows is measured from there, and nothing else is done with it.
        """
        rows = source_schema(frame, schema)
        idle_after = check_count(idle_after, "idle_after= of a source")
        if watermark is not None and event_time is None:
            raise DeclarationError("watermark= needs event_time=, the column it is measured on")
        if event_time is not None:
            time_of(rows, event_time, "a source")
        if arrival is not None:
            check_arrival(rows, arrival)
        delay_us = duration_us(watermark or timedelta(0))
        spec = SourceSpec(frame, event_time, delay_us, idle_after, arrival)
        return Stream(self, (self._add("source", name, rows, spec),), rows)

    def dead_letters(self) -> Stream:
        """Bad rows, instead of stopping the flow: operator, slot, epoch, reason, row (as JSON).

        Attach exactly one sink to it.
        """
        return Stream(self, (), DEAD_LETTER_SCHEMA, dead_letters=True)

    def check_outlet(self) -> None:
        """Raise if nobody would see a row of the flow, and that was not said to be meant."""
        sinks = [node for node in self._nodes if node.kind == "sink"]
        if self._nodes and not self._discards and all(n.id == self._dead_letters for n in sinks):
            raise DeclarationError(
                f"flow {self.name!r} has no sink: nobody would see its rows. End its stream with "
                ".to_table('name'), .to_parquet(path) or another sink, or with .discard() if only "
                "the state is wanted (query.state)"
            )

    def graph(self, parallelism: Mapping[str, int] = MappingProxyType({})) -> FlowGraph:
        """Freeze and validate the whole declaration.

        `parallelism` gives operators, by name, so many instances in place of those declared.
        """
        if not self._nodes:
            raise DeclarationError(f"flow {self.name!r} has no source")
        if not any(n.kind in ("sink", "stateful") for n in self._nodes):
            raise DeclarationError(
                f"flow {self.name!r} has neither a sink nor a stateful operator: "
                "it would compute nothing that anyone can see"
            )
        check_event_time(self._nodes, self._edges)
        for node in self._nodes:
            if node.kind == "stateful" and node.spec.wants_dead_letters and not self._dead_letters:
                raise DeclarationError(
                    f"{node.name!r} sends late rows to the dead letters (late='dead_letters'), and "
                    "the flow has none: add flow.dead_letters().to_memory('dead'), or another sink",
                    operator=node.name,
                )
        nodes = told_apart(with_parallelism(self._nodes, self._edges, parallelism))
        edges = without_needless_shuffles(nodes, self._edges)
        return FlowGraph(self.name, nodes, edges, self._dead_letters)

    def _add(
        self,
        kind: Any,
        name: str | None,
        schema: pa.Schema,
        spec: Any,
        key: Key = NO_KEY,
        parallelism: int | None = None,
        order_by: str | None = None,
    ) -> int:
        what = {"source": "a source", "sink": "a sink"}
        mine = what.get(kind, "an operator")
        taken = {n.name for n in self._nodes if what.get(n.kind, "an operator") == mine}
        if name is None:  # state belongs to it, so it stays what it was when sources counted
            others = {n.name for n in self._nodes if (n.kind == "sink") == (kind == "sink")}
            stem = kind if kind != "stateful" else type(spec).__name__.lower()
            if isinstance(getattr(spec, "function", None), Lookup):
                stem = "lookup"
            name = next(n for i in count(1) if (n := f"{stem}_{i}") not in others)
        check_name(name, kind)
        if name in taken:
            raise NameClash(
                f"flow {self.name!r} already has {mine} called {name!r}; choose another name=",
                name=name,
            )
        node = Node(len(self._nodes), name, kind, schema, spec, key, parallelism, order_by)
        self._nodes.append(node)
        return len(self._nodes) - 1

    def _join_operator(
        self,
        asked: Asked,
        schemas: tuple[pa.Schema, pa.Schema],
        keys: tuple[tuple[str, ...], tuple[str, ...]],
        event_times: tuple[frozenset[str], frozenset[str]],
        told: tuple[Changelog | None, Changelog | None],
    ) -> Any:
        """The operator of a join; operators are known further out (`Flow`)."""
        raise NotImplementedError

    def _event_times(self, producers: Iterable[int]) -> frozenset[str]:
        """The columns by which the sources before some nodes measure event time."""
        waiting, seen = list(producers), set[int]()
        while waiting:
            node = waiting.pop()
            if node not in seen:
                seen.add(node)
                waiting += [edge.producer for edge in self._edges if edge.consumer == node]
        sources = [self._nodes[n].spec for n in seen if self._nodes[n].kind == "source"]
        return frozenset(spec.event_time for spec in sources if spec.event_time is not None)

    def _connect(
        self, producers: Iterable[int], consumer: int, grouping: Grouping, side: int = 0
    ) -> None:
        for producer in producers:
            self._edges.append(Edge(len(self._edges), producer, consumer, grouping, side))


@dataclass(frozen=True)
class Reader:
    """`spark.readStream.format(...)`, for `flow.source`; limits epochs to a number of rows.

    Spark has no word for that which all sources understand: Kafka limits offsets, file sources
    limit files, some limit rows under a name of their own. An option that the user has set stays.

    Args:
        format: As for Spark's `DataStreamReader.format`.
        options: As for `DataStreamReader.options`.
        schema: Of the files; formats with a schema of their own need none.
        path: For file sources.
        rows_option: The option that takes a number of rows, for a source not known here.
        rows_per_file: For file sources (default for Parquet: what the first files say).

    Examples:
        >>> Reader("kafka", {"subscribe": "posts"}).limit(5_000)
        {'maxOffsetsPerTrigger': '5000'}
        >>> Reader("json", path="in", schema="post string", rows_per_file=200).limit(5_000)
        {'maxFilesPerTrigger': '25'}
        >>> Reader("kafka", {"maxOffsetsPerTrigger": "10"}).limit(5_000)
        {}
    """

    format: str
    options: Mapping[str, str] = field(default_factory=dict)
    schema: str | None = None
    path: str | None = None
    rows_option: str | None = None
    rows_per_file: int | None = None

    def __post_init__(self) -> None:
        if self.rows_per_file is not None:
            check_count(self.rows_per_file, "rows_per_file= of a Reader")
        if self.rows_option is not None and self.rows_per_file is not None:
            raise DeclarationError("give rows_option= or rows_per_file=: rows or files are limited")

    def __call__(self, spark: Any, rows_per_epoch: int | None) -> Any:
        """The streaming DataFrame."""
        given = dict(self.options)
        if rows_per_epoch is not None:
            given |= self.limit(rows_per_epoch)
        reader = spark.readStream.format(self.format).options(**given)
        if self.schema is not None:
            reader = reader.schema(self.schema)
        return reader.load() if self.path is None else reader.load(self.path)

    @property
    def takes_rows(self) -> bool:
        """Can it limit epochs? Not without an option for it, nor if the user has set that option.

        Parquet files need not be there yet: they can be counted when they are.
        """
        option = self._option
        if option is None or option.lower() in (given.lower() for given in self.options):
            return False
        countable = self.format == "parquet" and self.path is not None
        return option != FILE_OPTION or self.rows_per_file is not None or countable

    def limit(self, rows: int) -> dict[str, str]:
        """The option that limits an epoch to about so many rows; none if that is not known."""
        option = self._option
        if option is None or not self.takes_rows or rows < 1:
            return {}
        if option == FILE_OPTION:
            each = self.rows_per_file or self._measured()
            if each is None:
                log.warning(
                    "no Parquet file of %s could be counted yet, so epochs are not limited to %d "
                    "rows; Reader(rows_per_file=...) says what a file has",
                    self.path,
                    rows,
                )
                return {}
            rows = max(1, round(rows / each))
        return {option: str(rows)}

    @property
    def _option(self) -> str | None:
        """The name under which the source takes rows, or files."""
        if self.rows_option is None and self.format in FILES:
            return FILE_OPTION
        return self.rows_option or ROW_OPTIONS.get(self.format)

    def _measured(self) -> int | None:
        """Rows of a Parquet file, by the footers of some."""
        try:
            place, path = fs.FileSystem.from_uri(absolute(str(self.path)))
            found = place.get_file_info(fs.FileSelector(path, recursive=True))
            names = sorted(i.path for i in found if i.is_file and i.path.endswith(".parquet"))
            sampled = names[:SAMPLED_FILES]
            rows = [pq.read_metadata(name, filesystem=place).num_rows for name in sampled]
        except (OSError, pa.ArrowInvalid, DeclarationError):
            return None  # Spark will say what is wrong with the path, if anything is
        return max(1, round(sum(rows) / len(rows))) if rows else None
