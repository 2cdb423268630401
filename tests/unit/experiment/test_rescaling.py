from __future__ import annotations

import pytest

from headgate.experiment.rescaling import OTHERS, QUICK, TraceOptions, demand_trace, run_rescaling


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_far_fewer_changes_than_ds2_and_no_more_overload(seed):
    """At most 40 % of DS2's reconfigurations, in the gentlest of its settings too."""
    found = run_rescaling(TraceOptions(seed=seed))

    assert max(found["reconfigurations_over_ds2"].values()) <= 0.4
    ours, gentle = found["scalers"]["headgate"], found["scalers"]["ds2_activation_5"]
    assert ours["overloaded_share"] <= gentle["overloaded_share"]
    assert ours["instances_mean"] <= 1.25 * gentle["instances_mean"]


def test_the_limit_holds_on_traces_that_nothing_was_chosen_on():
    found = run_rescaling(TraceOptions())["others"]

    worst = {name: max(told["reconfigurations_over_ds2"].values()) for name, told in found.items()}
    assert len(worst) == len(OTHERS)
    assert max(worst.values()) <= 0.4, worst


def test_a_trace_is_its_seed():
    assert (demand_trace(QUICK) == demand_trace(QUICK)).all()
    assert (demand_trace(QUICK) > 0).all()
