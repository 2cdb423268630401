"""Columns of configurations against the prediction of one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.planner.tuning.cost_model import EngineCosts, FlowModel, Step, Stream
from headgate.planner.tuning.prediction import share_and_latency, work_of
from headgate_lab.planner.tuning.trials import Trials
from unit.planner.tuning.flow_models import chain_of, chains, costs

COUNTS = st.lists(st.integers(1, 50), min_size=4, max_size=4)


@given(
    flow=chains(),
    engine=costs,
    cores=st.none() | st.floats(0.5, 8),
    columns=st.lists(st.tuples(COUNTS, COUNTS), min_size=1, max_size=4),
)
def test_every_column_is_what_the_prediction_says_of_it(flow, engine, cores, columns):
    trials, size = Trials(flow, engine, cores), len(flow.order)
    dop = np.array([dops[:size] for dops, _ in columns]).T
    batch = np.array([batches[:size] for _, batches in columns]).T

    told, work = trials.tell(dop, batch), trials.work(batch)

    for number in range(len(columns)):
        at = trials.point(dop[:, number], batch[:, number])
        one = trials.configuration(at)
        expected = pytest.approx(share_and_latency(flow, engine, one, cores))
        assert (told.share[number], told.latency_s[number]) == expected
        assert (at.share, at.latency_s) == expected
        assert list(work[:, number]) == pytest.approx(
            list(work_of(flow, engine, one.batch_rows).values())
        )


def test_streams_without_rows_do_not_wait_for_batches():
    flow = FlowModel((Step("source", source_rate=0.0), Step("op", 1e-3)), (Stream("source", "op"),))
    trials, eight = Trials(flow, EngineCosts(1e-4, 0.0)), np.array([8, 1])

    at = trials.point(np.array([1, 1]), eight)

    expected = share_and_latency(flow, EngineCosts(1e-4, 0.0), trials.configuration(at))
    assert (at.share, at.latency_s) == pytest.approx(expected)


def test_of_a_long_flow_the_slowest_steps_are_looked_at():
    flow = chain_of(50, slow=30)
    trials = Trials(flow, EngineCosts(1e-4, 0.0))
    at = trials.point(np.ones(51, np.int64), np.ones(51, np.int64))

    steps = [flow.order[step] for step in trials.heaviest(at, 8)]

    assert len(set(steps)) == 8
    assert steps[:2] == ["op29", "op30"]
