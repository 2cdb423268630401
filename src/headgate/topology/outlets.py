"""Where rows of a stream leave the flow: what a stream's `to...` methods declare."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headgate.errors import DeclarationError, NameClash
from headgate.topology.arguments import check_count
from headgate.topology.graph import LOCAL, Grouping, SinkFunction, SinkSpec
from headgate.topology.kafka_sink import MARKS, KafkaSink, check_rows
from headgate.topology.schema import check_layout, check_sink

if TYPE_CHECKING:
    from headgate.topology.builder import FlowBuilder
    from headgate.topology.stream import Stream


class Outlets:
    """The part of a `Stream` that is about sinks."""

    flow: FlowBuilder
    schema: pa.Schema
    grouping: Grouping
    dead_letters: bool

    def to(self, function: SinkFunction, *, name: str | None = None) -> None:
        """Call `function(DataFrame, epoch)` for every epoch, at least once, with the same rows."""
        if not callable(function):
            raise DeclarationError("to(...) takes a function (DataFrame, epoch) -> None")
        self._sink(SinkSpec("function", function), name)

    def to_kafka(
        self,
        topic: str,
        *,
        servers: str,
        name: str | None = None,
        transactional_id: str | None = None,
        marks: str = MARKS,
        timeout_s: int = 60,
        config: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Send every row to a Kafka topic, an epoch in one transaction, exactly once.

        Rows have a column `value`, and perhaps `key` (text or binary) and `partition`. Readers must
        read committed rows (`isolation.level=read_committed`). The topic `marks` gets a record per
        epoch; the transactional id (default: of flow and topic) belongs to this sink alone.
        """
        check_rows(self.schema)
        owner = transactional_id or f"headgate-{self.flow.name}-{name or topic}"
        self.to(KafkaSink(topic, servers, owner, marks, timeout_s, dict(config)), name=name)

    def to_parquet(
        self,
        path: str,
        *,
        name: str | None = None,
        partition_by: str | Iterable[str] = (),
        epoch_column: str | None = None,
    ) -> None:
        """Append to a directory of Parquet files, exactly once.

        `partition_by`: columns by whose values rows go to folders, `path/day=2026-01-31/…`, as Hive
        and Spark lay them out. `epoch_column`: a column more, with the number of the epoch.
        """
        columns = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)
        spec = SinkSpec("parquet", str(path), partition_by=columns, epoch_column=epoch_column)
        check_layout(name or "parquet", self.schema, columns, epoch_column)
        self._sink(spec, name)

    def to_console(self, rows: int = 20, *, name: str | None = None) -> None:
        """Print the first rows of every epoch."""
        rows = check_count(rows, "rows of to_console(...)", least=0)
        self._sink(SinkSpec("console", rows_shown=rows), name)

    def to_memory(self, name: str) -> None:
        """Keep all rows on the driver, for tests: `query.rows(name)`."""
        self._sink(SinkSpec("memory"), name)

    def to_table(self, name: str) -> None:
        """Keep all rows in the checkpoint; `query.table(name)` reads them as a DataFrame."""
        self._sink(SinkSpec("table"), name)

    def discard(self) -> None:
        """Let the rows go. A flow without a sink needs it: only its state is wanted, then."""
        self._refuse_dead_letters()
        self.flow._discards = True

    # --- inside ----------------------------------------------------------------------------
    def _into(self, kind: str, name: str | None, schema: pa.Schema, spec: Any) -> Stream:
        raise NotImplementedError

    def _sink(self, spec: SinkSpec, name: str | None) -> None:
        if self.grouping != LOCAL:
            raise DeclarationError("a sink writes rows where they arise; drop the grouping")
        check_sink(name or spec.kind, spec.kind, self.schema)
        if self.dead_letters and self.flow._dead_letters is not None:
            raise NameClash("the flow already has a dead-letter sink", name=name)
        node = self._into("sink", name, self.schema, spec).producers[0]
        if self.dead_letters:
            self.flow._dead_letters = node

    def _refuse_dead_letters(self) -> None:
        if self.dead_letters:
            raise DeclarationError("dead letters can only go to a sink")
