"""The manager of a real flow at work in the simulator.

What decides here is what decides on Spark, `headgate.control.placement.KeyPlacement`, with its
planners, budgets and hash fallback; only what brings it statistics and carries its tables to the
instances is another engine. It forgets all when its process crashes, as a driver does.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

import numpy as np

from headgate.control.placement import KeyPlacement
from headgate.control.settings import Manager, PlannerSettings
from headgate.planner.placing import KeyLoads, Observation, Pairs, Task
from headgate.routing.table import RoutingTable
from headgate_lab.simulator.manager import Pairs as CountedPairs
from headgate_lab.simulator.plan import Router
from headgate_lab.simulator.shape import Shape

MOVES_MAX = 6  # few, so that a plan is spread over several reconfigurations


class DecidingPlanner:
    """Answers the simulated manager with what the real one decides."""

    def __init__(self, shape: Shape, planner: str, seed: int) -> None:
        slots = set(shape.stateful.values())
        assert len(slots) == 1, "the real manager gives every operator one instance per slot"
        self._slots = slots.pop()
        settings = Manager(
            planner, born_local=False, tuning=PlannerSettings(moves_max=MOVES_MAX, seed=seed)
        )
        self._manager = KeyPlacement(_task(shape, settings, self._slots), settings)
        self._turn = 0

    def __call__(self, routers: Mapping[str, Router], pairs: CountedPairs) -> Mapping[str, Router]:
        tables = {name: router.table for name, router in routers.items()}
        self._turn += 1
        decision = self._manager.plan(self._observation(tables, pairs), tables)
        return {
            name: Router(decision.tables[name], router.known) if name in decision.tables else router
            for name, router in routers.items()
        }

    def _observation(
        self, tables: Mapping[str, RoutingTable], counted: CountedPairs
    ) -> Observation:
        by_edge: dict[tuple[str, str], list[tuple[int, int, int]]] = defaultdict(list)
        for (producer, key, consumer, next_key), rows in sorted(counted.items()):
            by_edge[producer, consumer].append((key, next_key, rows))
        loads = {name: _loads(name, by_edge, table) for name, table in tables.items()}
        return Observation(
            epoch=self._turn,
            epochs=1,
            rows=sum(counted.values()),
            now_ms=0,
            pairs={edge: _columns(found) for edge, found in sorted(by_edge.items())},
            loads=loads,
            slot_rows={
                name: np.bincount(found.slot, found.rows, self._slots).astype(np.float64)
                for name, found in loads.items()
            },
        )


def _task(shape: Shape, settings: Manager, slots: int) -> Task:
    return Task(
        operators=tuple(shape.stateful),
        edges=shape.key_pairs,
        slots=slots,
        alpha=settings.alpha,
        pins_max=settings.tuning.pins_max,
        moves_max=settings.moves_max,
        born_local=frozenset(),
        memory_epochs=settings.tuning.memory_epochs,
        seed=settings.tuning.seed,
    )


def _columns(found: list[tuple[int, int, int]]) -> Pairs:
    a, b, rows = zip(*found, strict=True)
    return Pairs(np.array(a, np.uint64), np.array(b, np.uint64), np.array(rows, np.float64))


def _loads(
    name: str,
    by_edge: Mapping[tuple[str, str], list[tuple[int, int, int]]],
    table: RoutingTable,
) -> KeyLoads:
    """Rows per key; an operator on several edges is counted on the one that shows most."""
    rows: Counter[int] = Counter()
    for (producer, consumer), found in by_edge.items():
        for side in (0, 1):
            if name == (producer, consumer)[side]:
                seen: Counter[int] = Counter()
                for pair in found:
                    seen[pair[side]] += pair[2]
                rows |= seen
    h = np.array(sorted(rows), np.uint64)
    return KeyLoads(h, np.array([rows[k] for k in h.tolist()], np.float64), table.route(h))
