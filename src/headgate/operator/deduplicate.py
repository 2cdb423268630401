"""Deduplicate: let the first row of every key through, drop the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pyarrow as pa

from headgate.operator.base import Output, StateFields, StatefulOperator
from headgate.operator.rows import EpochClock, KeyedRows
from headgate.state.session import StateSession
from headgate.topology.duration import positive_us, ttl_ms


@dataclass(frozen=True)
class Deduplicate(StatefulOperator):
    """Pass the first row of every key on, unchanged, and drop all later ones.

    Exact, also among the rows of one batch (first in order of arrival). With `within` ("10
    minutes" or a timedelta, processing time of the epoch) a key counts as new again that long after
    the row that passed, and its state is forgotten; without it every key is remembered for good.
    Keeps nothing but the key (and a clock); about 30 ns per row. Not mergeable: whether a row
    passes must be known when it comes.

    Examples:
        >>> Deduplicate(within="1 day").ttl
        datetime.timedelta(days=1)
    """

    within: str | timedelta | None = None
    ordered: bool = field(default=False, kw_only=True, repr=False)
    ttl: timedelta | None = field(init=False, default=None, repr=False)

    def __post_init__(self) -> None:
        if self.within is not None:
            ttl_ms(self.within)
            object.__setattr__(self, "ttl", timedelta(microseconds=positive_us(self.within)))

    def state_fields(self, rows: pa.Schema, key: Sequence[str]) -> StateFields:
        return StateFields(pa.schema([]))

    def output_schema(self, rows: pa.Schema, key: Sequence[str]) -> pa.Schema:
        return rows

    def needs(self, rows: pa.Schema, key: Sequence[str], wanted: set[str]) -> set[str]:
        return {*key} | (wanted & set(rows.names))

    def process(self, rows: KeyedRows, state: StateSession, clock: EpochClock) -> Output:
        if not len(rows):
            return Output()
        groups = rows.groups
        new = ~state.read(groups).found  # a key whose time is over counts as absent
        if not new.any():
            return Output()
        state.write(groups if new.all() else groups.take(new), {})
        passed = groups.first[new]
        if len(passed) == len(rows):
            return Output(rows.batch)
        return Output(rows.batch.take(pa.array(passed)), origins=passed)

    def why_not_mergeable(self, rows: pa.Schema, key: Sequence[str]) -> str:
        return "whether a row is the first of its key must be known when it comes"

    @property
    def emits_at_end(self) -> bool:
        return False

    def describe(self) -> dict[str, Any]:
        return {"operator": "Deduplicate"}
