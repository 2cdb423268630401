"""Units of some routing tables, numbered: what a planner's arrays are in order of.

A unit is a bucket of an operator's keys or one pinned key, known by a hash: a key's own, or one
that stands for its bucket. Numbers hold for the tables they were made from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from headgate.arrays import F64, I32, I64
from headgate.routing.hashing import U64
from headgate.routing.table import RoutingTable


@dataclass(frozen=True)
class UnitIndex:
    """All units of some tables, numbered: operator after operator, buckets before pins."""

    operators: tuple[str, ...]
    first: Mapping[str, int]
    ids: Mapping[str, U64]
    order: Mapping[str, I64]
    operator: I32
    home: I32
    names: tuple[str, ...]

    @classmethod
    def of(
        cls,
        tables: Mapping[str, RoutingTable],
        labels: Mapping[str, Mapping[int, str]] | None = None,
    ) -> UnitIndex:
        """`labels` are texts of keys that are known, by operator and hash."""
        first: dict[str, int] = {}
        ids: dict[str, U64] = {}
        homes: list[I32] = []
        names: list[str] = []
        for name, table in tables.items():
            unit, home = table.all_units()
            first[name] = len(names)
            ids[name] = unit
            homes.append(home)
            names += [f"{name}[{bucket}]" for bucket in range(table.buckets)]
            known = (labels or {}).get(name, {})
            names += [_key_name(name, h, known.get(h)) for h in table.pinned_h.tolist()]
        sizes = [len(home) for home in homes]
        operator = np.repeat(np.arange(len(homes), dtype=np.int32), sizes)
        order = {name: np.argsort(unit, kind="stable") for name, unit in ids.items()}
        home = np.concatenate(homes).astype(np.int32)
        return cls(tuple(tables), first, ids, order, operator, home, tuple(names))

    def find(
        self, operator: str, unit: U64
    ) -> tuple[I64, np.ndarray[tuple[int], np.dtype[np.bool_]]]:
        """Numbers of units, and which of them are known."""
        if operator not in self.ids:
            return np.zeros(len(unit), np.int64), np.zeros(len(unit), np.bool_)
        ids, order = self.ids[operator], self.order[operator]
        at = np.minimum(np.searchsorted(ids, unit, sorter=order), len(ids) - 1)
        number = order[at]
        return number + self.first[operator], np.asarray(ids[number] == unit)

    def look_up(self, values: Mapping[str, tuple[U64, F64]]) -> F64:
        """A number per unit; 0 for those without one."""
        found = np.zeros(len(self.home))
        for operator, (unit, value) in values.items():
            number, known = self.find(operator, unit)
            np.add.at(found, number[known], value[known])
        return found

    def spread(self, by_operator: Mapping[str, float]) -> F64:
        """A number per operator, for each of its units."""
        return np.array([by_operator[name] for name in self.operators])[self.operator]

    def owners(self, node: I32, operator: str) -> I32:
        """Of an allocation, the part of one operator, as its table wants it."""
        start = self.first[operator]
        return node[start : start + len(self.ids[operator])]


def _key_name(operator: str, h: int, text: str | None) -> str:
    return f"{operator} key #{h:016x}" if text is None else f"{operator} key {text!r}"
