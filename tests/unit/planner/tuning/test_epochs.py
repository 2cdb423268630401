"""What epochs take: tasks, levels, instances, and how late rows are."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.errors import DeclarationError
from headgate.planner.tuning.cost_model import EngineCosts, FlowModel, Step, Stream
from headgate.planner.tuning.epochs import EpochModel, EpochSettings

FREE = EngineCosts(0.0, 0.0)
SPARK = EngineCosts(2e-5, 16e-9, task_s=0.02, epoch_s=0.3, level_s=0.05, message_bytes_max=8 << 20)


def chain(*steps: Step, between: bool = True) -> FlowModel:
    """A source and these steps, each behind an exchange."""
    names = ["source", *(step.name for step in steps)]
    streams = [
        Stream(a, b, 1, 20, between_slots=between and a != "source") for a, b in pairwise(names)
    ]
    return FlowModel((Step("source", source_rate=1.0, at_source=True), *steps), tuple(streams))


def model(flow: FlowModel, costs: EngineCosts = FREE, **options: object) -> EpochModel:
    chosen = {"cores": 12, "levels": len(flow.steps) - 1} | options
    return EpochModel(flow, costs, **chosen)


def seconds(engine: EpochModel, slots: int, rows: int = 1000, **instances: int) -> float:
    return engine.predict(EpochSettings(slots, rows, {}, instances)).epoch_s


def test_work_on_cores_is_bounded_by_processors_and_waiting_is_not():
    works = model(chain(Step("op", 1e-3)), cpus=2)
    waits = model(chain(Step("op", 1e-3, wait_s=1e-3)), cpus=2)

    assert [seconds(works, n) for n in (1, 2, 4, 12)] == pytest.approx([1.0, 0.5, 0.5, 0.5])
    assert [seconds(waits, n) for n in (1, 2, 4, 12)] == pytest.approx([1.0, 0.5, 0.25, 1 / 12])


def test_a_level_takes_as_long_as_its_busiest_slot():
    """Rows that leave meet the second operator one level later; those of one slot stay."""
    flow = chain(Step("a", 1e-3), Step("b", 2e-3))
    engine = model(flow, slots_seen=4)

    assert seconds(engine, 4, a=4, b=4) == pytest.approx(3.0 / 4)
    assert seconds(engine, 1) == pytest.approx(3.0)
    assert seconds(engine, 4, a=4, b=1) == pytest.approx(0.25 + 2.0)


def test_few_instances_are_kept_apart_from_the_many_behind_them():
    """Else one slot would process what stays in it while the others wait for the rest."""
    flow = chain(Step("a", 1e-3), Step("b", 2e-3))
    engine = model(flow, slots_seen=4)

    assert seconds(engine, 4, a=1, b=4) == pytest.approx(1.0 + 2.0 / 4 + 3 / 4 * 2.0 / 4)
    assert seconds(engine, 5, a=1, b=4) == pytest.approx(1.0 + 2.0 / 4)
    for slots, share in ((4, True), (5, False)):
        times = engine.times(slots)
        talks = times.talks(times.exactly({"a": 1, "b": 4}))
        assert (("a", "b") in talks) == share


def test_groups_of_one_level_that_fit_side_by_side_do_not_wait_for_each_other():
    flow = FlowModel(
        (Step("source", source_rate=1.0), Step("a", 1e-3), Step("b", 1e-3)),
        (Stream("source", "a"), Stream("source", "b")),
    )
    engine = model(flow, levels=1)

    assert seconds(engine, 4) == pytest.approx(0.5)
    assert seconds(engine, 4, a=2, b=2) == pytest.approx(1.0)  # a level of two slots, both in each
    assert seconds(engine, 4, a=3, b=1) == pytest.approx(1 / 3 + 1.0)
    all_over = Stream("source", "c")
    third = FlowModel((*flow.steps, Step("c")), (*flow.streams, all_over))
    assert seconds(replace(engine, flow=third), 4, a=2, b=2, c=4) == pytest.approx(0.5)
    assert seconds(replace(engine, flow=third), 4, a=3, b=3, c=4) == pytest.approx(2 / 3)


def test_a_level_has_as_many_tasks_as_its_largest_group():
    """The tasks of three levels and of the source: with few instances behind, few tasks."""
    flow = chain(Step("a"), Step("b"), Step("c"))
    engine = model(flow, replace(FREE, task_s=1.0), cpus=1)

    assert seconds(engine, 8) == pytest.approx(1 + 3 * 8)
    assert seconds(engine, 8, a=8, b=8, c=1) == pytest.approx(1 + 8 + 8 + 1)
    # Rows that stay on the way to b reach c one level early, so c has tasks in level 2 as well.
    assert seconds(engine, 8, a=1, b=1, c=8) == pytest.approx(1 + 1 + 8 + 8)
    ordered = chain(Step("a"), Step("b", ordered=True), Step("c"))
    assert seconds(replace(engine, flow=ordered), 8, a=1, b=1, c=8) == pytest.approx(1 + 1 + 1 + 8)


def test_levels_with_merges_have_a_task_in_every_slot():
    engine = model(chain(Step("a")), replace(FREE, task_s=1.0), cpus=1, full_levels=frozenset({1}))

    assert seconds(engine, 8, a=1) == pytest.approx(1 + 8)


def test_an_instance_costs_what_it_costs_without_rows():
    engine = model(chain(Step("a", instance_s=0.1)), cpus=2)

    assert engine.fixed_s(1) == pytest.approx(0.1)
    assert engine.fixed_s(8) == pytest.approx(8 * 0.1 / 2)
    assert engine.fixed_s(8, {"a": 2}) == pytest.approx(0.1)
    assert engine.engine_s(8) == 0.0


def test_operators_without_an_exchange_run_where_their_rows_are():
    flow = chain(Step("a", 1e-3), Step("b", 3e-3))
    inside = replace(flow.streams[1], sends=False, between_slots=False)
    engine = model(replace(flow, streams=(flow.streams[0], inside)), levels=1)

    assert [group.name for group in engine.groups.of] == ["a"]
    assert seconds(engine, 4) == pytest.approx(1.0)
    assert seconds(engine, 4, a=2) == pytest.approx(2.0)


def test_with_one_slot_every_row_stays_and_with_more_fewer_do():
    """Measured with four slots and tables that keep half of what hash routing would send."""
    flow = chain(Step("a"), Step("b"))
    between = replace(flow.streams[1], remote_share=0.375)
    engine = model(replace(flow, streams=(flow.streams[0], between)), slots_seen=4)

    def sent(slots: int, **counts: int) -> float:
        times = engine.times(slots)
        return times.bytes_sent(times.exactly(counts))["a->b"] / between.row_bytes

    assert [sent(n) for n in (1, 2, 4, 8)] == pytest.approx([0.0, 0.25, 0.375, 0.4375])
    assert sent(8, a=2, b=2) == pytest.approx(0.25)
    assert sent(8, a=8, b=1) == pytest.approx(0.4375)
    seen = replace(engine, slots_seen=8, instances_seen={"a": 4, "b": 2})
    assert seen.times(4).bytes_sent(seen.times(4).exactly({}))["a->b"] == pytest.approx(0.375 * 20)


def test_shares_measured_with_one_slot_say_nothing_of_more():
    flow = chain(Step("a"), Step("b"))
    stayed = replace(flow.streams[1], remote_share=0.0)
    engine = model(replace(flow, streams=(flow.streams[0], stayed)), slots_seen=1)

    times = engine.times(2)
    assert times.bytes_sent(times.exactly({}))["a->b"] == pytest.approx(0.5 * 20)


def test_processors_are_shared_and_follow_executors():
    engine = model(chain(Step("a")), cores=12, cpus=2, slots_seen=12)

    assert [engine.cpus_for(n) for n in (1, 12)] == [2, 2]
    follows = replace(engine, elastic=True)
    assert [follows.cpus_for(n) for n in (6, 12, 24)] == [1, 2, 4]
    assert model(chain(Step("a")), cores=4).cpus_for(8) == 4


@given(rows=st.integers(1, 10**6), ppt=st.floats(1e-8, 1e-4), every=st.floats(0, 10))
def test_rows_come_evenly_and_are_done_with_the_next_epoch(rows, ppt, every):
    """From one epoch to two, or from an epoch to the interval and an epoch."""
    engine = model(chain(Step("a", ppt)), SPARK, every_s=every)

    told = engine.predict(EpochSettings(4, rows, {}))

    apart = max(every, told.epoch_s)
    assert told.latency_s == pytest.approx(told.epoch_s + apart / 2)
    assert told.latency_p95_s == pytest.approx(told.epoch_s + 0.95 * apart)


def test_a_stream_fills_its_epochs_with_what_has_come():
    """0.4 s without rows, and half of the time is for them: so 0.8 s."""
    engine = model(chain(Step("a", 1e-3)), replace(FREE, epoch_s=0.4), cores=1)
    settings = EpochSettings(1, 10**9, {})

    assert engine.steady_rows(settings, 500) == pytest.approx(400, rel=0.01)
    assert engine.steady_rows(replace(settings, rows_per_epoch=100), 500) == 100
    slow = replace(engine, every_s=2.0)
    assert slow.steady_rows(settings, 500) == pytest.approx(1000, rel=0.01)


def test_uneven_slots_and_other_epochs_are_learned():
    engine = model(chain(Step("a", 1e-3)), replace(FREE, epoch_s=1.0))

    assert seconds(replace(engine, stretch=1.5), 1) == pytest.approx(1.0 + 1.5)
    assert seconds(replace(engine, correction=0.5), 1) == pytest.approx(1.0)


def test_an_engine_without_anything_is_refused():
    with pytest.raises(DeclarationError, match="at least one level"):
        EpochModel(chain(Step("a")), FREE, levels=0, cores=1)


def test_two_hundred_levels_have_a_name():
    steps = [Step(f"op{n}", 1e-6) for n in range(200)]
    engine = model(chain(*steps), slots_seen=4)

    assert len(engine.groups.of) == 200
    assert engine.groups.of[-1].home == 200 and engine.groups.of[-1].first == 2
