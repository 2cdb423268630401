"""The generated follower graph is the paper's in size and shape, and reach is what it says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate_lab.osg.reach import (
    COST_MS_MAX,
    COST_MS_MEAN,
    COST_MS_MIN,
    EDGES,
    NODES,
    TOP_SHARE,
    follower_graph,
    neighbours_of,
    reach,
)


def test_the_graph_has_the_papers_size_and_a_heavy_tail():
    graph = follower_graph()
    assert graph.nodes == NODES
    assert len(graph.followers) == pytest.approx(EDGES, rel=0.001)
    assert graph.degrees.max() == 734
    assert graph.degrees.max() > 20 * np.median(graph.degrees)
    assert graph.shares.max() == pytest.approx(TOP_SHARE) and graph.shares.sum() == pytest.approx(1)
    cost_ms = graph.cost_ms(3)
    assert cost_ms.min() == pytest.approx(COST_MS_MIN) and cost_ms.max() == COST_MS_MAX
    often = (graph.shares * cost_ms).sum()
    assert often == pytest.approx(COST_MS_MEAN)
    assert often > 1.3 * cost_ms.mean(), "frequent authors are dear ones"
    assert cost_ms[graph.shares.argmax()] == pytest.approx(65, abs=1)


def test_equal_seeds_give_equal_graphs_and_streams():
    one, two = follower_graph(300, 4_000, 5), follower_graph(300, 4_000, 5)
    assert (one.followers == two.followers).all()
    assert (one.authors(100, 1) == two.authors(100, 1)).all()
    assert (one.authors(100, 1) != one.authors(100, 2)).any()
    assert neighbours_of(300, 4_000, 5) == one.neighbours()


@given(st.integers(0, 119), st.integers(1, 3))
def test_edges_are_counted_as_a_plain_search_meets_them(author, depth):
    graph = follower_graph(120, 900, 2)
    seen, front, looked = {author}, [author], 0
    for _ in range(depth):
        found = []
        for person in front:
            for follower in graph.followers[graph.starts[person] : graph.starts[person + 1]]:
                looked += 1
                if int(follower) not in seen:
                    seen.add(int(follower))
                    found.append(int(follower))
        front = found
    assert graph.edges_seen(depth)[author] == looked


def test_reach_is_the_expected_number_of_people():
    """0 -> 1 -> 3, 0 -> 2 -> 3; everybody passes on with probability one half."""
    neighbours = [[(1, 0.5), (2, 0.5)], [(3, 0.5)], [(3, 0.5)], []]
    assert reach(0, 1, neighbours) == pytest.approx(1.0)
    assert reach(0, 2, neighbours) == pytest.approx(1.0 + 1 - 0.75**2)
    assert reach(3, 3, neighbours) == 0.0
