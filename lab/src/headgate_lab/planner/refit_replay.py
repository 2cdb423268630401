"""The planners that start from scratch each period, in `headgate replay`.

They are the ones that `Manager(planner=...)` runs (`refit_placing`): equal rows give equal tables.
"""

from __future__ import annotations

import numpy as np

from headgate.arrays import I32
from headgate.offline.replay import FromScratch, ReplayOptions
from headgate.planner.key_graph import KeyGraph
from headgate_lab.planner.baseline import BASELINES


def refit(options: ReplayOptions) -> FromScratch:
    """The planner that the options name: a plan of the first window, and of those after it."""
    plan = BASELINES[options.planner]

    def planned(graph: KeyGraph, _: ReplayOptions) -> I32:
        nowhere = np.zeros(graph.vertices, np.int32)
        slot = plan(graph, nowhere, options.slots, alpha=options.alpha, seed=options.seed)
        assert slot is not None, "asked once only, an offline planner has not planned before"
        return slot

    return FromScratch(options, planned, once=options.planner == "offline")
