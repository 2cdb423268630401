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

from headgate.simulator.faults import Weather
from headgate.simulator.shape import Address


class Network:
    """What is under way, and when it arrives."""

    def __init__(self, rng: random.Random, weather: Weather) -> None:
        self.weather = weather
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
        self.at(arrival, arrive, *args)
        if self.weather.duplicate and self._random() < self.weather.duplicate:
            self.doubled += 1
            self.at(self.now + self._delay(sender, receiver), arrive, *args)

    def arrival(self, sender: Address, receiver: Address) -> float | None:
        """When a datagram sent now arrives; None if never."""
        if self.weather.loss and self._random() < self.weather.loss:
            self.lost += 1
            return None
        return self.now + self._delay(sender, receiver)

    def _delay(self, sender: Address, receiver: Address) -> float:
        weather, random_number = self.weather, self._random
        pair = (sender, receiver)
        typical = self._typical.get(pair)
        if typical is None:
            typical = 1 + 3 * random_number()
            if sender.operator == receiver.operator:
                typical *= 1 + 9 * random_number()  # siblings send each other state, not tuples
            if random_number() < weather.slow_links:
                typical *= 6
            self._typical[pair] = typical
        delay = typical * (0.2 + 1.6 * random_number())
        if weather.straggler and random_number() < weather.straggler:
            delay *= 12
        return delay
