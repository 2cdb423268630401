"""What goes wrong, drawn from the seed: the network's weather and the crashes.

A crash strikes a process when it handles the n-th message of some kind, after a drawn number of
the resulting instructions: a manager may die between saving a plan and sending it, an instance
between its second MIGRATE and its third. Crashes are few per run, so every run comes to an end.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from headgate.errors import DeclarationError

CRASHING_INSTANCE = {
    "Data": 80,
    "Emit": 30,
    "GetMetrics": 20,
    "Hello": 15,
    "Marker": 20,
    "Migrate": 10,
    "Propagate": 40,
    "Restore": 15,
    "Resume": 15,
    "SendReconf": 25,
    "TakeSnapshot": 4,
}
CRASHING_MANAGER = {
    "AckReconf": 25,
    "Boot": 3,
    "Done": 25,
    "Lost": 3,
    "ReconfigurationDue": 3,
    "Restored": 15,
    "Resumed": 15,
    "SendMetrics": 25,
    "SnapshotDue": 3,
    "SnapshotPart": 20,
    "Welcome": 15,
}


@dataclass(frozen=True, slots=True)
class Weather:
    """Probabilities of what the network does to a datagram."""

    loss: float = 0.0
    duplicate: float = 0.0
    straggler: float = 0.0
    slow_links: float = 0.0


@dataclass(frozen=True, slots=True)
class Crash:
    """The process that handles the `nth` message of this kind dies after `after` instructions.

    If `acting`, only messages count that make the process do several things: the last answer
    that the manager waits for, the last PROPAGATE of an instance's predecessors.
    """

    kind: str
    nth: int
    after: int
    downtime: float
    acting: bool = False


@dataclass(slots=True)
class Faults:
    """The fault plan of one run."""

    weather: Weather = field(default_factory=Weather)
    crashes: tuple[Crash, ...] = ()
    _seen: Counter[tuple[str, bool]] = field(default_factory=Counter)
    _armed: dict[tuple[str, bool, int], Crash] = field(default_factory=dict)
    _kinds: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self._armed = {(c.kind, c.acting, c.nth): c for c in self.crashes}
        self._kinds = frozenset(c.kind for c in self.crashes)

    def strikes(self, kind: type[Any], instructions: int) -> Crash | None:
        """The crash that a message brings which was answered by so many instructions, if any."""
        name = kind.__name__
        return None if name not in self._kinds else self._strikes(name, instructions > 1)

    def _strikes(self, name: str, acts: bool) -> Crash | None:
        for acting in (False, True) if acts else (False,):
            self._seen[name, acting] += 1
            if crash := self._armed.pop((name, acting, self._seen[name, acting]), None):
                return crash
        return None


RECOVERING = ("Lost", "Restore", "Restored", "Resume", "Resumed")
RESTARTING = ("Boot", "Hello", "Welcome")


def _crashes(rng: random.Random) -> tuple[Crash, ...]:
    """None to three, and now and then another one while the first is being repaired."""
    drawn = []
    for _ in range(rng.choice((0, 1, 1, 2, 3))):
        at_manager = rng.random() < 0.4
        kinds = CRASHING_MANAGER if at_manager else CRASHING_INSTANCE
        kind = rng.choice(tuple(kinds))
        drawn.append(_crash(rng, kind, kinds[kind]))
        if rng.random() < 0.25:
            drawn.append(_crash(rng, rng.choice(RESTARTING if at_manager else RECOVERING), 6))
    return tuple(drawn)


def _crash(rng: random.Random, kind: str, latest: int) -> Crash:
    acting = rng.random() < 0.5
    nth = rng.randint(1, 2 if acting or kind in ("Boot", "Lost") else latest)
    return Crash(kind, nth, rng.choice((0, 1, 2, 3, 5, 99)), 5 + 60 * rng.random(), acting)


def _weather(rng: random.Random) -> Weather:
    return Weather(
        loss=rng.choice((0.0, 0.0, 0.02, 0.1)),
        duplicate=rng.choice((0.0, 0.0, 0.02, 0.1)),
        straggler=rng.choice((0.0, 0.01, 0.05)),
        slow_links=rng.choice((0.0, 0.1, 0.3)),
    )


PROFILES = ("all", "none", "network", "crash")


def draw_faults(profile: str, rng: random.Random) -> Faults:
    """Delays only (`none`), bad weather (`network`), crashes in fine weather (`crash`), `all`."""
    if profile not in PROFILES:
        known = ", ".join(PROFILES)
        raise DeclarationError(f"there are no faults {profile!r}; choose one of {known}")
    weather = _weather(rng) if profile in ("all", "network") else Weather()
    return Faults(weather, _crashes(rng) if profile in ("all", "crash") else ())
