"""Edges as rows of neighbours: the form in which solvers and kernels walk a graph.

Kernels are imported when called: whoever only describes a graph loads no numba.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headgate.arrays import F64, I64


class Adjacency(NamedTuple):
    """Who is tied to whom: the partners of vertex i are `other[starts[i]:starts[i + 1]]`."""

    starts: I64
    other: I64
    weight: F64


def adjacency_of(vertices: int, u: I64, v: I64, w: F64) -> Adjacency:
    """Both directions of every edge, by a counting sort; O(vertices + edges)."""
    from headgate.planner import adjacency_kernel

    return Adjacency(*adjacency_kernel.both_directions(vertices, u, v, w))


def strongest(edges: Adjacency) -> tuple[I64, F64, F64]:
    """For each vertex its heaviest partner, or -1, the weight of that edge and of all; O(edges)."""
    from headgate.planner import adjacency_kernel

    found: tuple[I64, F64, F64] = adjacency_kernel.strongest(
        edges.starts, edges.other, edges.weight
    )
    return found


def weight_toward(edges: Adjacency, place: npt.NDArray[np.int32], places: int) -> F64:
    """[vertex, place]: the weight between a vertex and all that is at a place; O(edges)."""
    from headgate.planner import adjacency_kernel

    found: F64 = adjacency_kernel.toward(edges.starts, edges.other, edges.weight, place, places)
    return found


def weight_across(place: npt.NDArray[np.int32], u: I64, v: I64, w: F64) -> F64:
    """The weight of the edges of each vertex whose other end is elsewhere; O(edges)."""
    from headgate.planner import adjacency_kernel

    found: F64 = adjacency_kernel.across(place, u, v, w)
    return found


def weight_apart(place: npt.NDArray[np.int32], u: I64, v: I64, w: F64, near: F64) -> float:
    """The weight of edges, each as far as its ends' places are not near (0 to 1); O(edges)."""
    from headgate.planner import adjacency_kernel

    return float(adjacency_kernel.apart(place, u, v, w, near))
