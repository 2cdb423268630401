"""Join what the tasks of some epochs counted into one observation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from headgate.commit.planning import Observed
from headgate.planner.placing import KeyLoads, Observation, Pairs
from headgate.routing.space_saving import PairSketch

F64 = np.float64


def gather(observed: Sequence[Observed], pairs_max: int) -> Observation:
    """All tasks of all these epochs together; at most `pairs_max` pairs an edge are kept.

    The slot of a key is that with most of its rows, the lowest of equals.
    """
    pairs: dict[tuple[str, str], PairSketch] = {}
    by_slot: dict[str, dict[int, PairSketch]] = {}
    labels: dict[str, dict[int, str]] = {}
    for task in (task for epoch in observed for task in epoch.statistics):
        for edge, sketch in task.pairs.items():
            _add(pairs.setdefault(edge, PairSketch(pairs_max)), sketch)
        for operator, sketch in task.loads.items():
            slots = by_slot.setdefault(operator, {})
            _add(slots.setdefault(task.slot, PairSketch(pairs_max)), sketch)
        for operator, texts in task.labels.items():
            labels.setdefault(operator, {}).update(texts)
    last = observed[-1].facts
    return Observation(
        epoch=last.epoch,
        epochs=len(observed),
        rows=sum(epoch.facts.rows for epoch in observed),
        now_ms=last.now_ms,
        pairs={edge: Pairs(s.a, s.b, s.count) for edge, s in sorted(pairs.items())},
        loads={operator: _loads(slots) for operator, slots in sorted(by_slot.items())},
        slot_rows=_slot_rows(observed),
        labels=labels,
        locality=_mean_locality(observed),
        hosts=last.engine.hosts,
    )


def _add(total: PairSketch, part: PairSketch) -> None:
    total.merge(part)


def _loads(by_slot: dict[int, PairSketch]) -> KeyLoads:
    h = np.concatenate([s.a for s in by_slot.values()])
    rows = np.concatenate([s.count for s in by_slot.values()])
    slot = np.concatenate([np.full(len(s), n, np.int32) for n, s in by_slot.items()])
    order = np.lexsort((slot, -rows, h))
    h, rows, slot = h[order], rows[order], slot[order]
    keys, first = np.unique(h, return_index=True)
    total = np.add.reduceat(rows, first) if len(first) else rows
    return KeyLoads(keys, total, slot[first])


def _slot_rows(observed: Iterable[Observed]) -> dict[str, np.ndarray[tuple[int], np.dtype[F64]]]:
    total: dict[str, np.ndarray[tuple[int], np.dtype[F64]]] = {}
    for epoch in observed:
        for operator, rows in epoch.facts.loads.items():
            seen = np.asarray(rows, F64)
            before = total.get(operator)
            same = before is not None and len(before) == len(seen)
            total[operator] = before + seen if same and before is not None else seen
    return total


def _mean_locality(observed: Sequence[Observed]) -> float | None:
    """Over the rows between slots, not the epochs: an empty epoch says nothing."""
    local = remote = 0
    for epoch in observed:
        for edge in epoch.facts.edges.values():
            if edge.between_slots:
                local += edge.local_rows
                remote += edge.remote_rows
    return local / (local + remote) if local + remote else None
