"""When times change in mid-stream: how many windows until tuples are as fast as they can be.

Three changes: authors swap their costs, one instance becomes three times slower, both at once.
Windows of tuples are compared with how the same policy does long after the change. It has
recovered from the first window on after which no `CALM` windows in a row are slower than that by
more than `WITHIN`. A policy that ends slower than it began by more than the change explains
(round robin with a slow instance) never gets there, and its queues only grow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from headgate.arrays import F64
from headgate_lab.osg.reach import FollowerGraph
from headgate_lab.osg.stream import POLICIES, completion_ms, stream

WITHIN, CALM = 1.5, 4
CHANGES = ("costs", "slow_instance", "both")


@dataclass(frozen=True)
class RecoveryOptions:
    instances: int = 4
    load: float = 0.7
    tuples: int = 40_960
    window: int = 512
    slower: float = 3.0
    seeds: int = 3
    policies: tuple[str, ...] = (
        "round_robin",
        "power_of_two",
        "osg_paper",
        "osg",
        "all_known",
    )


def recover(graph: FollowerGraph, cost_ms: F64, options: RecoveryOptions) -> dict[str, Any]:
    """Per change and policy: windows until recovered (None: never), and mean times by window."""
    found: dict[str, Any] = {}
    for change in CHANGES:
        found[change] = {}
        for policy in options.policies:
            means = np.mean(
                [
                    _by_window(graph, cost_ms, options, change, policy, s)
                    for s in range(options.seeds)
                ],
                axis=0,
            )
            half = len(means) // 2
            found[change][policy] = {
                "recovery_windows": recovery_windows(means[half:]),
                "before_ms": float(np.median(means[half // 2 : half])),
                "worst_ms": float(means[half:].max()),
                "after_ms": float(np.median(means[half + half // 2 :])),
                "window_mean_ms": means.round(2).tolist(),
            }
    return found


def recovery_windows(mean_ms: F64) -> int | None:
    """The first window from which on it is calm; None if the last quarter still grows.

    Examples:
        >>> recovery_windows(np.array([9.0, 5.0, 1.2, 1.0, 1.0, 1.1, 1.0, 1.0]))
        2
        >>> recovery_windows(np.arange(8.0)) is None
        True
    """
    quarter = max(1, len(mean_ms) // 4)
    last, before = np.median(mean_ms[-quarter:]), np.median(mean_ms[-2 * quarter : -quarter])
    if last > WITHIN * before or last > np.median(mean_ms[:quarter]) * WITHIN:
        return None
    calm = mean_ms <= WITHIN * np.median(mean_ms[-2 * quarter :])
    for window in range(len(mean_ms)):
        if calm[window : window + CALM].all():
            return window
    return None


def _by_window(
    graph: FollowerGraph,
    cost_ms: F64,
    options: RecoveryOptions,
    change: str,
    policy: str,
    seed: int,
) -> F64:
    swapped = np.random.default_rng([seed, 21]).permutation(cost_ms)
    swapped *= (graph.shares * cost_ms).sum() / (graph.shares * swapped).sum()
    speed = np.ones(options.instances)
    speed[0] = options.slower
    what = stream(
        graph,
        cost_ms,
        tuples=options.tuples,
        instances=options.instances,
        load=options.load,
        seed=seed,
        changed_cost_ms=swapped if change != "slow_instance" else None,
        changed_speed=speed if change != "costs" else None,
    )
    took = completion_ms(what, POLICIES[policy](what))
    mean_ms: F64 = took.reshape(-1, options.window).mean(axis=1)
    return mean_ms
