"""Key graphs that planner tests draw or build by hand."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from headgate.planner.key_graph import KeyGraph
from headgate.routing.hashing import mix


def keys(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.uint64)


def weights(*numbers: float) -> np.ndarray:
    return np.array(numbers, np.float64)


@st.composite
def key_graphs(draw: st.DrawFn, max_keys: int = 12, max_pairs: int = 40) -> KeyGraph:
    """Chains of one to three operators, any pairs, some with weight 0, ties among the weights."""
    operators = draw(st.integers(1, 3))
    pairs = []
    for a in range(operators - 1):
        rows = draw(
            st.lists(
                st.tuples(
                    st.integers(0, max_keys - 1),
                    st.integers(0, max_keys - 1),
                    st.one_of(st.integers(0, 5), st.integers(0, 1000)),
                ),
                max_size=max_pairs,
            )
        )
        table = np.array(rows, np.int64).reshape(-1, 3)
        pairs.append(
            (a, a + 1, *(table[:, i].astype(np.uint64) for i in (0, 1)), table[:, 2].astype(float))
        )
    loads = {}
    if operators == 1 or draw(st.booleans()):
        count = draw(st.integers(0, max_keys))
        rows = draw(st.lists(st.integers(0, 100), min_size=count, max_size=count))
        loads[0] = (np.arange(count, dtype=np.uint64), np.array(rows, float))
    return KeyGraph.build([f"op{i}" for i in range(operators)], pairs, loads)


def blocks(
    seed: int, groups: int, keys_each: int, pairs: int, mixing: float, mixed_hash: bool = False
) -> KeyGraph:
    """Two operators whose keys form groups; a share `mixing` of the rows crosses groups.

    Key numbers are their own hash, which the buckets would see through; `mixed_hash` spreads them.
    """
    rng = np.random.default_rng(seed)
    n = groups * keys_each
    a = np.minimum((rng.pareto(1.2, pairs) * keys_each / 8).astype(np.int64), keys_each - 1)
    group = rng.integers(0, groups, pairs)
    b_group = np.where(rng.random(pairs) < mixing, rng.integers(0, groups, pairs), group)
    b = b_group * keys_each + rng.integers(0, keys_each, pairs)
    a = group * keys_each + a
    packed, w = np.unique(a * n + b, return_counts=True)
    ha, hb = (packed // n).astype(np.uint64), (packed % n).astype(np.uint64)
    if mixed_hash:
        ha, hb = mix(ha + np.uint64(1)), mix(hb + np.uint64(n + 1))
    return KeyGraph.build(["a", "b"], [(0, 1, ha, hb, w.astype(float))])
