"""From journal to model: what was put in must be found again.

A line put in is found again; epochs of one size have no foot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headgate as hg
from headgate.commit.facts import EngineFacts, EpochFacts, epochs_of
from headgate.control.epoch_lines import EpochLine, line_of, tells_apart
from headgate.control.measured_flow import OPENING_MOST_S, measure_flow
from headgate.errors import DeclarationError
from headgate.planner.tuning.cost_model import EngineCosts
from headgate.planner.tuning.epochs import EpochSettings
from headgate.planner.tuning.tuned import tune_epochs
from headgate.slot.compile import compile_flow
from headgate.slot.plan import batching_of
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
    told = [
        replace(
            facts,
            operator_ms=dict.fromkeys(facts.operator_ms, (2.0, 2.0)) | {"in": (10.0, 10.0)},
            operator_cpu_ms={},
            operator_wait_ms={},
            now_ms=1_000 * number,
            engine=EngineFacts(plan_ms=50.0, job_ms=650.0),
        )
        for number, facts in enumerate(epochs_of(run(flow, slots=2).journal))
    ]
    return compile_flow(flow.graph()), told


def test_rows_and_times_per_operator_come_from_the_journal(journal):
    program, told = journal
    found = measure_flow(program, told, COSTS, cores=2)

    flow = found.model.flow
    assert found.epochs == 4
    assert flow.rate_in["first"] / flow.rate_in["in"] == pytest.approx(0.5)
    assert flow.step["first"].ppt_s == pytest.approx(4e-3 / 400)  # the kit runs tasks twice
    stream = next(s for s in flow.streams if s.consumer == "second")
    assert 0 < stream.remote_share < 1
    assert stream.row_bytes >= 8


def model_of(source, operator, sink, timed):
    """A flow's model, where its source, operator and sink are called so, and timed as so."""
    epochs = [[{"a": i % 20} for i in range(400)] for _ in range(6)]
    flow = hg.Flow("one")
    rows = flow.source(ListSource("a bigint", epochs), name=source)
    few = rows.filter_rows(lambda row: row["a"] < 5, name="few")
    few.key_by("a").process(hg.Count(), name=operator).to_memory(sink)
    rows.to_memory("all")
    told = [
        replace(
            facts,
            operator_ms={"few": (1.0, 1.0), operator: (2.0, 2.0), timed: (10.0, 10.0)},
            operator_cpu_ms={},
            operator_wait_ms={},
            now_ms=1_000 * number,
            engine=EngineFacts(plan_ms=50.0, job_ms=650.0),
        )
        for number, facts in enumerate(epochs_of(run(flow, slots=2).journal))
    ]
    return measure_flow(compile_flow(flow.graph()), told, COSTS, cores=2).model.flow


def test_a_source_and_a_sink_of_an_operators_name_have_rows_and_costs_of_their_own():
    found = model_of("same", "same", "same", "same (source)")
    plain = model_of("in", "counts", "out", "in")

    called = {"in": "same (source)", "counts": "same", "out": "same (sink)"}
    assert found.rate_in == {called.get(n, n): rate for n, rate in plain.rate_in.items()}
    for name, step in plain.step.items():
        mine = called.get(name, name)
        assert found.step[mine] == replace(step, name=mine)
    ends = {
        (called.get(s.producer, s.producer), called.get(s.consumer, s.consumer)): s
        for s in plain.streams
    }
    for stream in found.streams:
        same = ends.pop((stream.producer, stream.consumer))
        assert stream == replace(same, producer=stream.producer, consumer=stream.consumer)
    assert not ends


def test_the_model_gives_back_the_epochs_it_was_made_from(journal):
    program, told = journal
    found = measure_flow(program, told, COSTS, cores=2)

    predicted = found.model.predict(EpochSettings(2, 400, {}))
    assert predicted.epoch_s == pytest.approx(1.0, rel=0.05)  # what lies between the epochs' clocks
    assert found.rows_per_s == pytest.approx(400, rel=0.05)


def times_larger(facts: EpochFacts, scale: int, now_ms: int) -> EpochFacts:
    """The epoch with so many times the rows; 0.4 s and 0.1 ms a row."""

    def larger(counts: Mapping[str, int]) -> dict[str, int]:
        return {name: scale * count for name, count in counts.items()}

    rows = scale * facts.rows
    return replace(
        facts,
        rows=rows,
        source_rows=larger(facts.source_rows),
        operator_rows=larger(facts.operator_rows),
        sink_rows=larger(facts.sink_rows),
        operator_ms=dict.fromkeys(facts.operator_ms, (3.0 + rows / 1e3,) * 2),
        edges={
            name: replace(
                edge,
                local_rows=scale * edge.local_rows,
                remote_rows=scale * edge.remote_rows,
                local_bytes=scale * edge.local_bytes,
                remote_bytes=scale * edge.remote_bytes,
            )
            for name, edge in facts.edges.items()
        },
        now_ms=now_ms,
        engine=EngineFacts(plan_ms=0.0, job_ms=400.0 + rows / 10),
    )


