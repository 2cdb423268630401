"""The four configurations that Sax et al. 2013 compare in their experiments."""

from __future__ import annotations

from headgate.planner.tuning.cost_model import FlowModel
from headgate.planner.tuning.prediction import Configuration, one_each


def unbatched(configuration: Configuration) -> Configuration:
    """The paper's "no batching"."""
    return Configuration(configuration.dop, dict.fromkeys(configuration.batch_rows, 1))


def serial(configuration: Configuration, flow: FlowModel) -> Configuration:
    """The paper's "only batching": one instance of each; sources are as the user has them."""
    return Configuration(one_each(flow), configuration.batch_rows)


def four_configurations(flow: FlowModel, optimized: Configuration) -> dict[str, Configuration]:
    """Those that the paper compares."""
    return {
        "optimized": optimized,
        "not_optimized": serial(unbatched(optimized), flow),
        "no_batching": unbatched(optimized),
        "only_batching": serial(optimized, flow),
    }
