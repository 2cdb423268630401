"""The value that held at the time of a row: a stream joined with a changelog, as of event time.

The right side tells what is known of a key from a time on. A left row gets the right row with the
latest time that is not after its own. It waits until the watermark has passed its time: then no
right row can come that changes the answer. So the result does not depend on the order in which
sources are declared or read. Of a key the last right row before the watermark is kept, and all
after it.

Every right row is kept with its end, the time of the next one, so that which may go is one column.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.arrays import I64, Bools
from headgate.operator import join_match
from headgate.operator.base import Output, StateFields, StatefulOperator, state_schema
from headgate.operator.join_rows import made_at_end, null_rows, picked, refused_late, us_of
from headgate.operator.join_state import (
    GONE,
    INDEX,
    PARTS,
    SEQ,
    TIME,
    UNTIL,
    Index,
    side_schema,
    take_out,
)
from headgate.operator.panes import groups_of
from headgate.operator.rows import EpochClock, KeyedRows
from headgate.operator.window import CHANGE, DELETE, FOREVER, Late
from headgate.state.layout import StateSchema
from headgate.state.rows import StateRows
from headgate.state.session import StateSession
from headgate.topology.joining import LEFT, RIGHT, SIDE, How, Sides

LAST = FOREVER - 1  # the end of what holds until further notice


@dataclass(frozen=True, repr=False)
class AsOf(StatefulOperator):
    """Made by `Stream.join(as_of=True)`. `deletes`: the right side has a column `change`."""

    ordered = True  # of right rows of equal times the last one counts
    ends_epochs = True

    sides: Sides
    how: How = "inner"
    times: tuple[str, str] = ("", "")
    deletes: bool = False
    late: Late = "drop"
    lateness_us: int = 0

    def state_fields(self, rows: pa.Schema, key: Sequence[str]) -> StateFields:
        return StateFields(INDEX)

    def beside(self, rows: pa.Schema, key: Sequence[str]) -> dict[str, StateSchema]:
        index, tables = state_schema(self, rows, key), {}
        for side, own in (
            (LEFT, [UNTIL]),
            (RIGHT, [UNTIL, TIME, *([GONE] if self.deletes else [])]),
        ):
            passed = self.sides.passed(side, rows)
            columns = self.sides.columns(side, rows).items()
            kinds = {name: rows.field(wide).type for name, wide in columns if name in passed}
            tables[PARTS[side]] = side_schema(index, kinds, *own)
        return tables

    def output_schema(self, rows: pa.Schema, key: Sequence[str]) -> pa.Schema:
        return self.sides.output(rows, self.how)

    def held_from(self, watermark_us: int) -> int | None:
        return watermark_us - self.lateness_us

    def late_by(self, side: int = 0) -> tuple[str, ...]:
        return (self.times[LEFT],) if side == LEFT else ()

    def is_late(self, times_us: I64, clock: EpochClock) -> Bools:
        before = clock.behind(self.lateness_us).previous_watermark_us
        if before is None:
            return np.zeros(len(times_us), np.bool_)
        return np.asarray(times_us < before)

    @property
    def wants_dead_letters(self) -> bool:
        return self.late == "dead_letters"

    def why_not_mergeable(self, rows: pa.Schema, key: Sequence[str]) -> str:
        return "rows of a key have to meet those of the other side in one place"

    def __repr__(self) -> str:
        return f"join(how={self.how!r}, as_of=True, times={self.times})"

    def describe(self) -> dict[str, Any]:
        return {"operator": "AsOf", "how": self.how, "times": list(self.times)}

    # Rows ---------------------------------------------------------------------------------------

    def process(self, rows: KeyedRows, state: StateSession, clock: EpochClock) -> Output:
        side = np.asarray(rows.column(SIDE))
        times, valid = self._times(rows.batch, side)
        late = valid & (side == LEFT) & self.is_late(times, clock)
        kept = valid & ~late
        nulls = null_rows(rows.batch, rows.key)
        if nulls is not None:
            kept &= ~nulls | ((side == LEFT) & (self.how == "left"))
        dead = dict.fromkeys(np.flatnonzero(~valid).tolist(), "no event time: it is null")
        if self.late == "dead_letters" and late.any():
            dead |= refused_late(late, clock.behind(self.lateness_us))
        chosen = np.flatnonzero(kept)
        if len(chosen):
            some = rows if len(chosen) == len(rows) else rows.take(chosen)
            side, times = side[chosen], times[chosen]
            index = Index(state, some.groups)
            for one in (LEFT, RIGHT):
                mine = np.flatnonzero(side == one)
                codes, values = some.groups.codes[mine], self._columns(one, some.batch, mine)
                if one == LEFT:
                    values[UNTIL] = times[mine]
                elif len(mine):
                    values[TIME] = times[mine]
                    values[UNTIL] = self._ends(index, codes, times[mine])
                index.append(one, codes, values)
            index.write()
        return Output(dead=dead, late=int(np.count_nonzero(late)))

    def finish(
        self, state: StateSession, clock: EpochClock, carry: pa.RecordBatch | None = None
    ) -> pa.RecordBatch | None:
        clock = clock.behind(self.lateness_us)
        mark = FOREVER if clock.input_ends else clock.watermark_us
        if mark is None or mark == clock.previous_watermark_us:
            return None
        ready = state.beside[PARTS[LEFT]].select(UNTIL, below=mark)
        made = self._answered(ready, state) if len(ready) else None
        if len(ready):
            take_out(state, LEFT, ready)
        over = state.beside[PARTS[RIGHT]].select(UNTIL, below=min(mark, LAST - 1) + 1)
        if len(over):
            take_out(state, RIGHT, over)
        return made

    # Inside -------------------------------------------------------------------------------------

    def _answered(self, ready: StateRows, state: StateSession) -> pa.RecordBatch | None:
        """Left rows with what held at their times."""
        groups = groups_of(ready, SEQ)
        held = Index(state, groups).stored(RIGHT, np.ones(len(groups), np.bool_))
        found = np.full(len(ready), -1, np.int64)
        if len(held):
            found = join_match.latest(groups.codes, ready[UNTIL], held.codes, held.times)
            if self.deletes:
                gone: Bools = held[GONE]
                found[(found >= 0) & gone[found]] = -1
        head = ready.keys.select(list(range(ready.keys.num_columns - 1)))  # but their number
        made = made_at_end(self.sides, head.schema, state)
        met, alone = np.flatnonzero(found >= 0), np.flatnonzero(found < 0)
        made.add(head.take(pa.array(met)), ((ready, met), (held, found[met])))
        if self.how == "left":
            made.add(head.take(pa.array(alone)), ((ready, alone), None))
        return made.batch()[0]

    def _ends(self, index: Index, codes: I64, times: I64) -> I64:
        """Until when new right rows hold; those held that end sooner for them are changed."""
        held = index.stored(RIGHT, np.bincount(codes, minlength=len(index)) > 0)
        both, at = np.concatenate([held.codes, codes]), np.concatenate([held.times, times])
        order = np.lexsort((at, both))  # of equal times in order of arrival
        ends = np.full(len(order), LAST, np.int64)
        same = both[order][1:] == both[order][:-1]
        ends[order[:-1][same]] = at[order[1:][same]]
        changed = np.flatnonzero(ends[: len(held)] != held.until)
        held.write(changed, {UNTIL: ends[changed]})
        return ends[len(held) :]

    def _columns(self, side: int, batch: pa.RecordBatch, rows: I64) -> dict[str, Any]:
        """What is held of rows of a side: columns that the output has."""
        mine, wide = picked(batch, rows), self.sides.columns(side, batch.schema)
        values: dict[str, Any] = {
            name: mine.column(wide[name]) for name in self.sides.passed(side, batch.schema)
        }
        if side == RIGHT and self.deletes:
            gone = pc.equal(mine.column(wide[CHANGE.name]), DELETE)
            values[GONE] = pc.fill_null(gone, False)
        return values

    def _times(self, batch: pa.RecordBatch, side: I64) -> tuple[I64, Bools]:
        times, valid = np.zeros(len(side), np.int64), np.ones(len(side), np.bool_)
        for one in (LEFT, RIGHT):
            mine = side == one
            words, there = us_of(self.sides.column(batch, one, self.times[one]))
            times[mine] = words[mine]
            if there is not None:
                valid[mine] &= there[mine]
        return times, valid