def test_epochs_of_two_sizes_tell_fixed_costs_from_rows(journal):
    """Whatever the calibration says, the foot of the line is what this flow's epochs show."""
    program, told = journal
    grown = [times_larger(facts, 1 + 4 * (i % 2), 2_000 * i) for i, facts in enumerate(told)]
    found = measure_flow(program, grown, COSTS, cores=2)

    assert found.sizes_differ and found.model.flow.step["first"].instance_s > 0
    for rows in (400, 2_000, 20_000):
        predicted = found.model.predict(EpochSettings(2, rows, {}))
        assert predicted.epoch_s == pytest.approx(0.4 + rows / 1e4 + found.beside_s, rel=0.05)


def test_a_calibration_cannot_say_more_than_epochs_took_beside_their_tasks(journal):
    """The engine was busy when it was probed: an epoch without rows took 2 s then."""
    program, told = journal
    busy = replace(COSTS, epoch_s=1.8)
    levels_ms = {0: 20.0, 1: 280.0, 2: 100.0}
    told = [replace(e, engine=replace(e.engine, levels_ms=levels_ms)) for e in told]
    found = measure_flow(program, told, busy, cores=2)

    assert 0.3 <= found.job_fixed_s(2) < 0.7  # with what tasks take before their first row
    assert found.model.predict(EpochSettings(2, 400, {})).epoch_s == pytest.approx(1.0, rel=0.05)


def test_waiting_needs_no_core_and_standing_in_line_is_no_work(journal):
    """Of 40 ms that "first" took, it had a core for 4 and waited for 24: the rest is a busy box."""
    program, told = journal
    cpu = dict.fromkeys(told[0].operator_ms, 1.0) | {"first": 4.0}
    told = [
        replace(
            facts,
            operator_ms=facts.operator_ms | {"first": (20.0, 20.0)},
            operator_cpu_ms=cpu,
            operator_wait_ms={"first": 24.0},
        )
        for facts in told
    ]
    step = measure_flow(program, told, COSTS, cores=2).model.flow.step["first"]

    own_s = 2 * step.instance_s / 400  # what two instances take, however few their rows
    assert step.instance_s == pytest.approx(0.5e-3)  # as long as "second", which takes least
    assert step.ppt_s + own_s == pytest.approx(28e-3 / 400)  # the kit runs tasks twice
    assert step.wait_s == pytest.approx(24e-3 / 400)


def test_levels_that_took_longer_than_even_slots_would_are_stretched(journal):
    """Twice as long in the level with much work, and 10 ms before the first row in both."""
    program, told = journal
    busy = {"first": (200.0, 200.0), "second": (20.0, 20.0)}
    told = [replace(e, operator_ms=e.operator_ms | busy) for e in told]
    plain = measure_flow(program, told, COSTS, cores=2).model
    levels = zip((1, 2), plain.seen([400]).levels_s[:, 0].tolist(), strict=True)
    levels_ms = {0: 10.0} | {n: 10.0 + 2 * 1e3 * seconds for n, seconds in levels}
    told = [replace(e, engine=replace(e.engine, levels_ms=levels_ms)) for e in told]

    found = measure_flow(program, told, COSTS, cores=2).model

    assert found.stretch == pytest.approx(2.0, rel=0.1)
    assert found.predict(EpochSettings(2, 400, {})).epoch_s == pytest.approx(1.0, rel=0.05)


def test_a_model_that_says_too_much_is_corrected(journal):
    """Operators took longer than the whole epoch: tasks of it ran twice."""
    program, told = journal
    twice = dict.fromkeys(told[0].operator_ms, (500.0, 500.0))
    told = [replace(e, operator_ms=twice) for e in told]
    found = measure_flow(program, told, COSTS, cores=2)

    assert found.model.correction < 1
    assert found.model.predict(EpochSettings(2, 400, {})).epoch_s == pytest.approx(1.0, rel=0.05)


def test_instances_and_processors_are_those_of_the_epochs(journal):
    program, told = journal
    told = [
        replace(e, instances={"second": (1,)}, engine=replace(e.engine, cpus=2, cores=8))
        for e in told
    ]
    found = measure_flow(program, told, COSTS, cores=8, given={"first": 2})

    assert found.model.seen_of("second") == 1 and found.model.seen_of("first") == 2
    assert found.model.cpus_for(8) == 2
    groups = {group.name: group for group in found.model.groups.of}
    assert groups["first"].fixed == 2 and groups["second"].is_free
    others = [replace(e, instances={}) for e in told[:4]]
    assert measure_flow(program, [*others, *told[4:]], COSTS, cores=8).epochs == 2


def test_epochs_that_moved_state_are_not_measured(journal):
    program, told = journal
    moved = [replace(e, moving_ms={"first": (5.0, 0.0)}) if e.epoch == 4 else e for e in told]

    assert measure_flow(program, moved, COSTS, cores=2).epochs == 3


