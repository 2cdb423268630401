"""The best rows of every key, whole: without windows a state row per key and rank.

Rows have a total order: by the columns named, then by all others that are kept. So what is kept of
a key does not depend on the order in which rows, or the partials of other slots, came, and rows
that tie in everything are the same. A row only ever loses rank, and a rank only ever gets better
rows: so what an epoch changed is known rank by rank, however often it changed within the epoch.

New rows are sorted together with those that their keys hold; ranks whose row is another one are
written. Ranks are looked up one after the other until a key has no more, so an epoch costs what
its keys hold, not what the state holds.

In a window a key has one state row with the best rows of a pane in it (`packed.py`). The best rows
of some panes are among the best of each. Where changes are told, each row says whether it came in
this epoch, and the best of those that did not stay with the others until the epoch ends: so the
ranks of a window are known as they were, whatever panes it is made of, and those that differ are
told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.arrays import I64, Bools
from headgate.errors import DeclarationError, NameClash
from headgate.operator.aggregate import TOUCHED, PerKey
from headgate.operator.arithmetic import has_words, sortable, to_words
from headgate.operator.base import Output, StateFields
from headgate.operator.changes import Lines, side_by_side, told_as
from headgate.operator.join_state import ramps
from headgate.operator.packed import Packing
from headgate.operator.panes import Ranges, runs, with_values
from headgate.operator.ranks import MARK, PLACE, RANK, Ranks, ranks_gone
from headgate.operator.rows import EpochClock, Groups, KeyedRows, Partials
from headgate.operator.window import CHANGE, INSERT, UPDATE, Window
from headgate.routing.identity import SCRATCH
from headgate.state.rows import StateRows
from headgate.state.session import StateSession
from headgate.topology.arguments import check_choice, check_count
from headgate.topology.schema import column_of

FRESH = pa.field("@fresh", pa.int8())  # of a packed row: 1 if it came in this epoch
SPREAD = 4  # panes that windows share this often are merged pairwise, not all over again


@dataclass(frozen=True, init=False)
class TopRows(PerKey):
    """Keep, for every key, the `n` best rows: `columns` of them, or all.

    `by` names the columns to order by, first the one that matters most: `"price desc"` has the
    largest first, `"price"` or `"price asc"` the smallest. Nulls come last either way, NaN is the
    largest number. Rows that tie are ordered by the other columns, in their order, ascending.

    Without a window each epoch emits the ranks that have another row now: key, `rank` (from 1) and
    the row; with `emit="changes"` also `change`, "insert" for a rank that was not there, "update"
    for one that was. A sink that keeps the last row per key and rank has the best rows; none is
    ever deleted, since there are never fewer. With a `window` all ranks come at once, when the
    window is final; with `Global` when its trigger fires. `emit="changes"` tells the ranks of a
    window that changed in each epoch, `allowed_lateness` those that change after it was final; a
    session that grew is taken back ("delete") and told again with its new bounds.

    `TopRows(1, by="ts desc")` is the last row of every key in event time. Keeps n rows per key;
    mergeable.

    Examples:
        >>> TopRows(3, by=("price desc", "time"))
        TopRows(n=3, by=('price desc', 'time'), columns=None, emit='updates', window=None)
    """

    n: int
    by: tuple[str, ...]
    columns: tuple[str, ...] | None
    emit: Literal["updates", "changes"]
    window: Window | None
    ends_epochs: bool = field(init=False, repr=False)

    def __init__(
        self,
        n: int,
        by: str | Sequence[str],
        columns: Sequence[str] | None = None,
        emit: Literal["updates", "changes"] = "updates",
        window: Window | None = None,
    ) -> None:
        given = {
            "n": check_count(n, "n of TopRows", operator="TopRows"),
            "by": (by,) if isinstance(by, str) else tuple(by),
            "columns": None if columns is None else tuple(columns),
            "emit": emit,
            "window": window,
            "ends_epochs": window is not None,
        }
        for attribute, value in given.items():
            object.__setattr__(self, attribute, value)
        check_choice(emit, "TopRows: emit", ("updates", "changes"), operator="TopRows")
        self.check_emit()
        self.orders  # noqa: B018 (raises if one cannot be read)

    @property
    def orders(self) -> list[tuple[str, bool]]:
        """The columns to order by, and which of them have the largest first."""
        found = []
        for text in self.by:
            name, _, way = text.strip().rpartition(" ")
            if not name or way.lower() not in ("asc", "desc"):
                name, way = text.strip(), "asc"
            found.append((name.strip(), way.lower() == "desc"))
        if not found or len({name for name, _ in found}) < len(found):
            raise DeclarationError(
                f"TopRows: by={self.by!r} must name one or more different columns, as in "
                "by=('price desc', 'time')",
                operator="TopRows",
            )
        return found

    # What is declared ---------------------------------------------------------------------------

    def kept(self, rows: pa.Schema, key: Sequence[str]) -> list[pa.Field]:
        """The columns that are kept of a row, those of the key left out."""
        chosen = rows.names if self.columns is None else list(self.columns)
        chosen += [name for name, _ in self.orders if name not in chosen]
        fields = [column_of(rows, name, "TopRows") for name in chosen]
        for name, _ in self.orders:
            if not _is_ordered(rows.field(name).type):
                raise DeclarationError(
                    f"TopRows cannot order by column {name!r} of type {rows.field(name).type}; use "
                    "numbers, times, strings or binary",
                    column=name,
                    operator="TopRows",
                )
        return [one for one in fields if one.name not in key]

    def state_fields(self, rows: pa.Schema, key: Sequence[str]) -> StateFields:
        self.output_schema(rows, key)
        kept = self.kept(rows, key)
        if self.window is not None:
            packed = Packing.of([*kept, *([FRESH] if self.tells else [])], "TopRows").state_fields
            own = self.window.held_fields(self.tells)
            return StateFields(pa.schema([*packed, *own]), self.sub_key(rows))
        place = pa.field(PLACE, pa.int64(), nullable=False)
        mark = pa.field(MARK, pa.int8(), nullable=False)
        return StateFields(pa.schema([*kept, mark]), pa.schema([place]))

    def output_schema(self, rows: pa.Schema, key: Sequence[str]) -> pa.Schema:
        head = [rows.field(name) for name in key]
        if self.window is not None:
            self.window.check(rows, key, "TopRows")
            head += self.window.bounded
        tail = [CHANGE] if self.tells else []
        kept = self.kept(rows, key)
        if self.window is not None and self.tells:  # of what is taken back they are null
            kept = [one.with_nullable(True) for one in kept]
        fields = [*head, RANK, *kept, *tail]
        names = [one.name for one in fields]
        for name in names:
            if names.count(name) > 1:
                raise NameClash(
                    f"TopRows adds a column {name!r}, and rows have one of that name; rename it, "
                    "or leave it out with columns=",
                    column=name,
                    operator="TopRows",
                )
        return pa.schema(fields)

    def known_by(self, key: Sequence[str]) -> tuple[str, ...] | None:
        return (*(super().known_by(key) or ()), RANK.name)

    def needs(self, rows: pa.Schema, key: Sequence[str], wanted: set[str]) -> set[str]:
        own = {*key, *(one.name for one in self.kept(rows, key))}
        return own if self.window is None else own | self.window.reads

    def why_not_merged(self, rows: pa.Schema) -> str:
        for one in self.kept(rows, ()):
            if not _is_ordered(one.type):
                return (
                    f"rows that tie are ordered by all their columns, and {one.name!r} of type "
                    f"{one.type} has no order; leave it out with columns="
                )
        return ""

    def describe(self) -> dict[str, Any]:
        window = None if self.window is None else self.window.describe()
        by = [f"{name} desc" if largest else name for name, largest in self.orders]
        told = {"operator": "TopRows", "n": self.n, "by": by, "window": window}
        return told | ({"tells": True} if window is not None and self.tells else {})

    # Rows and partials --------------------------------------------------------------------------

    def fold(self, rows: KeyedRows, groups: Groups, state: StateSession) -> Output:
        if not len(rows):
            return Output()
        names = [one.name for one in self.kept(rows.batch.schema, rows.key)]
        batch = rows.batch.select(names)
        if self.window is not None:
            self._take_in_window(groups, groups.codes, batch, state)
        else:
            self._take_in(Ranks(groups, rows.key, rows.identity, state), groups.codes, batch)
        return Output(carry=self.touched(groups))

    def merge(self, partials: Partials, groups: Groups, state: StateSession) -> Output:
        if self.window is not None:
            rows, counts = Packing.in_state(partials.schema.values).rows(partials)
            self._take_in_window(groups, np.repeat(groups.codes, counts), rows, state)
            return Output(carry=self.touched(groups))
        key = partials.schema.key.names
        batch = partials.batch.select(list(range(len(key))))
        owners = KeyedRows(batch, key, partials.route).groups
        names = [name for name in partials.schema.values.names if name != MARK]
        rows = pa.RecordBatch.from_arrays([partials.column(name) for name in names], names=names)
        self._take_in(Ranks(owners, key, SCRATCH, state), owners.codes, rows)
        return Output(carry=self.touched(owners))

    def _take_in(self, ranks: Ranks, codes: I64, rows: pa.RecordBatch) -> None:
        held = ranks.held(self.n, rows.schema.names)
        every = np.concatenate([held.codes, codes])
        arrays = [
            pa.concat_arrays([held.columns[name], rows.column(name)]) for name in rows.schema.names
        ]
        table = pa.RecordBatch.from_arrays(arrays, names=rows.schema.names)
        order, place, same = self._best(every, table)
        there, at = held.find(every[order], place)
        moved = ~there
        moved[there] = same[at[there]] != same[order[there]]
        marks = np.where(there, 1, 2)
        if len(held.marks):
            marks[there & (held.marks[at] == 2)] = 2  # nobody has seen the rank
        order, place, marks = order[moved], place[moved], marks[moved].astype(np.int8)
        if not len(order):
            return
        written = {name: table.column(name).take(pa.array(order)) for name in table.schema.names}
        ranks.state.write(ranks.keys(every[order], place), {**written, MARK: marks})

    def _take_in_window(
        self, groups: Groups, codes: I64, rows: pa.RecordBatch, state: StateSession
    ) -> None:
        packing = Packing.in_state(state.schema.values)
        if FRESH.name in packing.schema.names and FRESH.name not in rows.schema.names:
            rows = rows.append_column(FRESH, pa.array(np.ones(len(rows), np.int8)))
        before, counts = packing.rows(state.read(groups))
        every = np.concatenate([np.repeat(np.arange(len(groups)), counts), codes])
        state.write(groups, self._packed(packing, every, [before, rows], len(groups)))

    def _packed(
        self, packing: Packing, codes: I64, parts: Sequence[pa.RecordBatch], groups: int
    ) -> Mapping[str, Any]:
        """What is held of the best of these rows, for each of the groups."""
        arrays = [pa.concat_arrays(columns) for columns in zip(*parts, strict=True)]
        table = pa.RecordBatch.from_arrays(arrays, schema=packing.schema)
        order, _, _ = self._best(codes, table)
        return packing.values(_taken(table, order), np.bincount(codes[order], minlength=groups))

    def _best(self, codes: I64, table: pa.RecordBatch) -> tuple[I64, I64, I64]:
        """The best rows of each group, in order; their ranks; and what `_order` says of all.

        With them the best of those that were there when the epoch began, if rows say so.
        """
        order, same = self._order(codes, table)
        place = _places(codes[order])
        best = place < self.n
        old = np.flatnonzero(~_fresh(table)[order])
        if len(old) < len(order):
            best[old] |= _places(codes[order][old]) < self.n
        return order[best], place[best] + 1, same

    # Windows ------------------------------------------------------------------------------------

    def joined(self, left: StateRows, right: StateRows) -> StateRows:
        packing = Packing.in_state(left.layout.schema.values)
        parts = [packing.rows(side) for side in (left, right)]
        codes = np.concatenate([np.repeat(np.arange(len(left)), counts) for _, counts in parts])
        return with_values(
            left, self._packed(packing, codes, [rows for rows, _ in parts], len(left))
        )

    def combined(self, panes: StateRows, ranges: Ranges) -> StateRows:
        if int((ranges.hi - ranges.lo).sum()) > SPREAD * len(panes):
            return super().combined(panes, ranges)
        packing = Packing.in_state(panes.layout.schema.values)
        rows, counts = packing.rows(panes)
        upto = np.append(0, np.cumsum(counts))
        sizes = upto[ranges.hi] - upto[ranges.lo]
        index = np.repeat(upto[ranges.lo], sizes) + ramps(sizes)
        codes = np.repeat(np.arange(len(ranges)), sizes)
        made = self._packed(packing, codes, [_taken(rows, index)], len(ranges))
        return with_values(panes.take(ranges.lo), made)

    def lines(self, results: StateRows, new: Bools) -> Lines:
        rows, counts = Packing.in_state(results.layout.schema.values).rows(results)
        codes, place = np.repeat(np.arange(len(results)), counts), ramps(counts)
        if not self.tells:
            return Lines(_ranked(place + 1, _columns(rows)), None, codes)
        then = np.flatnonzero(~_fresh(rows) & ~new[codes])
        begun = np.cumsum(counts) - counts
        held = np.full(len(rows), -1)  # by result and rank
        held[begun[codes[then]] + _places(codes[then])] = then
        rows = rows.drop_columns([FRESH.name])
        now = np.flatnonzero(place < self.n)
        was, same = held[now], self._order(codes, rows)[1]
        told = (was < 0) | (same[was] != same[now])
        now, changes = now[told], np.where(was < 0, INSERT, UPDATE)[told]
        return Lines(_ranked(place[now] + 1, _columns(_taken(rows, now))), changes, codes[now])

    def gone(self, panes: StateRows, ranges: Ranges) -> Lines:
        rows, counts = Packing.in_state(panes.layout.schema.values).rows(panes)
        codes = np.repeat(np.arange(len(panes)), counts)
        then = np.bincount(codes[~_fresh(rows)], minlength=len(panes))
        schema = self.lines(panes.take(ranges.lo), np.ones(len(ranges), np.bool_)).values.schema
        return ranks_gone(np.minimum(ranges.sums(then), self.n), schema)

    def settle(self, state: StateSession, touched: Groups) -> None:
        packing = Packing.in_state(state.schema.values)
        rows, counts = packing.rows(state.read(touched))
        codes = np.repeat(np.arange(len(touched)), counts)
        best = np.flatnonzero(ramps(counts) < self.n)
        at = rows.schema.get_field_index(FRESH.name)
        rows = _taken(rows, best)
        rows = rows.set_column(at, FRESH, pa.array(np.zeros(len(rows), np.int8)))
        state.write(touched, packing.values(rows, np.bincount(codes[best], minlength=len(touched))))

    # Order --------------------------------------------------------------------------------------

    def _order(self, codes: I64, table: pa.RecordBatch) -> tuple[I64, I64]:
        """Rows by group, best first; and a number for each row, the same for rows that are equal.

        Equal rows stay as they are. With a column that has no order no two rows count as equal.
        """
        orders = self.orders
        rest = [name for name in table.schema.names if name not in dict(orders)]
        given = [(name, largest) for name, largest in orders if name in table.schema.names]
        words = [codes]
        for name, largest in given:
            words += _words(table.column(name), largest)
        order: I64 = np.lexsort(words[::-1])
        ties = ~runs(*(word[order] for word in words))
        for name in rest:  # only of rows that tie
            if not ties.any():
                break
            if not _is_ordered(table.column(name).type):
                ties[:] = False
                break
            among = ties.copy()
            among[:-1] |= ties[1:]
            spots = np.flatnonzero(among)
            rows = order[spots]
            line = (np.cumsum(~ties) - 1)[spots]
            column = _words(table.column(name).take(pa.array(rows)), largest=False)
            finer = np.lexsort((*column[::-1], line))
            order[spots] = rows[finer]
            ties[spots] = ~runs(line, *(word[finer] for word in column))
        same = np.empty(len(order), np.int64)
        same[order] = np.cumsum(~ties)
        return order, same

    # When an epoch ends -------------------------------------------------------------------------

    def finish(
        self, state: StateSession, clock: EpochClock, carry: pa.RecordBatch | None = None
    ) -> pa.RecordBatch | None:
        if self.window is not None:
            return super().finish(state, clock, carry)
        if carry is None or not carry.num_rows:
            return None
        names = [] if carry.schema.names == [TOUCHED] else carry.schema.names
        names = state.schema.keyed_by.called(names)
        touched = KeyedRows(carry, names).groups
        ranks = Ranks(touched, names, SCRATCH, state)
        held = ranks.held(self.n, None)
        order = np.lexsort((held.places, held.codes))
        order = order[held.marks[order] > 0]
        if not len(order):
            return None
        codes, places, take = held.codes[order], held.places[order], pa.array(order)
        state.write(ranks.keys(codes, places), {MARK: np.zeros(len(order), np.int8)})
        columns = {name: column.take(take) for name, column in held.columns.items()}
        parts = [_ranked(places, columns)]
        if names:
            parts.insert(0, touched.columns.take(pa.array(codes)))
        if self.tells:
            parts.append(told_as(np.where(held.marks[order] == 2, INSERT, UPDATE)))
        return side_by_side(*parts)


def _fresh(rows: pa.RecordBatch) -> Bools:
    """Which rows came in this epoch, if they say so."""
    if FRESH.name not in rows.schema.names:
        return np.zeros(rows.num_rows, np.bool_)
    fresh: Bools = rows.column(FRESH.name).to_numpy() == 1
    return fresh


def _places(codes: I64) -> I64:
    """The places of rows in their groups, which stand one after the other."""
    begun = np.flatnonzero(runs(codes))
    return ramps(np.diff(np.append(begun, len(codes))))


def _columns(rows: pa.RecordBatch) -> dict[str, pa.Array]:
    return dict(zip(rows.schema.names, rows.columns, strict=True))


def _ranked(places: I64, columns: dict[str, pa.Array]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(places), *columns.values()], [RANK.name, *columns])


def _taken(rows: pa.RecordBatch, index: I64) -> pa.RecordBatch:
    columns = [column.take(pa.array(index)) for column in rows.columns]
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema)


def _is_ordered(kind: pa.DataType) -> bool:
    if has_words(kind):
        return True
    try:
        pc.rank(pa.array([], kind), tiebreaker="dense")
    except pa.ArrowException:
        return False
    return True


def _words(column: pa.Array, largest: bool) -> list[I64]:
    """Numbers of the order wanted; nulls come last, by an array of their own before the other."""
    if has_words(column.type):
        raw, valid = to_words(column)
        words = sortable(raw)
    else:
        valid = None
        if column.null_count:
            valid = column.is_valid().to_numpy(zero_copy_only=False)
        words = pc.rank(column, tiebreaker="dense").to_numpy().astype(np.int64)
    if largest:
        words = ~words
    if valid is None:
        return [words]
    return [(~valid).astype(np.int64), np.where(valid, words, 0)]
