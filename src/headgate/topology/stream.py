"""Streams of a flow being declared: group, transform, process, send to sinks. Nothing runs here.

A stream is a value: each call returns another one and leaves this one as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from html import escape
from typing import TYPE_CHECKING, Any, Literal, Never, get_args

import pyarrow as pa

from headgate.errors import DeclarationError, MissingKey
from headgate.topology.arguments import check_choice, check_count
from headgate.topology.checks import check_folded, check_grouping, check_joined, check_operator
from headgate.topology.expressions import chosen, condition_of, is_expression, with_columns
from headgate.topology.graph import (
    LOCAL,
    SEVERAL_SLOTS,
    TO_OWNERS,
    CostOptions,
    Grouping,
    KeyGrouping,
    NullKeys,
    Schedule,
    StatelessSpec,
    check_parallelism,
)
from headgate.topology.joining import LEFT, Asked, How
from headgate.topology.keys import NO_KEY, Key, near_of
from headgate.topology.late import SIDES, late_rows
from headgate.topology.lookup import LookupHow, check_output, lookup_of
from headgate.topology.outlets import Outlets
from headgate.topology.schema import (
    SchemaLike,
    check_columns,
    check_union,
    key_of,
    merged,
    names_of,
    time_of,
    to_schema,
)

if TYPE_CHECKING:
    from headgate.topology.builder import FlowBuilder


@dataclass(frozen=True, repr=False)
class Stream(Outlets):
    """Rows on their way: the outputs of one or several operators, with a grouping pending.

    Using a stream twice makes a branch; `union` merges several.
    """

    flow: FlowBuilder
    producers: tuple[int, ...]
    schema: pa.Schema
    grouping: Grouping = LOCAL
    dead_letters: bool = False

    def __repr__(self) -> str:
        names = " and ".join(self.flow._nodes[node].name for node in self.producers)
        columns = ", ".join(f"{field.name} {field.type}" for field in self.schema)
        key = self.grouping.key
        by = f", by {', '.join(key)}" if key else ""
        by += f" near {', '.join(key.near_names)}" if key.near else ""
        return f"<Stream of {names or 'dead letters'}{by}: {columns}>"

    def _repr_html_(self) -> str:
        cells = [f"<tr><td>{escape(f.name)}</td><td>{f.type}</td></tr>" for f in self.schema]
        title = repr(self).partition(":")[0].removeprefix("<")
        return f"<b>{escape(title)}</b><table>{''.join(cells)}</table>"

    # --- groupings -------------------------------------------------------------------------
    def key_by(
        self,
        *columns: Any,
        nulls: NullKeys = "key",
        grouping: KeyGrouping = "auto",
        near: str | Iterable[str] = (),
    ) -> Stream:
        """Give equal keys one owner, a slot that keeps their state (fields grouping).

        `near`: some of the columns. Keys that agree in them live in one slot and move together, as
        in `key_by("shard", "auction", near="shard")`, unless a plan gives one an owner of its own:
        so files in folders `shard=7/` can be read on the host where their keys live.

        `nulls`: "key" makes null a key of its own (as Spark's groupBy does), "drop" drops such
        rows, "error" stops on them. `grouping` says how rows find the slot of their key; results
        are the same with each of these:

        - "auto": rows go to the owner, which the manager places; while that pays, the manager has
          rows of a mergeable operator folded where they are, as "partial" does.
        - "hash": rows always go to the owner.
        - "partial": every task folds the rows it has, source tasks too, and sends the owner one
          partial state per key. It pays where keys repeat.
        - "dkg": rows go to the owner; heavy keys are placed by their load.
        - "pkg", "d_choices", "w_choices": hot keys have several candidate slots.
        - "cut": keys too heavy for a slot are cut into shares, the others placed by load.

        All but "hash", "auto" and "dkg" need an operator that is mergeable.
        """
        if not columns:
            raise MissingKey("key_by() needs at least one column; use globally() for one key")
        names = key_of(self.schema, columns, "key_by")
        some = (near,) if isinstance(near, str) else near
        key = Key(names, near_of(names, names_of(self.schema, some, "near= of key_by")))
        check_choice(nulls, "nulls", get_args(NullKeys))
        check_grouping(grouping, get_args(KeyGrouping))
        return self._grouped(Grouping("fields", key, nulls, grouping))

    def shuffle(
        self,
        *,
        grouping: Literal["round_robin", "cost"] = "round_robin",
        attribute: str | Iterable[str] = (),
        schedule: Schedule = "batch",
        epsilon: float = CostOptions.epsilon,
        delta: float = CostOptions.delta,
    ) -> Stream:
        """Spread rows over the slots: round robin, or by what they cost.

        Round robin is left out where stateless steps had their rows by it already: they are spread.
        `grouping="cost"` measures what rows take in the operator that follows, by `attribute` (a
        column, or several), and sends each row to the slot that is done with it first. It pays
        where some rows take much longer than others. `schedule`: "batch" places the longest rows
        first, "online" row after row. `epsilon` and `delta` give the sketches their size.
        """
        columns = (attribute,) if isinstance(attribute, str) else tuple(attribute)
        check_choice(grouping, "grouping", ("round_robin", "cost"))
        if grouping == "round_robin":
            if columns:
                raise DeclarationError("attribute= is for shuffle(grouping='cost', attribute=...)")
            return self._grouped(Grouping("shuffle"))
        if not columns:
            raise MissingKey(
                "shuffle(grouping='cost') needs attribute=, the column that what a row costs "
                "depends on"
            )
        key = Key(key_of(self.schema, columns, "shuffle(attribute=...)"))
        options = CostOptions(schedule, epsilon, delta)
        return self._grouped(Grouping("cost", key, cost=options))

    def local_or_shuffle(self) -> Stream:
        """Stay in the slot: every slot has an instance of every operator (the default)."""
        return self._grouped(LOCAL)

    def broadcast(self) -> Stream:
        """A copy of every row to every slot (all grouping)."""
        return self._grouped(Grouping("all"))

    def globally(self, *, grouping: Literal["auto", "hash", "partial"] = "auto") -> Stream:
        """Everything to one slot, as one key (global grouping); `grouping` as in `key_by`."""
        check_grouping(grouping, ("auto", "hash", "partial"))
        return self._grouped(Grouping("global", by=grouping))

    def batched(self, rows: int) -> Stream:
        """Send rows of the pending grouping in batches of so many, instead of as large as may be.

        Results do not depend on it; smaller batches cost more. `start(batch=...)` overrides it.
        """
        if not self.grouping.exchanges:
            raise DeclarationError(
                "batched() is for rows that are sent; put key_by, shuffle or the like before it"
            )
        rows = check_count(rows, "rows of batched(...)")
        return self._grouped(replace(self.grouping, batch_rows=rows))

    # --- stateless operators ---------------------------------------------------------------
    # `parallelism=` of each is how many slots have an instance of it; see `process`.

    def map(
        self,
        function: Any,
        schema: SchemaLike,
        *,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Vectorised: RecordBatch -> RecordBatch (or dict of arrays), a row for each row."""
        return self._stateless("map", StatelessSpec(function), to_schema(schema), name, parallelism)

    def map_rows(
        self,
        function: Callable[[dict[str, Any]], dict[str, Any]],
        schema: SchemaLike,
        *,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Convenience: dict -> dict, one row at a time. Prefer `map`."""
        spec = StatelessSpec(function, True)
        return self._stateless("map", spec, to_schema(schema), name, parallelism)

    def filter(
        self, predicate: Any, *, name: str | None = None, parallelism: int | None = None
    ) -> Stream:
        """Keep rows for which it is true: an expression, or a function RecordBatch -> booleans.

        An expression is SQL text ("likes > 3 and tag is not null"), `pc.field("likes") > 3`, or a
        Spark Column that is made of what SQL text may have. Null counts as false.
        """
        if is_expression(predicate):
            predicate = condition_of(predicate, self.schema, name or "filter")
        return self._stateless("filter", StatelessSpec(predicate), self.schema, name, parallelism)

    def filter_rows(
        self,
        predicate: Callable[[dict[str, Any]], bool],
        *,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Convenience: dict -> bool, one row at a time. Prefer `filter`."""
        spec = StatelessSpec(predicate, True)
        return self._stateless("filter", spec, self.schema, name, parallelism)

    def flat_map(
        self,
        function: Any,
        schema: SchemaLike,
        *,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Vectorised: RecordBatch -> (RecordBatch, origins); origins[i] = input row of output i."""
        spec = StatelessSpec(function)
        return self._stateless("flat_map", spec, to_schema(schema), name, parallelism)

    def flat_map_rows(
        self,
        function: Callable[[dict[str, Any]], Iterable[dict[str, Any]]],
        schema: SchemaLike,
        *,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Convenience: dict -> any number of dicts. Prefer `flat_map`."""
        spec = StatelessSpec(function, True)
        return self._stateless("flat_map", spec, to_schema(schema), name, parallelism)

    def select(self, *columns: Any, name: str | None = None, **computed: Any) -> Stream:
        """Keep only these columns, in this order; `total="price * 2"` computes one.

        A column is a name, or an expression as in `with_columns`: SQL text with a name
        ("price * 2 AS total"), a Spark Column, or a mapping of names and expressions.
        """
        if not columns and not computed:
            raise DeclarationError("select() needs at least one column")
        made = chosen(self.schema, columns, computed, name or "select")
        return self._stateless("map", StatelessSpec(made), made.schema, name)

    def with_columns(
        self, columns: Mapping[str, Any] | None = None, *, name: str | None = None, **computed: Any
    ) -> Stream:
        """All columns, and computed ones; one that has the name of a column takes its place.

        Each is an expression over the columns as they were: SQL text ("price * 2"),
        `pc.field("price") * 2` or a Spark Column. `columns` is for names that are no keywords.
        """
        given = {**(columns or {}), **computed}
        if not given:
            raise DeclarationError("with_columns() needs at least one column: total='price * 2'")
        made = with_columns(self.schema, given, name or "with_columns")
        return self._stateless("map", StatelessSpec(made), made.schema, name)

    def union(self, *others: Stream) -> Stream:
        """Merge streams of the same columns and types (column order may differ: names decide).

        A column may be null if it may be on one side.
        """
        for other in (self, *others):
            if other.dead_letters or other.grouping != LOCAL:
                raise DeclarationError(
                    "union merges plain streams; put key_by, shuffle or the like after it"
                )
            if other.flow is not self.flow:
                raise DeclarationError("union of streams that belong to two different flows")
            check_union(self.schema, other.schema)
        producers = [p for s in (self, *others) for p in s.producers]
        if len(set(producers)) < len(producers):
            raise DeclarationError("union of a stream with itself; flat_map can double rows")
        return Stream(self.flow, tuple(producers), merged([s.schema for s in (self, *others)]))

    def lookup(
        self,
        table: Any,
        *,
        on: str | Iterable[str] | Mapping[str, str],
        how: LookupHow = "left",
        columns: Iterable[str] | None = None,
        refresh: str | timedelta | None = None,
        schema: SchemaLike | None = None,
        suffixes: tuple[str, str] | None = None,
        name: str | None = None,
    ) -> Stream:
        """Add the columns of a side table's row with an equal key, where the rows are.

        `table`: a pyarrow Table, a pandas or static Spark DataFrame, a path of Parquet (a file or a
        folder), or a function () -> pyarrow Table, which the driver calls. `on`: the columns that
        both have, or `{"category": "id"}`, the stream's to the table's; a key is in the table once,
        and null equals nothing. `how`: "left" (nulls if there is no such row) or "inner" (without
        those rows). `columns`: which of the table's (default: all but the key).

        The table is read at every start, and again each `refresh="10 minutes"` of processing time,
        between two epochs; if that fails, the rows of before stay in use. All tasks of an epoch see
        the same rows. `schema`: the table's; a function without it is called when declared, once.
        No key is needed, and a pending one stays for what follows.
        """
        who = name or "lookup"
        self._refuse_dead_letters()
        lookup = lookup_of(self.schema, table, on, how, columns, refresh, suffixes, schema, who)
        made = check_output(lookup, self.schema, who)
        spec, pending = StatelessSpec(lookup), self.grouping
        if not pending.keyed:
            return self._into(lookup.kind, name, made, spec)
        here = Stream(self.flow, self.producers, self.schema)
        names = dict(lookup.left)
        key = pending.key.called(names[column] for column in pending.key)
        return here._into(lookup.kind, name, made, spec)._grouped(replace(pending, key=key))

    # --- stateful --------------------------------------------------------------------------
    def process(
        self,
        operator: Any,
        *,
        name: str | None = None,
        parallelism: int | None = None,
        order_by: str | None = None,
        **unknown: Never,
    ) -> Stream:
        """Run a stateful operator; the stream must be keyed (`key_by` or `globally`) before.

        `order_by`: a column of event times. The operator gets the rows of a key in that order, of
        equal times in order of arrival: each waits in state until the watermark has passed it. A
        row that comes after rows of its time were handed over is late.
        `parallelism`: how many slots have an instance of it, at most as many as the flow has slots
        (default: all of them). It stays until `query.rescale(parallelism={"name": n})`, and
        `flow.start(parallelism={"name": n})` overrides it.
        """
        self._refuse_dead_letters()
        check_operator(operator, unknown)
        who, key = name or type(operator).__name__, self.grouping.key
        if not self.grouping.keyed:
            raise MissingKey(
                f"{type(operator).__name__} keeps state per key, but its input is not keyed; "
                "put key_by(...) or globally() before process(...)",
                operator=who,
            )
        schema = check_columns(operator.declared(self.schema, key), f"what {operator!r} returns")
        check_folded(self, operator, who)
        in_pieces = self.grouping.by in ("partial", *SEVERAL_SLOTS)
        if in_pieces and (operator.ordered or not operator.mergeable(self.schema, key)):
            raise DeclarationError(
                f"{operator!r} cannot be folded into partials: "
                f"{operator.why_not_mergeable(self.schema, key)}. "
                f"Change that, or leave out grouping={self.grouping.by!r}",
                operator=who,
            )
        if order_by is not None:
            self._check_order(order_by, who)
        return self._into("stateful", name, schema, operator, key, parallelism, order_by)

    def join(
        self,
        other: Stream,
        *,
        how: How = "inner",
        as_of: bool = False,
        within: tuple[str | timedelta, str | timedelta] | None = None,
        window: Any = None,
        times: str | tuple[str, str] | None = None,
        ttl: str | timedelta | None = None,
        suffixes: tuple[str, str] | None = None,
        late: Literal["drop", "dead_letters"] = "drop",
        allowed_lateness: str | timedelta | None = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Rows of this stream (left) with those of another one (right) that have an equal key.

        Both are keyed before, by columns of the same types: `bids.key_by("auction").join(
        auctions.key_by("id"), ...)`. A null in the key equals nothing.

        - `within=(low, high)`: interval join. The right row's event time is from `low` to `high`
          of the left row's, as in `("-10 minutes", "0 minutes")`; both ends count. `high` may be
          a column of the left side with a time.
        - `window=hg.Tumbling(...)` or `hg.Sliding(...)`: both rows are in the same window.
        - `as_of=True`: each left row with the latest right row up to its time, once the watermark
          has passed it: a stream against a changelog. A right row whose column `change` says
          "delete" ends what held. `how` is "inner" or "left".
        - none of these: regular join. Rows are held for good, or for `ttl` (processing time).

        A side of a regular join may tell changes (`emit="changes"`, an outer join): pairs come and
        go with its rows, as a column `change` says. Other joins refuse such a side, but for the
        right one of `as_of`: they keep rows that were replaced.

        `times=("ts", "ts")` are the columns of event times of left and right (default: those of the
        sources, or of the window). `how` is "inner", "left", "right" or "full"; what a side lacks
        is null. An outer row is put out when its partner can no longer come; of a regular join at
        once, and again with `change="delete"` when a partner comes.

        A row that the watermark has passed is late and dropped, or a dead letter with
        `late="dead_letters"`; `late("left")` of the result is a stream of them. With
        `allowed_lateness` the join goes by a watermark that much earlier: rows are held longer, and
        outer rows and those of `as_of` wait longer.

        The output has the key columns once, under their names on the left, then the other columns
        of left and right; `suffixes` tell apart those that both have. Neither side is ever folded
        in place: a join is not mergeable.
        """
        asked = Asked(how, as_of, within, window, times, ttl, suffixes, late, allowed_lateness)
        sides = (self, other)
        told = check_joined(sides, asked)
        keys = (self.grouping.key, other.grouping.key)
        schemas = (self.schema, other.schema)
        event_times = (
            self.flow._event_times(self.producers),
            self.flow._event_times(other.producers),
        )
        operator = self.flow._join_operator(asked, schemas, keys, event_times, told)
        wide = operator.sides.wide(*schemas)
        schema = check_columns(operator.declared(wide, keys[0]), "what join(...) returns")
        if parallelism is not None:
            check_parallelism(name or "join", parallelism, [s.grouping for s in sides])
        node = self.flow._add("stateful", name, schema, operator, keys[0], parallelism)
        for side, stream in enumerate(sides):
            self.flow._connect(stream.producers, node, stream.grouping, side)
        return Stream(self.flow, (node,), schema)

    def late(
        self, side: Literal["left", "right"] | None = None, *, name: str | None = None
    ) -> Stream:
        """The rows that come too late for the operator that this stream is of, as they came to it.

        Those it drops and counts: behind a window of event time, `order_by=`, a join that goes by
        event time (`late("left")`, `late("right")`). They come in the epoch in which they are
        dropped, without a key, and are no different from any other rows; a window of event time
        behind them would find most of them late again.
        """
        self._refuse_dead_letters()
        if len(self.producers) != 1 or self.grouping != LOCAL:
            raise DeclarationError(
                "late() belongs right behind process(...) or join(...), before union or key_by"
            )
        node = self.flow._nodes[self.producers[0]]
        inputs = [edge for edge in self.flow._edges if edge.consumer == node.id]
        chosen = SIDES.get(side or "left", LEFT)
        mine = [edge for edge in inputs if edge.side == chosen]
        grouping = mine[0].grouping if mine else LOCAL
        late = late_rows(node, side, grouping.key if grouping.nulls == "drop" else ())
        producers = tuple(edge.producer for edge in mine)
        schema = merged([self.flow._nodes[producer].schema for producer in producers])
        stem = f"{node.name}_late" if side is None else f"{node.name}_late_{side}"
        return Stream(self.flow, producers, schema)._into(
            "filter", name or stem, schema, StatelessSpec(late)
        )

    # --- inside ----------------------------------------------------------------------------
    def _grouped(self, grouping: Grouping) -> Stream:
        self._refuse_dead_letters()
        return Stream(self.flow, self.producers, self.schema, grouping)

    def _stateless(
        self,
        kind: str,
        spec: StatelessSpec,
        schema: pa.Schema,
        name: str | None,
        parallelism: int | None = None,
    ) -> Stream:
        self._refuse_dead_letters()
        if self.grouping.by not in TO_OWNERS:
            raise DeclarationError(
                f"grouping={self.grouping.by!r} is for keys with state, and {kind} keeps none: use "
                "shuffle(), or put key_by(..., grouping=...) right before process(...)"
            )
        function = spec.function
        if not callable(function) or is_expression(function):
            instead = f"; {_EXPRESSIONS_GO[kind]}" if is_expression(function) else ""
            given = type(function).__name__
            raise DeclarationError(f"{kind}(...) takes a function, not {given}{instead}")
        schema = check_columns(schema, f"what {kind}(...) returns")
        return self._into(kind, name, schema, spec, parallelism=parallelism)

    def _into(
        self,
        kind: str,
        name: str | None,
        schema: pa.Schema,
        spec: Any,
        key: Key = NO_KEY,
        parallelism: int | None = None,
        order_by: str | None = None,
    ) -> Stream:
        if parallelism is not None:
            check_parallelism(name or kind, parallelism, [self.grouping])
        node = self.flow._add(kind, name, schema, spec, key, parallelism, order_by)
        self.flow._connect(self.producers, node, self.grouping)
        return Stream(self.flow, (node,), schema)

    def _check_order(self, column: str, who: str) -> None:
        time_of(self.schema, column, f"order_by= of {who}")
        if self.grouping.by in ("partial", *SEVERAL_SLOTS):
            raise DeclarationError(
                f"order_by={column!r} of {who!r} needs all rows of a key in one place; leave out "
                f"grouping={self.grouping.by!r}",
                operator=who,
            )


_EXPRESSIONS_GO = {
    "map": "with_columns(...) and select(...) take expressions",
    "filter": "filter(...) takes expressions",
    "flat_map": "filter(...), with_columns(...) and select(...) take expressions",
}