def test_operators_that_are_folded_where_their_rows_are_have_tasks_everywhere():
    flow = hg.Flow("folded")
    rows = flow.source(ListSource("a bigint", [[{"a": i} for i in range(40)]]), name="in")
    rows.key_by("a", grouping="partial").process(hg.Count(), name="count").to_memory("out")
    told = epochs_of(run(flow, slots=3).journal)
    told = [replace(e, engine=EngineFacts(plan_ms=1.0, job_ms=500.0)) for e in told]

    model = measure_flow(compile_flow(flow.graph()), told, COSTS, cores=4).model

    assert model.flow.step["count"].at_source
    assert model.full_levels == {1}


def test_a_global_operator_has_one_instance():
    flow = hg.Flow("one")
    rows = flow.source(ListSource("a bigint", [[{"a": i} for i in range(40)]]), name="in")
    rows.globally(grouping="hash").process(hg.Count(), name="count").to_memory("out")
    told = epochs_of(run(flow, slots=3).journal)
    told = [replace(e, engine=EngineFacts(plan_ms=1.0, job_ms=500.0)) for e in told]

    model = measure_flow(compile_flow(flow.graph()), told, COSTS, cores=4).model

    assert model.flow.step["count"].instances == 1
    assert tune_epochs(model).settings.slots == 1


def test_batch_rows_of_a_measured_flow_are_what_a_start_takes(journal):
    """A filter runs inside the source's task: nothing is sent to it."""
    program, told = journal
    found = measure_flow(program, told, COSTS, cores=2)

    chosen = tune_epochs(found.model).settings.batch_rows
    assert set(chosen) == {"even->first", "first->second"}
    assert batching_of(program.graph, dict(chosen)) is not None


def test_only_epochs_with_the_cores_of_the_last_one_count(journal):
    program, told = journal
    grown = [
        replace(facts, engine=replace(facts.engine, cores=2 if i < 3 else 4))
        for i, facts in enumerate(told)
    ]

    assert measure_flow(program, grown, COSTS, cores=4).epochs == 3


def test_without_rows_nothing_can_be_said(journal):
    program, _ = journal
    with pytest.raises(DeclarationError, match="feed the flow"):
        measure_flow(program, [], COSTS, cores=2)


SIZES = [50_000, 50_000, 400_000, 50_000, 400_000]


@given(fixed=st.just(0.0) | st.floats(1e-4, 5), row=st.just(0.0) | st.floats(1e-9, 1e-4))
def test_what_was_put_in_is_found(fixed, row):
    found = line_of(SIZES, [fixed + row * rows for rows in SIZES])

    assert found.fixed_s == pytest.approx(fixed, rel=1e-4, abs=1e-7)
    assert found.row_s == pytest.approx(row, rel=1e-4, abs=1e-12)


@given(
    seconds=st.lists(st.just(0.0) | st.floats(1e-6, 10), min_size=len(SIZES), max_size=len(SIZES))
)
def test_neither_part_is_ever_negative(seconds):
    found = line_of(SIZES, seconds)

    assert found.fixed_s >= 0 and found.row_s >= 0


def test_epochs_of_one_size_are_all_for_rows():
    assert not tells_apart([100, 110, 100])
    assert line_of([100, 100, 100], [1.0, 2.0, 3.0]) == EpochLine(0.0, 0.02)


@pytest.mark.parametrize(("least_ms", "own_ms"), [(8.0, 4.0), (40.0, 1e3 * OPENING_MOST_S)])
def test_instances_take_as_long_as_the_operator_that_takes_least_but_not_for_long(
    journal, least_ms, own_ms
):
    """Epochs of one size do not show it: instances of small operators seemed to cost nothing."""
    program, told = journal
    cpu = dict.fromkeys(told[0].operator_ms, 0.0) | {"first": 90.0, "second": least_ms}
    told = [replace(facts, operator_cpu_ms=cpu, operator_wait_ms={}) for facts in told]

    step = measure_flow(program, told, COSTS, cores=2).model.flow.step

    assert [1e3 * step[op].instance_s for op in ("first", "second")] == pytest.approx([own_ms] * 2)
    for op in ("first", "second"):
        assert 400 * step[op].ppt_s + 2 * step[op].instance_s == pytest.approx(cpu[op] / 1e3)


def test_what_passes_beside_tasks_in_small_epochs_is_fixed_and_not_for_rows(journal):
    """A calibration said 0.1 s, and epochs took a second, 20 ms of it in tasks."""
    program, told = journal
    slow = [
        replace(facts, engine=replace(facts.engine, job_ms=1_000.0, levels_ms={0: 5.0, 1: 15.0}))
        for facts in told
    ]

    model = measure_flow(program, slow, COSTS, cores=2).model

    assert model.fixed_s(2) > 0.9
    assert (
        model.predict(EpochSettings(2, 4_000, {})).rows_per_s
        > 5 * model.predict(EpochSettings(2, 400, {})).rows_per_s
    )
