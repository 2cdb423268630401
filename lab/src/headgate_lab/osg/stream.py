"""A stream of tuples over k instances with queues, in virtual time: who gets which tuple?

Tuples arrive at random with a mean rate that keeps the instances busy to `load`; a tuple takes
what its author's reach costs, times the instance's speed, times some noise. An instance takes its
tuples in the order they were sent. A tuple's completion time runs from its arrival to its end.
The costs and speeds may change once, in the middle. Pure: equal seeds, equal results.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from headgate.arrays import F64, I32
from headgate.routing.hashing import mix
from headgate.slot.cost_shuffle import round_robin
from headgate_lab.osg.online import Online, OnlineSettings
from headgate_lab.osg.reach import FollowerGraph
from headgate_lab.osg.stream_kernel import (
    finish_times,
    least_work,
    load_aware,
    shorter_of_two,
)

NOISE = 0.1  # relative standard deviation of a tuple's time
STORM_LOOKS_MS, STORM_QUEUE = 1_000.0, 128


@dataclass(frozen=True)
class Stream:
    """Tuples in order of arrival; `spent_ms[i, j]` is what tuple i takes in instance j."""

    author: I32
    arrival_ms: F64
    spent_ms: F64
    seed: int

    @property
    def instances(self) -> int:
        return int(self.spent_ms.shape[1])


def stream(
    graph: FollowerGraph,
    cost_ms: F64,
    *,
    tuples: int,
    instances: int,
    load: float,
    seed: int,
    changed_cost_ms: F64 | None = None,
    changed_speed: F64 | None = None,
) -> Stream:
    """Draw a stream; the changed costs and speeds hold from the middle on.

    The rate is that of the instances before the change.
    """
    draw = np.random.default_rng([seed, instances])
    author = graph.authors(tuples, seed)
    mean_ms = float((graph.shares * cost_ms).sum())
    gap_ms = draw.exponential(mean_ms / (load * instances), tuples)
    spent = cost_ms[author].copy()
    speed = np.ones((tuples, instances))
    half = tuples // 2
    if changed_cost_ms is not None:
        spent[half:] = changed_cost_ms[author[half:]]
    if changed_speed is not None:
        speed[half:] = changed_speed
    spent *= np.exp(draw.normal(-(NOISE**2) / 2, NOISE, tuples))
    return Stream(author, np.cumsum(gap_ms), spent[:, None] * speed, seed)


Policy = Callable[[Stream], I32]


def completion_ms(what: Stream, target: I32) -> F64:
    """Of every tuple, from its arrival to its end."""
    free = np.zeros(what.instances)
    end: F64 = finish_times(what.arrival_ms, what.spent_ms, target, free)
    return end - what.arrival_ms


# --- policies ----------------------------------------------------------------------------------
def one_after_the_other(what: Stream) -> I32:
    """Round robin, as Storm's shuffle grouping and Spark's repartition do it."""
    return round_robin(0, len(what.author), what.instances)


def at_random(what: Stream) -> I32:
    draw = np.random.default_rng([what.seed, 11])
    drawn: I32 = draw.integers(0, what.instances, len(what.author)).astype(np.int32)
    return drawn


def local(what: Stream) -> I32:
    """Local or shuffle: a tuple stays where it was read; sources are partitioned by author."""
    place = mix(what.author.astype(np.uint64)) % np.uint64(what.instances)
    stayed: I32 = place.astype(np.int32)
    return stayed


def power_of_two(what: Stream) -> I32:
    draw = np.random.default_rng([what.seed, 12])
    first, second = draw.integers(0, what.instances, (2, len(what.author)))
    target: I32 = shorter_of_two(what.arrival_ms, what.spent_ms, first, second)
    return target


def storm_load_aware(what: Stream) -> I32:
    draw = np.random.default_rng([what.seed, 13]).random(len(what.author))
    target: I32 = load_aware(what.arrival_ms, what.spent_ms, draw, STORM_LOOKS_MS, STORM_QUEUE)
    return target


def all_known(what: Stream) -> I32:
    """The bound: queues and times are known exactly."""
    target: I32 = least_work(what.arrival_ms, what.spent_ms, np.zeros(what.instances))
    return target


SCHEDULERS: dict[str, OnlineSettings] = {
    # The paper's: least cumulated time, sketches of each instance by itself, synchronisation by
    # request and answer.
    "osg_paper": OnlineSettings(settle="request", clock=False, ahead=False, pooled=False),
    "osg_cumulated": OnlineSettings(settle="request", clock=False),  # ours, the paper's accounts
    "osg": OnlineSettings(),
    "osg_each": OnlineSettings(settle_rows=1),  # an answer per tuple, as Storm acknowledges them
}


def scheduled(what: Stream, name: str, **changed: Any) -> Online:
    """Online Shuffle Grouping with the sketches and the stability that flows run with."""
    settings = replace(SCHEDULERS[name], **changed)
    return Online(what.author, what.arrival_ms, what.spent_ms, settings)


POLICIES: dict[str, Policy] = {
    "round_robin": one_after_the_other,
    "random": at_random,
    "local_or_shuffle": local,
    "power_of_two": power_of_two,
    "load_aware": storm_load_aware,
    "osg_paper": lambda what: scheduled(what, "osg_paper").run(),
    "osg_cumulated": lambda what: scheduled(what, "osg_cumulated").run(),
    "osg": lambda what: scheduled(what, "osg").run(),
    "osg_each": lambda what: scheduled(what, "osg_each").run(),
    "all_known": all_known,
}
