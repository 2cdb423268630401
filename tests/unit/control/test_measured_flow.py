"""From journal to model: what was put in must be found again."""

from __future__ import annotations

import pytest

import headgate as hg
from headgate.control.measured_flow import measure_flow
from headgate.errors import DeclarationError
from headgate.planner.tuning.cost_model import EngineCosts
from headgate.planner.tuning.epochs import EpochSettings
from headgate.slot.program import compile_flow
from headgate.testing import ListSource, run

COSTS = EngineCosts(1e-4, 5e-9, task_s=0.05, epoch_s=0.2, message_bytes_max=8 << 20)


def flow_of(epochs):
    flow = hg.Flow("two")
    rows = flow.source(ListSource("a bigint, b bigint", epochs), name="in")
    even = rows.filter_rows(lambda row: row["a"] % 2 == 0, name="even")
    first = even.key_by("a").process(hg.Count(emit="rows"), name="first")
    first.key_by("b").process(hg.Count(), name="second").to_memory("out")
    return flow


@pytest.fixture(scope="module")
def journal():
    epochs = [[{"a": i % 20, "b": i % 7} for i in range(400)] for _ in range(6)]
    flow = flow_of(epochs)
    records = [r for r in run(flow, slots=2).journal if r["kind"] == "epoch"]
    for number, record in enumerate(records):
        times = {op: [2.0, 2.0] for op in record["operator_ms"]}
        record |= {"operator_ms": times | {"in": [10.0, 10.0]}, "now_ms": 1_000 * number}
        record |= {"plan_ms": 50.0, "job_ms": 650.0}
    return compile_flow(flow.graph()), records


def test_rows_and_times_per_operator_come_from_the_journal(journal):
    program, records = journal
    found = measure_flow(program, records, COSTS, cores=2)

    flow = found.model.flow
    assert found.epochs == 4
    assert flow.rate_in["first"] / flow.rate_in["in"] == pytest.approx(0.5)
    assert flow.step["first"].ppt_s == pytest.approx(4e-3 / 400)  # the kit runs tasks twice
    stream = next(s for s in flow.streams if s.consumer == "second")
    assert 0 < stream.remote_share < 1
    assert stream.row_bytes >= 8


def test_the_model_gives_back_the_epochs_it_was_made_from(journal):
    program, records = journal
    found = measure_flow(program, records, COSTS, cores=2)

    told = found.model.predict(EpochSettings(2, 400, {}))
    assert told.epoch_s == pytest.approx(1.0, rel=0.05)  # what lies between the epochs' clocks
    assert found.rows_per_s == pytest.approx(400, rel=0.05)


def test_without_rows_nothing_can_be_said(journal):
    program, _ = journal
    with pytest.raises(DeclarationError, match="feed the flow"):
        measure_flow(program, [], COSTS, cores=2)
