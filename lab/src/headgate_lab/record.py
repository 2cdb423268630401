"""Measurements that can be checked: raw runs first, medians derived, the machine named.

Contestants of a comparison take turns in alternating order, so a machine that slows down or warms
up meets all of them alike.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from headgate.demo import Machine


def work_folder() -> tempfile.TemporaryDirectory[str]:
    """For a comparison's files; figures are told even if Spark still writes there at the end."""
    return tempfile.TemporaryDirectory(prefix="headgate-bench-", ignore_cleanup_errors=True)


@dataclass(frozen=True)
class Measurement:
    """One contestant's runs: each took `seconds[i]` for `rows` rows.

    Examples:
        >>> Measurement("count", rows=100, seconds=(1.0, 2.0, 4.0)).rows_per_second
        50.0
    """

    name: str
    rows: int
    seconds: tuple[float, ...]
    machine: Machine = field(default_factory=Machine.here)

    @property
    def rows_per_second(self) -> float:
        """Of the median run."""
        return self.rows / median(self.seconds)

    def to_json(self) -> str:
        return json.dumps(asdict(self) | {"rows_per_second": self.rows_per_second}, indent=2)

    @classmethod
    def from_json(cls, text: str) -> Measurement:
        """The measurement that `to_json` wrote; the median is derived again from the raw runs."""
        fields: dict[str, Any] = json.loads(text)
        return cls(
            name=fields["name"],
            rows=fields["rows"],
            seconds=tuple(fields["seconds"]),
            machine=Machine(**fields["machine"]),
        )


@dataclass(frozen=True)
class SideBySide:
    """Raw numbers of every contestant, by round, and the order in which they were taken."""

    raw: dict[str, tuple[float, ...]]
    order: tuple[tuple[str, ...], ...]

    @property
    def medians(self) -> dict[str, float]:
        return {name: median(values) for name, values in self.raw.items()}

    def measurement(self, name: str, *, rows: int) -> Measurement:
        """One contestant's record, if its numbers are seconds for `rows` rows."""
        return Measurement(name, rows, self.raw[name])


Progress = Callable[[int, str, float], object]
"""Called after each run with round (from 0), contestant and its number."""


def side_by_side(
    contestants: Mapping[str, Callable[[], float]],
    rounds: int,
    progress: Progress | None = None,
    *,
    rotate: bool = False,
) -> SideBySide:
    """Run every contestant once per round: forward, backward, forward ...

    With `rotate`, the order is shifted by one from round to round: over as many rounds as there
    are contestants everyone has every place once, and not always behind the same one. For
    contestants that leave something behind which the next one feels.

    A contestant returns its own number (seconds, as a rule), so that it can leave out its setup.
    An exception of a contestant ends the comparison: there are no medians of some of the rounds.

    Examples:
        >>> turns = side_by_side({"a": lambda: 1.0, "b": lambda: 2.0}, rounds=2)
        >>> turns.order, turns.medians
        ((('a', 'b'), ('b', 'a')), {'a': 1.0, 'b': 2.0})
        >>> side_by_side({n: float for n in "abc"}, rounds=3, rotate=True).order
        (('a', 'b', 'c'), ('b', 'c', 'a'), ('c', 'a', 'b'))
    """
    if rounds < 1:
        raise ValueError(f"a comparison needs at least one round, not {rounds}")
    raw: dict[str, list[float]] = {name: [] for name in contestants}
    order: list[tuple[str, ...]] = []
    for turn in range(rounds):
        names = (
            _shifted(tuple(contestants), turn) if rotate else tuple(contestants)[:: (-1) ** turn]
        )
        for name in names:
            raw[name].append(contestants[name]())
            if progress is not None:
                progress(turn, name, raw[name][-1])
        order.append(names)
    return SideBySide({name: tuple(values) for name, values in raw.items()}, tuple(order))


def _shifted(names: tuple[str, ...], turn: int) -> tuple[str, ...]:
    """First, second, last, third, last but one, ..., all moved on by `turn`."""
    zigzag = [(place + 1) // 2 * (1 if place % 2 else -1) for place in range(len(names))]
    return tuple(names[(step + turn) % len(names)] for step in zigzag)
