"""One seed, one run, one report: `simulate(seed)`.

The seed draws everything: topology, tuples, plans, delays, losses and crashes. A run ends when
nothing is left to happen; it fails if the oracle objects, a machine breaks or it never ends.
"""

from __future__ import annotations

import gc
import random
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from headgate_lab.simulator.cluster import GAP, Cluster, Line, Parts
from headgate_lab.simulator.faults import CRASHING_INSTANCE, CRASHING_MANAGER, Faults, draw_faults
from headgate_lab.simulator.manager import Planner
from headgate_lab.simulator.message import ReconfigurationDue, SnapshotDue
from headgate_lab.simulator.oracle import Violation
from headgate_lab.simulator.shape import MANAGER, Shape, Wiring, draw_shape
from headgate_lab.simulator.trace import Event
from headgate_lab.simulator.workload import SeededPlanner, draw_logs, first_plan

EVENTS_MAX = 100_000
TAIL = 40
SEEDED = "seeded"
SOUND = Parts()


@dataclass(frozen=True)
class Report:
    """How a run went."""

    seed: int
    topology: str
    instances: int
    violation: str | None
    figures: Counter[str]
    trace: list[Event] = field(repr=False)
    operator: str | None = None  # where it went wrong, and with which tuple, if known
    tuple_id: int | None = None

    @property
    def ok(self) -> bool:
        return self.violation is None

    def story(self) -> list[Event]:
        """The part of the trace that has to do with the violation."""
        return [event for event in self.trace if event.concerns(self.tuple_id, self.operator)]


def simulate(
    seed: int,
    *,
    topology: str = "any",
    faults: str | Faults = "all",
    planner: str = "seeded",
    tuples: int = 40,
    parts: Parts = SOUND,
    whole_trace: bool = False,
) -> Report:
    """Run one seed to its end. The same arguments always give the same run.

    `faults` is a profile (`all`, `none`, `network`, `crash`) or a fault plan of one's own, which
    serves for one run. `planner` is `seeded`, which draws plans to be as troublesome as can be, or
    one of the real manager's (`headgate`, `online`, ...), which then decides as it does on Spark.
    A run of the default size is some 600 events, a few milliseconds.
    """
    rng = random.Random(seed)
    shape = draw_shape(topology, rng)
    make_planner: Callable[[], Planner] = partial(SeededPlanner, rng)
    if planner != SEEDED:
        shape, make_planner = _decided(shape, planner, seed)
    wiring = Wiring(shape)
    trace: deque[Line] = deque(maxlen=None if whole_trace else TAIL)
    cluster = Cluster(
        wiring,
        draw_logs(wiring, rng, tuples),
        first_plan(wiring),
        make_planner,
        draw_faults(faults, rng) if isinstance(faults, str) else faults,
        rng,
        parts,
        trace,
    )
    _schedule(cluster, rng, tuples)
    with _no_collector():
        events, found = _run(cluster)
    return Report(
        seed,
        wiring.shape.name,
        len(wiring.instances),
        None if found is None else str(found),
        _figures(cluster, events, tuples),
        [Event(*line) for line in trace],
        None if found is None else found.operator,
        None if found is None else found.tuple_id,
    )


def _decided(shape: Shape, planner: str, seed: int) -> tuple[Shape, Callable[[], Planner]]:
    """The shape as the real manager knows flows, and that manager. Imported late: it compiles."""
    from headgate_lab.simulator.deciding import DecidingPlanner

    shape = shape.with_slots(max(shape.stateful.values()))
    return shape, partial(DecidingPlanner, shape, planner, seed)


def _schedule(cluster: Cluster, rng: random.Random, tuples: int) -> None:
    """When reconfigurations and snapshots are due: while there is a stream to disturb."""
    span = GAP * tuples / len(cluster.wiring.sources)
    for _ in range(rng.randint(1, 3)):
        cluster.network.at(0.8 * span * rng.random(), cluster.tell, MANAGER, ReconfigurationDue())
    for _ in range(rng.randint(0, 2)):
        cluster.network.at(span * rng.random(), cluster.tell, MANAGER, SnapshotDue())


@contextmanager
def _no_collector() -> Iterator[None]:
    """A run makes no cycles worth collecting on the way; looking for them takes a sixth of it."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _run(cluster: Cluster) -> tuple[int, Violation | None]:
    """Events handled, and what went wrong, if anything."""
    events = 0
    step = cluster.network.step
    try:
        while step():
            events += 1
            if events == EVENTS_MAX:
                raise Violation(f"not at its end after {events:,} events")
        cluster.oracle.check_end(cluster.instances, cluster.idle)
    except Violation as found:
        return events, found
    except Exception:
        return events, Violation("a machine broke: " + traceback.format_exc(limit=-3))
    return events, None


def _figures(cluster: Cluster, events: int, tuples: int) -> Counter[str]:
    oracle, network = cluster.oracle, cluster.network
    figures = Counter({kind.__name__: count for kind, count in cluster.sent.items()})
    figures.update(oracle.tally)
    figures.update({f"crash at {kind}": count for kind, count in cluster.crashes.items()})
    figures.update(
        runs=1,
        events=events,
        messages=cluster.sent.total(),
        tuples=tuples,
        frames_lost=network.lost,
        frames_doubled=network.doubled,
        frames_repeated=cluster.repeated,
        frames_fenced=cluster.fenced,
        instance_crashes=sum(cluster.crashes[kind] for kind in CRASHING_INSTANCE),
        manager_crashes=sum(cluster.crashes[kind] for kind in CRASHING_MANAGER),
        keys_moved_again=sum(count > 1 for count in oracle.moves.values()),
    )
    return figures
