"""Mt-KaHyPar as another first guess: a little better than METIS, and slower.

Optional: `pip install "headgate[quality]"`. It knows fixed vertices itself; like METIS it balances
one number per vertex, so its cut goes through the same repair and the same checks.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from headgate.arrays import I32
from headgate.errors import HeadgateError
from headgate.planner.key_graph import FREE, KeyGraph
from headgate.planner.metis import equal_operators, scaled, suits_metis

THREADS = 2


def mt_kahypar_parts(graph: KeyGraph, slots: int, *, alpha: float, seed: int) -> I32:
    """A part for every vertex, fixed ones in theirs; deterministic for a seed.

    Balanced to about alpha over all operators together. Graphs too small to cut are dealt out.
    """
    library, runtime = _start()
    if not suits_metis(graph, slots):
        dealt = (np.arange(graph.vertices) % slots).astype(np.int32)
        return np.where(graph.fixed != FREE, graph.fixed, dealt).astype(np.int32)
    # Its deterministic presets take no notice of a seed: vertices are renumbered by it instead.
    order = np.random.default_rng(seed).permutation(graph.vertices)
    at = np.argsort(order)
    context = runtime.context_from_preset(library.PresetType.DETERMINISTIC_QUALITY)
    context.set_partitioning_parameters(slots, alpha - 1, library.Objective.CUT)
    context.logging = False
    tied = graph.w > 0
    ends = np.stack([at[graph.u[tied]], at[graph.v[tied]]], axis=1)
    solver_graph = runtime.create_graph(
        context,
        graph.vertices,
        len(ends),
        list(map(tuple, ends.tolist())),
        scaled(equal_operators(graph), 1)[order].tolist(),
        scaled(graph.w[tied], 1).tolist(),
    )
    if (graph.fixed != FREE).any():
        solver_graph.add_fixed_vertices(graph.fixed[order].tolist(), slots)
    return np.asarray(solver_graph.partition(context).get_partition(), np.int32)[at]


@cache
def _start() -> tuple[Any, Any]:
    try:
        import mtkahypar
    except ImportError as missing:
        raise HeadgateError(
            "quality mode needs Mt-KaHyPar, which is not installed; "
            'pip install "headgate[quality]", or plan with quality="metis"',
            extra="quality",
        ) from missing
    return mtkahypar, mtkahypar.initialize(THREADS)
