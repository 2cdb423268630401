"""The workload of Rivetti et al. 2016: reach of tweets over a follower graph, generated.

About 10,000 people and 183,000 follower edges with heavy-tailed out-degrees, and a stream of tweet
authors whose most frequent one has a share of 0.0038. A tuple costs what following its author's
edges to depth 2 or 3 costs: between 0.01 and 70 ms, 20 ms on average and 65 ms for the most
frequent author, which are the paper's figures. Active authors have many followers, so frequent
tuples are dear ones. Everything follows from a seed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np

from headgate.arrays import F64, I32, I64

Neighbours = list[list[tuple[int, float]]]

NODES, EDGES, DEGREE_MAX = 9_960, 183_005, 734
COST_MS_MIN, COST_MS_MAX, COST_MS_MEAN = 0.01, 70.0, 20.0
TOP_SEEN = 0.87  # of the largest search: what the most frequent author's sees, about 65 ms
TOP_SHARE = 0.0038
NEAR_SHARE = 0.93  # of the edges: within a community


@dataclass(frozen=True)
class FollowerGraph:
    """Followers of node v are `followers[starts[v]:starts[v + 1]]`."""

    starts: I64
    followers: I32
    seed: int

    @property
    def nodes(self) -> int:
        return len(self.starts) - 1

    @cached_property
    def degrees(self) -> I64:
        return np.diff(self.starts)

    @cached_property
    def shares(self) -> F64:
        """How often each node tweets; the first has `TOP_SHARE`, the rest falls off slowly."""
        draw = np.random.default_rng([self.seed, 1])
        taste = self.degrees * draw.lognormal(0, 0.8, self.nodes) + 1.0
        rank = np.empty(self.nodes)
        rank[np.argsort(-taste, kind="stable")] = np.arange(1, self.nodes + 1)
        top, dear = int(rank.argmin()), int(np.abs(self._searched - TOP_SEEN).argmin())
        rank[top], rank[dear] = rank[dear], rank[top]
        low, high = 0.0, 1.0
        for _ in range(60):  # the power at which the largest share is the wanted one
            power = (low + high) / 2
            weight = rank**-power
            low, high = (power, high) if 1 / weight.sum() < TOP_SHARE else (low, power)
        weight = rank**-power
        share: F64 = weight / weight.sum()
        return share

    def authors(self, count: int, seed: int) -> I32:
        """A stream of authors."""
        draw = np.random.default_rng([self.seed, 2, seed])
        drawn: I32 = draw.choice(self.nodes, count, p=self.shares).astype(np.int32)
        return drawn

    def edges_seen(self, depth: int) -> I64:
        """How many edges each author's reach looks at. Imported late: workers need no numba."""
        from headgate_lab.osg.reach_kernel import edges_seen

        seen: I64 = edges_seen(self.starts, self.followers, depth)
        return seen

    @cached_property
    def _searched(self) -> F64:
        """How much of the largest search each author's is, in edges."""
        seen = self.edges_seen(3)
        share: F64 = seen / seen.max()
        return share

    def cost_ms(self, depth: int = 3) -> F64:
        """What a tuple of each author costs: a power of the edges that its search looks at, the one
        at which tuples of the stream take `COST_MS_MEAN` on average and 70 ms at most.
        """
        seen = self.edges_seen(depth)
        searched = seen / seen.max()
        low, high = 0.0, 4.0
        for _ in range(60):
            power = (low + high) / 2
            cost: F64 = COST_MS_MIN + (COST_MS_MAX - COST_MS_MIN) * searched**power
            low, high = (power, high) if (self.shares * cost).sum() > COST_MS_MEAN else (low, power)
        return cost

    def neighbours(self) -> Neighbours:
        """The graph as Python lists: a follower, and the chance that he passes a tweet on."""
        draw = np.random.default_rng([self.seed, 3])
        chance = draw.beta(1, 9, len(self.followers)).tolist()
        flat = list(zip(self.followers.tolist(), chance, strict=True))
        return [flat[a:b] for a, b in zip(self.starts[:-1], self.starts[1:], strict=True)]


@cache
def neighbours_of(nodes: int, edges: int, seed: int) -> Neighbours:
    """The lists of a generated graph, made once per process."""
    return follower_graph(nodes, edges, seed).neighbours()


def reach(author: int, depth: int, neighbours: Neighbours) -> float:
    """How many people a tweet reaches, as expected: plain Python, real work.

    A person hears of it unless no one whom he follows passes it on; the author does for sure.
    """
    heard = {author: 1.0}
    front = {author: 1.0}
    for _ in range(depth):
        silent: dict[int, float] = {}
        for person, sure in front.items():
            for follower, chance in neighbours[person]:
                silent[follower] = silent.get(follower, 1.0) * (1.0 - sure * chance)
        front = {}
        for person, missed in silent.items():
            if person not in heard:
                front[person] = heard[person] = 1.0 - missed
    return sum(heard.values()) - 1.0


def follower_graph(nodes: int = NODES, edges: int = EDGES, seed: int = 1) -> FollowerGraph:
    """A graph of the paper's size: lognormal out-degrees, most edges within a community."""
    draw = np.random.default_rng([seed, 0])
    wanted = draw.lognormal(0.0, 1.5, nodes)
    top = max(1, round(DEGREE_MAX * nodes / NODES))
    degrees = np.zeros(nodes, np.int64)
    scale = edges / wanted.sum()
    for _ in range(20):  # until there are so many edges, though none has more than the largest
        degrees = np.minimum(np.round(wanted * scale), top).astype(np.int64)
        scale *= edges / max(1, degrees.sum())
    starts = np.zeros(nodes + 1, np.int64)
    np.cumsum(degrees, out=starts[1:])
    source = np.repeat(np.arange(nodes), degrees)
    near = source + np.round(draw.normal(0, nodes / 60, len(source))).astype(np.int64)
    far = draw.integers(0, nodes, len(source))
    in_community = draw.random(len(source)) < NEAR_SHARE
    followers = np.where(in_community, near % nodes, far).astype(np.int32)
    return FollowerGraph(starts, followers, seed)
