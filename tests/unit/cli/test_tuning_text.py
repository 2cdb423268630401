"""What `headgate tune` says: every operator, the bottleneck, the reasons, lines to copy."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

from rich.console import Console

import headgate as hg
from headgate.cli.tune import (
    batches,
    bottleneck,
    instances,
    operator_lines,
    print_costs,
    print_doubt,
    print_tuning,
    ways,
)
from headgate.commit.facts import EngineFacts, epochs_of
from headgate.control.measured_flow import Measured, measure_flow
from headgate.planner.tuning.cost_model import Calibration, EngineCosts, FlowModel, Step, Stream
from headgate.planner.tuning.epochs import EpochModel, EpochPrediction, EpochSettings
from headgate.planner.tuning.explained import OperatorChoice, TunedEpochs
from headgate.slot.compile import compile_flow
from headgate.testing import ListSource, run

COSTS = EngineCosts(1e-4, 5e-9, task_s=0.02, epoch_s=0.05, message_bytes_max=8 << 20)
FLOW = FlowModel(
    (
        Step("in", 1e-6, source_rate=1_000.0, at_source=True),
        Step("parse", 2e-6, at_source=True),
        Step("agg", 9e-6),
        Step("out"),
    ),
    (
        Stream("in", "parse", row_bytes=0),
        Stream("parse", "agg", row_bytes=32),
        Stream("agg", "out", row_bytes=0),
    ),
)
MODEL = EpochModel(FLOW, COSTS, levels=1, cores=2)


def measured() -> Measured:
    """What two epochs of a small flow tell, but with a model that is known."""
    flow = hg.Flow("small")
    rows = flow.source(ListSource("k bigint", [[{"k": 1}], [{"k": 2}]]), name="in")
    rows.key_by("k").process(hg.Count(), name="count").to_memory("out")
    times = EngineFacts(plan_ms=1.0, job_ms=9.0)
    told = [replace(epoch, engine=times) for epoch in epochs_of(run(flow, slots=1).journal)]
    found = measure_flow(compile_flow(flow.graph()), told, COSTS, cores=2)
    return replace(found, model=MODEL, epochs=6, rows_per_s=50_000.0, sizes_differ=True)


MEASURED = measured()
TUNED = TunedEpochs(
    EpochSettings(2, 160_000, {"parse->agg": 262_144}),
    EpochPrediction(epoch_s=1.6, rows_per_s=100_000.0, latency_s=2.4, fixed_s=0.2, messages=4),
    {"in": 0.08, "parse": 0.17, "agg": 0.75, "out": 0.0},
    "agg",
    ("160,000 rows per epoch: 95% of an epoch's time is for rows",),
    {"in": 100_000.0, "parse": 100_000.0, "agg": 100_000.0, "out": 10.0},
)


def shown(measured: Measured, tuned: TunedEpochs) -> str:
    console = Console(width=140, record=True, file=StringIO())
    print_tuning(console, measured, tuned)
    return console.export_text()


def test_an_operator_has_an_instance_in_every_slot_or_source_task() -> None:
    assert instances(MEASURED, TUNED, "parse") == "1 source task"
    assert instances(MEASURED, TUNED, "agg") == "2 of 2 slots"
    few = replace(TUNED, operators=(OperatorChoice("agg", 1, 0.0, 0.0, ""),))
    assert instances(MEASURED, few, "agg") == "1 of 2 slots"


def test_batches_are_told_only_where_rows_are_sent() -> None:
    told = {step.name: batches(MEASURED, TUNED, step) for step in FLOW.steps}

    assert told == {"in": "in memory", "parse": "262,144", "agg": "in memory", "out": "-"}


def test_the_bottleneck_is_named_with_what_would_help() -> None:
    known = replace(TUNED, why_bottleneck="takes 45% of an epoch in 2 instances: more may help")
    assert bottleneck(known) == "agg takes 45% of an epoch in 2 instances: more may help."

    short = replace(known, prediction=replace(TUNED.prediction, fixed_s=1.2))
    assert "75% of an epoch's time is not for rows" in bottleneck(short)


def test_operators_that_could_have_had_other_numbers_are_explained() -> None:
    compared = OperatorChoice("agg", 3, 9.0, 0.5, "predicted 9 rows/s, with 1 5")
    told = replace(TUNED, operators=(compared, OperatorChoice("out", 3, 9.0, 0.0, "runs where")))

    assert operator_lines(told) == ["agg, 3 instances: predicted 9 rows/s, with 1 5"]
    assert "agg, 3 instances: predicted 9 rows/s" in shown(MEASURED, told)


def test_lines_to_copy_hold_the_numbers() -> None:
    assert ways("app.py:flow", TUNED.settings, True) == [
        'flow.start(spark, slots=2, rows_per_epoch=160_000, checkpoint="...")',
        "headgate run app.py:flow --slots 2 --rows-per-epoch 160000",
    ]
    few = replace(TUNED.settings, instances={"agg": 1})
    assert ways("app.py:flow", few, True)[0] == (
        "flow.start(spark, slots=2, rows_per_epoch=160_000, parallelism={'agg': 1}, "
        'checkpoint="...")'
    )


def test_a_source_that_cannot_be_told_is_not_told() -> None:
    told = "\n".join(ways("app.py", TUNED.settings, False))

    assert "rows_per_epoch" not in told and "--rows-per-epoch" not in told
    assert "160,000 rows (maxOffsetsPerTrigger" in told


def test_all_of_it_is_shown_even_of_operators_that_the_result_does_not_know() -> None:
    bare, alike = replace(TUNED, work_share={}, rates={}), replace(MEASURED, sizes_differ=False)
    words = ("parse", "2 slots, 160,000 rows per epoch", "Bottleneck: agg", "had about one")

    for tuned in (TUNED, bare):
        said = shown(alike, tuned)
        assert all(word in said for word in words)
        assert "8,388,608" not in said


def test_costs_that_explain_badly_are_doubted() -> None:
    console = Console(width=300, record=True, file=StringIO())
    print_doubt(console, Calibration(COSTS, (), error=0.15))
    assert not console.export_text(clear=False)
    print_doubt(console, Calibration(COSTS, (), error=0.31))
    said = console.export_text()
    assert "31%" in said and "headgate calibrate again" in said
    print_costs(console, Calibration(COSTS, (), error=0.31, engine="Spark 4, 2 cores"))
    assert "100.0 µs" in console.export_text()
