"""Aggregates of booleans: is a column true in any row of a key, or in all of them?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from headgate.operator.aggregates import Best
from headgate.operator.measure import Measure, Parts


@dataclass(frozen=True)
class Flag(Best):
    """The smallest or largest of booleans: false is less than true."""

    wanted = "a boolean"

    def takes(self, kind: pa.DataType) -> bool:
        return bool(pa.types.is_boolean(kind))


@dataclass(frozen=True)
class Any(Measure):
    """Is `column`, a boolean, true in any row of the key?

    Nulls are skipped; nothing but nulls gives null. A byte per key, about 50 ns per row. Mergeable.

    Examples:
        >>> Any("failed")
        Any(column='failed', emit='updates', name='any', window=None)
    """

    parts: ClassVar[Parts] = {"value": Flag(largest=True)}

    name: str = "any"


@dataclass(frozen=True)
class All(Measure):
    """Is `column`, a boolean, true in all rows of the key? As `Any` in all else.

    Examples:
        >>> All("passed")
        All(column='passed', emit='updates', name='all', window=None)
    """

    parts: ClassVar[Parts] = {"value": Flag(largest=False)}

    name: str = "all"
