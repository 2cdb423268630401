"""Min: the smallest value of a column per key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from headgate.operator.extreme import Extreme


@dataclass(frozen=True)
class Min(Extreme):
    """Keep the smallest value of `column` for every key, in the column's own type.

    Takes numbers, dates, times, strings and binary (compared byte by byte). Nulls are skipped;
    nothing but nulls gives null. NaN counts as larger than any number, as in Spark. Costs one
    value of state per key and about 50 ns per row (text: a sort of the distinct values). Mergeable.

    Examples:
        >>> Min("price")
        Min(column='price', emit='updates', name='min', window=None)
    """

    name: str = "min"
    largest: ClassVar[bool] = False
