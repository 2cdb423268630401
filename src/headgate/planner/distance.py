"""How far apart slots are: same slot < same host < same rack < elsewhere.

Where balance forbids that two keys share a slot, a neighbour is still better than a stranger
(future work of Caneill et al. 2016). Each pair of slots has a distance class, each class a cost:
given, or what networks are like.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from headgate.arrays import F64, I32, I64

CLASSES = ("slot", "host", "rack", "elsewhere")
COSTS = np.array([0.0, 1.0, 2.0, 4.0])  # of a row, by class; only their proportion counts


@dataclass(frozen=True)
class Distances:
    """`near[s, t]` is the distance class of two slots, `costs` what a row costs by class."""

    near: I32
    costs: F64 = field(default_factory=COSTS.copy)

    @classmethod
    def of(
        cls,
        hosts: Sequence[str],
        racks: Mapping[str, str] | None = None,
        costs: Mapping[str, float] | None = None,
    ) -> Distances:
        """The distances of slots on these hosts; a host without a rack is in one of its own.

        Without `racks` all hosts share one rack. `costs` are by class, in any unit.
        """
        given = [0.0, *(costs[name] for name in CLASSES[1:])] if costs else COSTS
        names = [f"rack {racks[h]}" if h in racks else f"host {h}" for h in hosts] if racks else []
        rack = np.unique(names or [""] * len(hosts), return_inverse=True)[1]
        host = np.unique(list(hosts), return_inverse=True)[1]
        near = np.where(rack[:, None] == rack, 2, 3)
        near[host[:, None] == host] = 1
        np.fill_diagonal(near, 0)
        return cls(near.astype(np.int32), np.array(given))

    @property
    def slots(self) -> int:
        return len(self.near)

    def hosts(self, slots: I64) -> list[str]:
        """A name for the host of each of these slots, the same for slots of one host."""
        return [str(first) for first in np.argmax(self.near <= 1, axis=1)[slots].tolist()]

    @property
    def cost(self) -> F64:
        """Cost of a row between every two slots."""
        return self.costs[self.near]

    @property
    def nearness(self) -> F64:
        """1 for the same slot down to 0 for the farthest class there is."""
        return 1.0 - self.cost / max(float(self.cost.max()), 1e-300)

    def worth(self, u: I64, v: I64, w: F64, slot: I32) -> float:
        """Share of these pairs' weight that is saved: all of a pair in one slot, none far apart."""
        total = float(w.sum())
        return float((self.nearness[slot[u], slot[v]] * w).sum()) / total if total else 0.0

    def weight_by_distance(self, u: I64, v: I64, w: F64, slot: I32) -> F64:
        """Weight of these pairs per distance class: same slot, host, rack, elsewhere."""
        near = self.near[slot[u], slot[v]]
        return np.bincount(near, w, len(CLASSES)).astype(np.float64, copy=False)
