"""How far apart slots are: same slot < same host < same rack < elsewhere.

Where balance forbids that two keys share a slot, a neighbour is still better than a stranger
(future work of Caneill et al. 2016). Each pair of slots has a distance class, each class a cost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from headgate.arrays import F64, I32
from headgate.errors import HeadgateError

if TYPE_CHECKING:  # a journal needs distances, and no compiler with them
    from headgate.planner.key_graph import KeyGraph

CLASSES = ("slot", "host", "rack", "elsewhere")
COSTS = (0.0, 1.0, 2.0, 4.0)  # of a row, by class; only their proportion counts


@dataclass(frozen=True)
class Distances:
    """`near[s, t]` is the distance class of two slots, `costs` the cost of a row per class."""

    near: I32
    costs: tuple[float, ...] = COSTS

    @classmethod
    def of(
        cls,
        hosts: Sequence[str],
        racks: Mapping[str, str] | None = None,
        costs: Sequence[float] = COSTS,
    ) -> Distances:
        """The distances of slots on these hosts; a host without a rack is in one of its own.

        Without `racks` all hosts share one rack. Costs must not fall with distance.
        """
        if len(costs) != len(CLASSES) or costs[0] != 0 or list(costs) != sorted(costs):
            raise HeadgateError(
                f"costs {tuple(costs)}: give four that do not fall, the first 0, for the classes "
                f"{', '.join(CLASSES)}"
            )
        rack_of = [("rack", racks.get(h)) if racks and h in racks else ("host", h) for h in hosts]
        if racks is None:
            rack_of = [("rack", None)] * len(hosts)
        host, rack = _numbers(list(hosts)), _numbers(rack_of)
        near = np.full((len(hosts), len(hosts)), 3, np.int32)
        near[rack[:, None] == rack[None, :]] = 2
        near[host[:, None] == host[None, :]] = 1
        np.fill_diagonal(near, 0)
        return cls(near, tuple(float(c) for c in costs))

    @property
    def slots(self) -> int:
        return len(self.near)

    @property
    def cost(self) -> F64:
        """Cost of a row between every two slots."""
        return np.asarray(self.costs)[self.near]

    @property
    def nearness(self) -> F64:
        """1 for the same slot down to 0 for the farthest class there is."""
        return 1.0 - self.cost / max(float(self.cost.max()), 1e-300)

    def weight_by_distance(self, graph: KeyGraph, slot: I32) -> F64:
        """Pair weight per distance class: same slot, host, rack, elsewhere."""
        near = self.near[slot[graph.u], slot[graph.v]]
        return np.bincount(near, graph.w, len(CLASSES)).astype(np.float64, copy=False)


def nearest_names(graph: KeyGraph, part: I32, distances: Distances) -> I32:
    """Name the parts so that those with much traffic between them are near each other.

    A solver's numbers mean nothing. Two names are swapped as long as that lowers the cost; each
    step takes the best swap, O(slots^3) a step on the traffic between parts.
    """
    slots, cost = distances.slots, distances.cost
    cell = part[graph.u].astype(np.int64) * slots + part[graph.v]
    traffic = np.bincount(cell, graph.w, slots * slots).reshape(slots, slots)
    traffic = traffic + traffic.T
    np.fill_diagonal(traffic, 0.0)
    name = np.arange(slots)
    for _ in range(4 * slots):
        between = cost[np.ix_(name, name)]
        # what part p pays under the name of part q, others unchanged
        pays = traffic @ between
        own = np.diag(pays)
        change = pays + pays.T - own[:, None] - own[None, :] + 2 * traffic * between
        p, q = np.unravel_index(int(np.argmin(change)), change.shape)
        if change[p, q] >= -1e-9 * max(traffic.sum(), 1.0):
            break
        name[[p, q]] = name[[q, p]]
    return name[part].astype(np.int32)


def _numbers(names: Sequence[object]) -> I32:
    seen: dict[object, int] = {}
    return np.array([seen.setdefault(name, len(seen)) for name in names], np.int32)
