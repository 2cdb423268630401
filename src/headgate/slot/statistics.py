"""What a slot counts for the manager: loads of keys, and pairs of keys that follow each other.

A pair (a, b) is counted on an edge into a keyed operator: `a` is the key under which the row's
last stateful operator had it, `b` the key that takes it on (Caneill et al. 2016, section 3.2). Rows
keep `a` through stateless operators of the slot; a round robin between the two breaks the bond, as
it should, for no placement could make such a pair local. Counting is pure and bounded: a task run
twice counts the same, in `statistics_bytes` at most. Of a batch of more than `ROWS_COUNTED` rows
every k-th pair is counted, with weight k. The counts leave the task apart from its rows.

For operators whose *units* are placed (buckets and pinned keys, Madsen et al. 2017), a unit is
counted in place of its keys, and where state rows lie is sampled: exact up to the sketch's room.
What units cost is timed now and then (`headgate.slot.unit_times`).
Loads of operators whose heavy keys may be cut are counted by key all the same: a key must be known
before it can be a unit.
"""

from __future__ import annotations

import pickle
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.arrays import U64
from headgate.operator.rows import Groups
from headgate.routing.costs import CostSketch
from headgate.routing.space_saving import PairSketch
from headgate.routing.table import RoutingTable

ROWS_COUNTED = 1 << 15  # of a batch; of a larger one every k-th pair, with weight k
STATE_POSITIONS = 1 << 14  # of a state table: the sample that says where its rows lie
LABELLED_KEYS = 64  # per operator and task: plans name the heaviest keys only
LABEL_CHARACTERS = 60  # of a key, as a plan's record shows it
_LOADS_SHARE = 4  # one part in four of the memory is for key loads


@dataclass
class TaskStatistics:
    """The counts of one task: `pairs[producer, consumer]`, `loads[operator]`, and key texts;
    `spent[operator]`, rows behind a cost-aware shuffle and their milliseconds; `costs[operator]`,
    the instance's sketches if it sends them, and `unsettled`, operators whose rows it does not know
    well enough to be silent; `state[operator]`, rows of state by unit;
    `unit_ns[operator]`, what each part of its units took; `yardstick_ns`, how fast it was here.
    """

    slot: int = 0
    pairs: dict[tuple[str, str], PairSketch] = field(default_factory=dict)
    loads: dict[str, PairSketch] = field(default_factory=dict)
    labels: dict[str, dict[int, str]] = field(default_factory=dict)
    spent: dict[str, tuple[int, float]] = field(default_factory=dict)
    costs: dict[str, CostSketch] = field(default_factory=dict)
    unsettled: set[str] = field(default_factory=set)
    state: dict[str, PairSketch] = field(default_factory=dict)
    unit_ns: dict[str, tuple[int, ...]] = field(default_factory=dict)
    yardstick_ns: int = 0

    def to_bytes(self) -> bytes:
        return pickle.dumps(self, protocol=5)

    @staticmethod
    def from_bytes(data: bytes) -> TaskStatistics:
        """What a task of this same run counted; never read back from storage."""
        counted: TaskStatistics = pickle.loads(data)
        return counted


class Counting:
    """Counts while a task runs; room is shared out evenly among operators and edges."""

    def __init__(
        self,
        slot: int,
        memory_bytes: int,
        operators: int,
        edges: int,
        units: Mapping[str, RoutingTable] | None = None,
        by_key: Container[str] = (),
    ) -> None:
        self.statistics = TaskStatistics(slot)
        self._units, self._by_key = units or {}, by_key
        for_loads = memory_bytes // _LOADS_SHARE if edges else memory_bytes
        self._load_bytes = for_loads // max(1, operators)
        self._pair_bytes = (memory_bytes - for_loads) // max(1, edges)

    def load(self, operator: str, groups: Groups) -> None:
        """The keys of a batch that a stateful operator has processed."""
        sketch = self.statistics.loads.get(operator)
        if sketch is None:
            sketch = self.statistics.loads[operator] = PairSketch.within(self._load_bytes)
        h = groups.h if operator in self._by_key else self._counted(operator, groups.h)
        sketch.update(h, np.zeros(len(groups), np.uint64), groups.sizes)
        self._label(operator, groups)

    def counts_units(self, operator: str) -> bool:
        return operator in self._units

    def units_of(self, operator: str, h: U64) -> U64 | None:
        """The unit of every key, if it is units that are counted of this operator."""
        if operator not in self._units or operator in self._by_key:
            return None
        return self._counted(operator, h)

    def state(self, operator: str, routes: U64, rows: int) -> None:
        """Where the operator's rows of state lie, from a fair sample of them."""
        sketch = self.statistics.state[operator] = PairSketch.within(self._load_bytes)
        if len(routes):
            weight = np.full(len(routes), rows / len(routes))
            sketch.update(self._counted(operator, routes), np.zeros(len(routes), np.uint64), weight)

    def pair(self, producer: str, consumer: str, a: U64, b: U64) -> None:
        """Rows that go on from key a of one operator to key b of the next."""
        sketch = self.statistics.pairs.get((producer, consumer))
        if sketch is None:
            sketch = PairSketch.within(self._pair_bytes)
            self.statistics.pairs[producer, consumer] = sketch
        step = -(-len(a) // ROWS_COUNTED)
        if step > 1:
            a, b = a[::step], b[::step]
        a, b = self._counted(producer, a), self._counted(consumer, b)
        sketch.update(a, b, np.full(len(a), step) if step > 1 else None)

    def _counted(self, operator: str, h: U64) -> U64:
        table = self._units.get(operator)
        return h if table is None else table.units(h)

    def _label(self, operator: str, groups: Groups) -> None:
        labels = self.statistics.labels.setdefault(operator, {})
        if len(labels) >= LABELLED_KEYS:
            return
        top = np.argsort(-groups.sizes, kind="stable")[:LABELLED_KEYS]
        some = groups.take(top)
        columns = [_cut(column).to_pylist() for column in some.columns.columns]
        for i, h in enumerate(some.h.tolist()):
            labels.setdefault(h, key_text([column[i] for column in columns]))


def _cut(column: pa.Array) -> pa.Array:
    """Texts of a key no longer than a label shows of them."""
    is_text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    return pc.utf8_slice_codeunits(column, 0, LABEL_CHARACTERS + 1) if is_text else column


def key_text(values: Sequence[Any]) -> str:
    """A key as a person reads it, cut to a line."""
    text = ", ".join("null" if v is None else str(v) for v in values)
    text = text.replace("\0", " ").replace("\n", " ")
    return text if len(text) <= LABEL_CHARACTERS else text[: LABEL_CHARACTERS - 1] + "…"
