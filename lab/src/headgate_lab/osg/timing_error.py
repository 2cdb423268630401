"""How far estimates are from true costs, by how rows were timed: one by one, or vectorised.

The parts, their timing and what is learnt of them are those of flows (`headgate.slot.cost_timing`);
only the clock is not: a part takes what its rows truly take. An error of 0.2 is a mean deviation of
a fifth of the mean cost, over authors as they tweet.
"""

from __future__ import annotations

import numpy as np

from headgate.arrays import F64, U64
from headgate.routing.costs import CostModel, CostSketch, SketchShape
from headgate.routing.hashing import group_rows, mix
from headgate.routing.instance_costs import InstanceCosts
from headgate.slot.cost_shuffle import round_robin
from headgate.slot.cost_timing import PARTS_MAX, Measured, parts_of
from headgate_lab.osg.reach import FollowerGraph

ROWS, INSTANCES = 1_000, 4  # of an epoch, spread round robin


def timing_error(
    graph: FollowerGraph, cost_ms: F64, *, rows: int, epsilon: float, seed: int = 7
) -> dict[str, dict[str, float]]:
    """By way of timing and rows seen so far (doubling), how far estimates are off."""
    return {
        way: _followed(graph, cost_ms, rows, epsilon, seed, vectorised)
        for way, vectorised in (("per_row", False), ("vectorised", True))
    }


def _followed(
    graph: FollowerGraph, cost_ms: F64, rows: int, epsilon: float, seed: int, vectorised: bool
) -> dict[str, float]:
    shape = SketchShape.within(epsilon)
    instances = [InstanceCosts(shape) for _ in range(INSTANCES)]
    everyone = mix(np.arange(graph.nodes, dtype=np.uint64))
    model: CostModel | None = None
    found: dict[str, float] = {}
    due = 4 * ROWS
    for epoch in range(rows // ROWS):
        author = graph.authors(ROWS, seed * 10_000 + epoch)
        target, news = round_robin(epoch, ROWS, INSTANCES), False
        for slot, instance in enumerate(instances):
            mine = author[target == slot]
            h, spent = everyone[mine], cost_ms[mine]
            if vectorised:
                sketch = _in_parts(h, spent, model, slot, epoch, shape)
            else:
                sketch = CostSketch(shape)
                sketch.update(h, spent)
            news |= instance.add(sketch)
        if news:
            empty = CostSketch(shape)
            model = CostModel.of([instance.sent or empty for instance in instances])
        if (epoch + 1) * ROWS >= due and model is not None:
            off = np.abs(model.times_ms(everyone) - cost_ms[:, None]).mean(axis=1)
            found[str(due)] = float((off * graph.shares).sum() / (cost_ms * graph.shares).sum())
            due *= 2
    return found


def _in_parts(
    h: U64, spent_ms: F64, model: CostModel | None, slot: int, epoch: int, shape: SketchShape
) -> CostSketch:
    """What an instance learns of rows that a vectorised function took part by part."""
    group, first = group_rows(h)
    value, count = h[first], np.bincount(group).astype(np.float64)
    work_ms, seen = np.ones(len(value)), np.zeros(len(value))
    if model is not None:
        work_ms, seen = np.maximum(model.times_ms(value)[:, slot], 1e-6), model.seen(value)
    drawn = mix(value ^ mix(np.array([epoch * 4096 + slot], np.uint64)))
    part = parts_of(work_ms, count, seen, drawn, PARTS_MAX)
    measured = Measured(in_parts=True)
    measured.open(value, count, work_ms, part)
    measured.part_ms += np.bincount(part[group], spent_ms, len(measured.part_ms))
    sketch: CostSketch = measured.sketched(shape)
    return sketch
