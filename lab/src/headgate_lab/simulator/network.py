"""Simulated time and a network with moods, both from one seed.

The queue holds what is to happen, by time; equal times keep the order of scheduling, so a seed
always gives the same run. A datagram may be lost, doubled or late; each copy draws its own delay,
hence any two may overtake each other. Every ordered pair of processes has its own typical delay.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from headgate_lab.simulator.faults import Weather
from headgate_lab.simulator.shape import Address


class Network:
    """What is under way, and when it arrives."""

    def __init__(self, rng: random.Random, weather: Weather) -> None:
        self._loss, self._duplicate = weather.loss, weather.duplicate
        self._straggler, self._slow_links = weather.straggler, weather.slow_links
        self.now = 0.0
        self.lost = self.doubled = 0
        self._random = rng.random
        self._queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._scheduled = 0
        self._typical: dict[tuple[Address, Address], float] = {}

    def at(self, time: float, action: Callable[..., None], *args: Any) -> None:
        self._scheduled += 1
        heappush(self._queue, (time, self._scheduled, action, args))

    def after(self, delay: float, action: Callable[..., None], *args: Any) -> None:
        self.at(self.now + delay, action, *args)

    def step(self) -> bool:
        """Let the next thing happen; False if there is none."""
        if not self._queue:
            return False
        self.now, _, action, args = heappop(self._queue)
        action(*args)
        return True

    def post(
        self, sender: Address, receiver: Address, arrive: Callable[..., None], *args: Any
    ) -> None:
        """Send a datagram: the network calls `arrive` zero, one or two times."""
        arrival = self.arrival(sender, receiver)
        if arrival is None:
            return
        self._scheduled += 1
        heappush(self._queue, (arrival, self._scheduled, arrive, args))
        if self._duplicate and self._random() < self._duplicate:
            self.doubled += 1
            self.after(self._delay(sender, receiver), arrive, *args)

    def arrival(self, sender: Address, receiver: Address) -> float | None:
        """When a datagram sent now arrives; None if never."""
        if self._loss and self._random() < self._loss:
            self.lost += 1
            return None
        return self.now + self._delay(sender, receiver)

    def _delay(self, sender: Address, receiver: Address) -> float:
        typical = self._typical.get((sender, receiver))
        if typical is None:
            typical = self._typical[sender, receiver] = self._draw_typical(sender, receiver)
        delay = typical * (0.2 + 1.6 * self._random())
        if self._straggler and self._random() < self._straggler:
            delay *= 12
        return delay

    def _draw_typical(self, sender: Address, receiver: Address) -> float:
        typical = 1 + 3 * self._random()
        if sender.operator == receiver.operator:
            typical *= 1 + 9 * self._random()  # siblings send each other state, not tuples
        return typical * 6 if self._random() < self._slow_links else typical
