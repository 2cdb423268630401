"""Max: the largest value of a column per key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from headgate.operator.extreme import Extreme


@dataclass(frozen=True)
class Max(Extreme):
    """Keep the largest value of `column` for every key, in the column's own type.

    Takes numbers, dates, times, strings and binary (compared byte by byte). Nulls are skipped;
    nothing but nulls gives null. NaN counts as larger than any number, as in Spark. Costs one
    value of state per key and about 50 ns per row (text: a sort of the distinct values). Mergeable.

    Examples:
        >>> Max("price", name="highest")
        Max(column='price', emit='updates', name='highest', window=None)
    """

    name: str = "max"
    largest: ClassVar[bool] = True
