"""The state of rows by rank: a state row per key and rank, looked up until a key has no more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headgate.arrays import I64, Bools
from headgate.operator.changes import Lines, nulls_of
from headgate.operator.join_state import ramps
from headgate.operator.rows import Groups, KeyedRows
from headgate.operator.window import DELETE
from headgate.routing.identity import Identity
from headgate.state.session import StateSession

RANK = pa.field("rank", pa.int64())
PLACE = "@rank"  # sub-key: the rank, from 1
MARK = "@changed"  # what is to be told of a rank: 0 nothing, 1 another row, 2 the first one


@dataclass(frozen=True)
class HeldRanks:
    """What keys hold: the group, the rank and the columns of each row."""

    codes: I64
    places: I64
    columns: dict[str, pa.Array]
    marks: I64

    def find(self, codes: I64, places: I64) -> tuple[Bools, I64]:
        """Which of these ranks of groups there are, and which rows they are."""
        if not len(self.codes):
            return np.zeros(len(codes), np.bool_), np.zeros(len(codes), np.int64)
        width = int(max(self.places.max(), places.max())) + 1
        line = self.codes * width + self.places
        order = np.argsort(line)
        wanted = codes * width + places
        at = order[np.minimum(np.searchsorted(line[order], wanted), len(line) - 1)]
        return line[at] == wanted, at


@dataclass(frozen=True)
class Ranks:
    """The state rows of some groups, rank by rank."""

    groups: Groups
    key: Sequence[str]
    identity: Identity
    state: StateSession

    def keys(self, codes: I64, places: I64) -> Groups:
        """The state rows of these ranks of these groups."""
        rows = pa.array(codes)
        arrays = [column.take(rows) for column in self.groups.columns.columns]
        arrays = arrays[: len(self.key)]
        table = pa.RecordBatch.from_arrays([*arrays, pa.array(places)], [*self.key, PLACE])
        keyed = KeyedRows(table, self.key, self.groups.route[codes], self.identity)
        return keyed.sub_groups([PLACE], [table.column(len(self.key))])

    def held(self, n: int, names: Sequence[str] | None) -> HeldRanks:
        """What there is; looked up rank by rank, until no group has more."""
        left = np.arange(len(self.groups))
        codes, places, marks = [], [], []
        columns: list[dict[str, pa.Array]] = []
        for place in range(1, n + 1):
            found = self.state.read(self.keys(left, np.full(len(left), place)))
            index = np.flatnonzero(found.found)
            if names is None:
                names = [name for name in found.value_names if name != MARK]
            columns.append({name: found.arrow(name).take(pa.array(index)) for name in names})
            left = left[index]
            codes.append(left)
            places.append(np.full(len(left), place))
            if MARK in found.value_names:
                marks.append(found[MARK][index].astype(np.int64))
            if not len(left):
                break
        assert names is not None
        joined = {name: pa.concat_arrays([part[name] for part in columns]) for name in names}
        none = np.zeros(0, np.int64)
        return HeldRanks(
            np.concatenate(codes), np.concatenate(places), joined, np.concatenate([none, *marks])
        )


def ranks_gone(counts: I64, values: pa.Schema) -> Lines:
    """Output rows that take back so many ranks of each result; of `values` all others are null."""
    of = np.repeat(np.arange(len(counts)), counts)
    lines = nulls_of(values, len(of))
    at = values.get_field_index(RANK.name)
    lines = lines.set_column(at, RANK, pa.array(ramps(counts) + 1))
    return Lines(lines, np.repeat(DELETE, len(of)), of)
