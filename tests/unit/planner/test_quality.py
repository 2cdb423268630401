from __future__ import annotations

import sys

import numpy as np
import pytest
from tests.unit.planner.graphs import blocks

from headgate.errors import HeadgateError
from headgate.planner import quality
from headgate.planner.key_graph import KeyGraph
from headgate.planner.partition import partition

GRAPH = blocks(seed=3, groups=7, keys_each=50, pairs=30_000, mixing=0.3)


@pytest.fixture
def _installed() -> None:
    pytest.importorskip("mtkahypar", reason='needs pip install "headgate[quality]"')


def test_without_the_extra_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mtkahypar", None)
    quality._start.cache_clear()
    with pytest.raises(HeadgateError, match=r"headgate\[quality\]") as caught:
        partition(GRAPH, 6, quality="mt-kahypar")
    quality._start.cache_clear()
    assert caught.value.extra == "quality"


@pytest.mark.usefixtures("_installed")
def test_it_holds_the_same_bounds_and_is_deterministic() -> None:
    plan = partition(GRAPH, 6, quality="mt-kahypar", seed=3)
    assert plan.alpha_holds
    assert plan.locality > partition(GRAPH, 6).locality - 0.02
    again = partition(GRAPH, 6, quality="mt-kahypar", seed=3)
    assert np.array_equal(plan.slot, again.slot)


@pytest.mark.usefixtures("_installed")
def test_fixed_vertices_stay() -> None:
    a = np.random.default_rng(0).integers(0, 60, 4000).astype(np.uint64)
    partitions = np.array([3, 1, 0, 2, 5, 4], np.int32)
    graph = KeyGraph.build(
        ["source", "a"],
        [(0, 1, a % np.uint64(6), a, np.ones(4000))],
        fixed={0: (np.arange(6, dtype=np.uint64), partitions)},
    )
    plan = partition(graph, 6, quality="mt-kahypar", alpha=1.1)
    assert np.array_equal(plan.slot[:6], partitions)
    assert plan.locality > 0.9


@pytest.mark.usefixtures("_installed")
def test_graphs_too_small_to_cut() -> None:
    assert partition(KeyGraph.build(["a"], []), 3, quality="mt-kahypar").locality == 1
