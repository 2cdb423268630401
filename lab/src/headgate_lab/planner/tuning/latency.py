"""The highest throughput that is predicted to stay within a latency.

First all steps alike: batches of at most so many rows, instances for so much more than the rate,
each as far as it makes rows earlier. Then step by step (`climb`): is there a configuration for a
higher share of the rate, at the least, that is in time? The more has to get through, the later rows
are at best, so the highest such share is found by halving.

The result is never more than 1 % below the best of all steps alike. Otherwise nothing is proved: a
climb may end in a low place that is not the lowest. Of 2,307 random flows of up to three steps
whose target could be met, all met it, and one had more than 5 % (7 %) less throughput than brute
force over 16 sizes of batches found.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from headgate.planner.tuning.cost_model import ROUNDING, EngineCosts, FlowModel
from headgate.planner.tuning.prediction import Configuration
from headgate_lab.planner.tuning.climb import Climb
from headgate_lab.planner.tuning.sharing import capped, largest_batch, shared
from headgate_lab.planner.tuning.trials import Point, Trials

HEADROOMS = (1.0, 1.1, 1.25, 1.5, 2.0)  # then twice as much each time
STOPS_FALLING = 1e-3  # of the latency, by twice the instances
CLOSE = 1.01  # shares of the rate that are no more apart than this are the same
NEARLY = 1.05  # where the target is out of reach, the lowest latency is neared so far
ROUNDS_MAX = 100  # of all climbs to less latency together
LAST_ROUNDS_MAX = 40  # of those to a larger share and to fewer instances
STARTS_MAX = 5  # of climbs to the lowest latency, for one share of the rate


def fastest_in_time(
    flow: FlowModel,
    costs: EngineCosts,
    *,
    instances: int | None,
    cores: float | None,
    target_s: float,
) -> Configuration:
    """Within the target the most rows, then the fewest instances.

    If no configuration within the target is found, the same for 5 % more than the lowest latency
    that is: the last instances buy next to nothing.
    """
    target_s *= 1 - ROUNDING  # sums in another order are still within it
    trials = Trials(flow, costs, cores)
    climb = Climb(trials, instances, ROUNDS_MAX)
    known = list(_alike(trials, costs, instances, cores, target_s))
    if not _in_time(known, target_s):
        known += _lowest(climb, known, target_s)
        if not _in_time(known, target_s):
            target_s = NEARLY * min(at.latency_s for at in known)
    best = _raised(climb, known, target_s)
    last = Climb(trials, instances, LAST_ROUNDS_MAX)
    best = last.to_fewer(last.to_share(best, target_s), target_s)
    return trials.configuration(best)


def _in_time(known: list[Point], target_s: float) -> list[Point]:
    return [at for at in known if at.latency_s <= target_s]


def _lowest(climb: Climb, known: list[Point], target_s: float, share: float = 0.0) -> list[Point]:
    """Climbs to the lowest latency for such a share, until one is in time, which is the last."""
    found: list[Point] = []
    for start in sorted(known, key=lambda at: at.latency_s)[:STARTS_MAX]:
        found.append(climb.to_latency(start, share, target_s))
        if found[-1].latency_s <= target_s:
            break
    return found


def _raised(climb: Climb, known: list[Point], target_s: float) -> Point:
    """A larger and larger share within the target, from what is known to let that much through."""
    best = max(_in_time(known, target_s), key=_merit)
    wanted = too_much = max(at.share for at in known)
    while too_much > CLOSE * best.share and climb.rounds > 0:
        enough = [at for at in known if at.share >= wanted * (1 - ROUNDING)]
        found = _lowest(climb, enough, target_s, wanted)
        known += found
        if found[-1].latency_s <= target_s:
            best = max(best, found[-1], key=_merit)
        else:
            too_much = wanted
        wanted = math.sqrt(best.share * too_much)
    return best


def _merit(at: Point) -> tuple[float, ...]:
    return round(math.log(at.share), 6), -int(at.dop.sum()), -at.latency_s


def _alike(
    trials: Trials,
    costs: EngineCosts,
    instances: int | None,
    cores: float | None,
    target_s: float,
) -> Iterator[Point]:
    """Every cap of batches with every headroom that may be worth it.

    From large caps to small ones: with smaller batches no more rows get through. So once one is in
    time, caps that let less through need not be looked at.
    """
    flow = trials.flow
    most = max(largest_batch(flow, costs, name) for name in flow.order)
    in_time = 0.0
    for cap in (2**k for k in reversed(range(most.bit_length() + 1))):
        limited = capped(flow, costs, cap)
        before: Point | None = None
        for headroom in _headrooms():
            tried = shared(flow, costs, limited, instances, cores, headroom)
            at = trials.point(trials.column(tried.dop), trials.column(tried.batch_rows))
            yield at
            if headroom == 1.0 and in_time > at.share + 1e-6:
                return
            if at.latency_s <= target_s:
                in_time = max(in_time, at.share)
            falls = before is None or at.latency_s < (1 - STOPS_FALLING) * before.latency_s
            if headroom > HEADROOMS[-1] and (not falls or at.latency_s <= target_s):
                break
            before = at


def _headrooms() -> Iterator[float]:
    yield from HEADROOMS
    yield from (HEADROOMS[-1] * 2.0**k for k in itertools.count(1))
