"""Planners of other distributions, found by name: papers' planners come with `headgate-lab`.

A distribution registers a planner as an entry point; installing it is enough. The group says what a
planner places, and so how it is made:

    headgate.planners.keys      make(name, task: Task) -> Placing
    headgate.planners.units     make(clock=Clock, **own) -> Planner; `own`: settings given for it
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import Any, Literal

Kind = Literal["keys", "units"]

LAB: Mapping[Kind, tuple[str, ...]] = MappingProxyType(
    {
        "keys": ("offline", "online", "online-estimated", "online-kway", "worst-case"),
        "units": ("albic", "cola", "flux", "hash", "milp"),
    }
)
"""What `headgate-lab` registers; known here only to say so where it is not installed."""


def registered(*kinds: Kind) -> tuple[str, ...]:
    """The names that installed distributions have registered."""
    return tuple(sorted({name for kind in kinds for name in _points(kind)}))


def load(kind: Kind, name: str) -> Any:
    """What makes the registered planner of that name; its module is imported now."""
    return _points(kind)[name].load()


def why_unknown(name: str, own: Iterable[str], *kinds: Kind) -> str:
    """Why there is no planner of that name, and what there is or what to install."""
    known = ", ".join(dict.fromkeys((*own, *registered(*kinds))))
    if any(name in LAB[kind] for kind in kinds):
        return (
            f"planner {name!r} comes with headgate-lab, which is not installed; "
            f"pip install headgate-lab, or take one of {known}"
        )
    return f"no planner is called {name!r}; there are {known}"


@cache
def _points(kind: Kind) -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=f"headgate.planners.{kind}")}
