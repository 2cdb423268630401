"""One floor up: an epoch is a batch. What is chosen for a flow, and what is said about it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headgate.errors import DeclarationError
from headgate.planner.tuning.cost_model import EngineCosts, FlowModel, Step, Stream
from headgate.planner.tuning.epochs import EpochModel, EpochSettings
from headgate.planner.tuning.tuned import HEADROOM, tune_epochs

SPARK = EngineCosts(
    message_s=2e-4, byte_s=5e-9, task_s=0.02, epoch_s=0.3, message_bytes_max=8 << 20
)


def two_counts(ppt_s: float = 5e-7) -> FlowModel:
    return FlowModel(
        (Step("source", source_rate=1e6), Step("first", ppt_s), Step("second", ppt_s)),
        (Stream("source", "first", 1, 16), Stream("first", "second", 1, 16)),
    )


def at_source_tasks(flow: FlowModel, *names: str) -> FlowModel:
    steps = tuple(replace(step, at_source=step.name in names) for step in flow.steps)
    return replace(flow, steps=steps)


def model(ppt_s: float = 5e-7, cores: int = 2) -> EpochModel:
    return EpochModel(two_counts(ppt_s), SPARK, levels=2, cores=cores, source_tasks=cores)


def row_s(engine: EpochModel, slots: int) -> float:
    """What a row adds to a large epoch, with an instance of everything in each slot."""
    rows = [10**9, 2 * 10**9]
    taken = [engine.predict(EpochSettings(slots, n, {}, engine.alike(slots))).epoch_s for n in rows]
    return (taken[1] - taken[0]) / 1e9


def test_without_a_rate_every_core_gets_a_slot_and_epochs_are_efficient():
    tuned = tune_epochs(model(cores=4))

    told = tuned.prediction
    assert tuned.settings.slots == 4
    assert told.fixed_s / told.epoch_s == pytest.approx(0.05, abs=0.02)
    assert told.rows_per_s > 0.9 / row_s(model(cores=4), 4)


@given(rate=st.floats(100, 1e7), ppt=st.floats(1e-8, 1e-5), cores=st.integers(1, 6))
@example(rate=4425686.0, ppt=1e-08, cores=2)  # one slot is enough but for the messages
def test_the_fewest_slots_and_the_smallest_epoch_that_keep_up(rate, ppt, cores):
    engine = model(ppt, cores)
    tuned = tune_epochs(engine, rate=rate, epoch_bytes_max=1 << 50)
    slots = tuned.settings.slots

    busy = [rate * row_s(engine, n) for n in range(1, cores + 1)]  # of the time, for rows
    assert slots <= cores
    if busy[-1] < 0.98 * HEADROOM:
        assert slots == 1 or busy[slots - 2] >= HEADROOM * 0.98
        assert tuned.prediction.rows_per_s >= rate / HEADROOM * (1 - 1e-6)
        half = replace(tuned.settings, rows_per_epoch=max(1, tuned.settings.rows_per_epoch // 2))
        assert engine.predict(half).rows_per_s < rate / HEADROOM * 1.02


@given(target=st.floats(0.01, 60))
def test_a_latency_target_bounds_the_epoch_and_costs_no_more_than_a_fifth(target):
    tuned, free = tune_epochs(model(), latency_s=target), tune_epochs(model())

    missed = any("cannot be met; the best is" in line for line in tuned.why)
    assert missed == (tuned.prediction.latency_p95_s > target * (1 + 1e-6))
    assert tuned.prediction.rows_per_s >= HEADROOM * free.prediction.rows_per_s * 0.99


@given(
    rate=st.floats(100, 1e7),
    target=st.floats(0.01, 60),
    ppt=st.floats(1e-8, 1e-5),
    read=st.floats(0, 1e-5),
    cores=st.integers(1, 4),
)
def test_a_latency_target_never_makes_a_flow_fall_behind(rate, target, ppt, read, cores):
    """Against every slot count by itself: the fewest that keep up in time, or the soonest."""
    source = Step("source", read, source_rate=1e6, at_source=True)
    flow = replace(two_counts(ppt), steps=(source, *two_counts(ppt).steps[1:]))
    engine = replace(model(ppt, cores), flow=flow)

    tune = partial(tune_epochs, engine, rate=rate, latency_s=target, epoch_bytes_max=1 << 50)

    chosen, every = tune(), [tune(slots=n, instances={}) for n in range(1, cores + 1)]

    enough = [t for t in every if t.prediction.rows_per_s >= rate / HEADROOM * (1 - 1e-6)]
    in_time = [t for t in enough if t.prediction.latency_p95_s <= target]
    if in_time:
        assert chosen.settings.slots == in_time[0].settings.slots
        assert chosen.prediction.latency_p95_s <= target * (1 + 1e-6)
    elif enough:
        soonest = min(t.prediction.latency_p95_s for t in enough)
        assert chosen.prediction.latency_p95_s <= soonest / 0.98 * 1.02
        assert any("cannot be met; the best is" in line for line in chosen.why)
    if enough:
        assert chosen.prediction.rows_per_s >= rate


@pytest.mark.parametrize("latency_s", [0.65, 0.6, 0.4, 0.01])
def test_a_target_out_of_reach_leaves_the_epoch_that_keeps_up(latency_s):
    """0.3 s without a row: epochs that take what has come last 0.33 s, and 1.95 of them 0.65."""
    flow = FlowModel((Step("source", source_rate=1e4), Step("op", 1e-5)), (Stream("source", "op"),))
    engine = EpochModel(flow, replace(SPARK, byte_s=0.0, task_s=0.0), levels=1, cores=1)

    tuned, free = tune_epochs(engine, rate=1e4, latency_s=latency_s), tune_epochs(engine, rate=1e4)

    assert tuned.settings.rows_per_epoch == free.settings.rows_per_epoch
    assert tuned.prediction.rows_per_s >= 1e4 / HEADROOM * (1 - 1e-6)
    assert any("cannot be met; the best is 0.65 s" in line for line in tuned.why)


def test_slots_are_searched_for_the_target_too():
    """One slot keeps up in 0.65 s, two in 0.62 s."""
    flow = FlowModel((Step("source", source_rate=1e4), Step("op", 1e-5)), (Stream("source", "op"),))
    engine = EpochModel(flow, replace(SPARK, byte_s=0.0, task_s=0.0), levels=1, cores=2)

    assert tune_epochs(engine, rate=1e4).settings.slots == 1
    assert tune_epochs(engine, rate=1e4, latency_s=0.63).settings.slots == 2


def test_slots_have_only_the_time_that_source_tasks_leave():
    """Reading takes 40 us of the 80 that there are for a row, so one slot of 70 us is too slow."""
    flow = FlowModel(
        (Step("source", 4e-5, source_rate=1e4, at_source=True), Step("op", 7e-5)),
        (Stream("source", "op"),),
    )
    costs = replace(SPARK, byte_s=0.0, task_s=0.0)
    engine = EpochModel(flow, costs, 1, 4, source_tasks=1)

    tuned = tune_epochs(engine, rate=1e4)

    assert tuned.settings.slots == 2
    assert tuned.prediction.rows_per_s >= 1e4 / HEADROOM * (1 - 1e-6)


def test_a_rate_that_no_slots_can_keep_up_with_gets_the_fast_ones():
    tuned = tune_epochs(model(cores=4), rate=1e9, latency_s=0.01)

    assert tuned.settings.slots == tune_epochs(model(cores=4)).settings.slots
    assert any("more than the slots can do" in line for line in tuned.why)
    assert any("cannot be met" in line for line in tuned.why)


def test_where_executors_follow_slots_so_do_cores():
    """Two slots on two cores; for eight slots six more cores would come, and go again."""
    fixed = replace(model(5e-6, cores=2), slots_seen=2)
    engine = replace(fixed, elastic=True)

    assert [fixed.cores_for(n) for n in (1, 2, 8)] == [2, 2, 2]
    assert [engine.cores_for(n) for n in (1, 2, 8)] == [1, 2, 8]
    assert tune_epochs(fixed, max_slots=8).settings.slots == 2
    grown = tune_epochs(engine, max_slots=8)
    assert grown.settings.slots == 8
    assert grown.prediction.rows_per_s > 3.5 * tune_epochs(fixed).prediction.rows_per_s
    spare = replace(engine, cores=8)
    assert [spare.cores_for(n) for n in (1, 2, 4, 10)] == [4, 8, 8, 10]


def test_batch_rows_are_told_for_streams_that_send():
    flow = two_counts()
    inside = replace(flow.streams[1], sends=False)
    engine = replace(model(), flow=replace(flow, streams=(flow.streams[0], inside)))

    assert set(tune_epochs(engine).settings.batch_rows) == {"source->first"}


@given(rows=st.integers(1, 10**7), batch=st.integers(1, 10**5), slots=st.integers(1, 8))
def test_batches_chosen_give_away_next_to_nothing_and_smaller_ones_never_pay(rows, batch, slots):
    engine = model()
    chosen = tune_epochs(engine, slots=slots, rows_max=rows).settings
    asked = min(batch, *chosen.batch_rows.values())
    small = replace(chosen, batch_rows=dict.fromkeys(chosen.batch_rows, asked))

    mine, largest = engine.predict(chosen), engine.predict(replace(chosen, batch_rows={}))
    assert mine.epoch_s <= largest.epoch_s * 1.0051
    assert engine.predict(small).epoch_s >= mine.epoch_s * (1 - 1e-9)


def test_what_half_the_batch_would_give_is_said():
    tuned = tune_epochs(model())

    (said,) = [line for line in tuned.why if line.startswith("batches of up to")]
    assert "with half of that" in said and "with all that fits in a message" in said


def service() -> EpochModel:
    """One costly operator that waits, two cheap ones, and one for all: 12 tasks on 2 processors."""
    flow = FlowModel(
        (
            Step("source", 1e-6, source_rate=1e4, at_source=True),
            Step("first", 2e-6),
            Step("call", 2e-4, wait_s=1.9e-4),
            Step("second", 2e-6),
            Step("total", 1e-7, instances=1),
        ),
        (
            Stream("source", "first", 1, 50),
            Stream("first", "call", 1, 50, between_slots=True),
            Stream("call", "second", 1, 50, between_slots=True),
            Stream("second", "total", 0.01, 20, between_slots=True),
        ),
    )
    costs = EngineCosts(2e-5, 16e-9, task_s=0.05, epoch_s=0.1, level_s=0.05)
    return EpochModel(flow, costs, 4, 12, cpus=2, source_tasks=2, slots_seen=12)


def test_what_waits_gets_many_instances_and_what_is_cheap_few():
    tuned = tune_epochs(service(), rows_max=20_000)

    counts = {choice.name: choice.instances for choice in tuned.operators}
    assert counts["call"] >= 10
    assert counts["first"] <= 2 and counts["second"] <= 2 and counts["total"] == 1
    assert tuned.bottleneck == "call"
    alike = max(
        tune_epochs(service(), slots=n, instances={}, rows_max=20_000).prediction.rows_per_s
        for n in range(1, 13)
    )
    assert tuned.prediction.rows_per_s > 1.15 * alike


def test_every_operator_is_explained():
    tuned = tune_epochs(service(), rows_max=20_000)

    why = {choice.name: choice.why for choice in tuned.operators}
    assert why["source"].startswith("in source tasks")
    assert "it waits 95% of its time" in why["call"] and "with 5 " in why["call"]
    assert "as declared" in why["total"]
    assert "with an instance of each operator in all slots" in tuned.why[0]
    rates = {choice.name: choice.rows_per_s for choice in tuned.operators}
    assert rates["total"] == pytest.approx(0.01 * rates["second"])
    assert all(0 <= choice.busy <= 1 for choice in tuned.operators)


def test_instances_that_are_given_stay():
    given_ones = {"first": 3, "call": 4, "second": 1, "total": 1}

    tuned = tune_epochs(service(), slots=6, instances=given_ones)

    assert tuned.settings.instances == given_ones
    assert tune_epochs(service(), slots=6).settings.slots == 6


def test_declared_instances_are_no_choice():
    engine = service()
    source, first, call, *others = engine.flow.steps
    steps = (source, first, replace(call, instances=5), *others)

    tuned = tune_epochs(replace(engine, flow=replace(engine.flow, steps=steps)))

    assert tuned.settings.instances.get("call", tuned.settings.slots) == 5


def test_an_epoch_stays_within_what_slots_should_hold():
    tuned = tune_epochs(model(), epoch_bytes_max=16_000)

    assert tuned.settings.rows_per_epoch == 2_000
    assert any("should hold at once" in line for line in tuned.why)


def test_of_two_cuts_the_smaller_one_is_told():
    tuned = tune_epochs(model(), epoch_bytes_max=16_000, rows_max=1_000)

    assert tuned.settings.rows_per_epoch == 1_000
    assert [line for line in tuned.why if "is cut to" in line] == [
        "an epoch is cut to 1,000 rows, as asked for"
    ]


@given(
    rate=st.floats(100, 1e7),
    ppt=st.floats(1e-8, 1e-4),
    cores=st.integers(1, 4),
    rows_max=st.none() | st.integers(1, 10**6),
    held=st.sampled_from([1_000, 10**5, 1 << 50]),
    target=st.none() | st.floats(0.01, 60),
)
@example(rate=1000, ppt=1e-5, cores=1, rows_max=5, held=1 << 50, target=None)
@example(rate=1000, ppt=1e-5, cores=1, rows_max=None, held=1_000, target=None)
@example(rate=9.5e3, ppt=5e-5, cores=1, rows_max=None, held=1 << 50, target=None)  # 95 % busy
@example(rate=2e4, ppt=1e-5, cores=8, rows_max=9_000, held=1 << 50, target=None)
def test_reasons_agree_with_what_is_predicted(rate, ppt, cores, rows_max, held, target):
    """Against every slot count by itself, for epochs that are cut."""
    tune = partial(tune_epochs, model(ppt, cores), rate=rate, latency_s=target)
    tune = partial(tune, rows_max=rows_max, epoch_bytes_max=held)

    chosen = tune()
    every = [tune(slots=n, instances={}) for n in range(1, cores + 1)]

    why, reached = " ".join(chosen.why), chosen.prediction.rows_per_s
    assert ("falls behind: " in why) == (reached < rate * (1 - 1e-6))
    assert f"{chosen.settings.rows_per_epoch:,} rows" in why
    assert ("without a limit" in why) == ("is cut to" in why)
    if "at most 80%" in why:
        assert reached >= rate / HEADROOM * (1 - 1e-6)
    fastest = max(t.prediction.rows_per_s for t in every)
    if reached < rate / HEADROOM * (1 - 1e-6) and target is None:
        assert reached >= 0.95 * fastest * (1 - 1e-6)
    if any(t.prediction.rows_per_s >= rate / HEADROOM * (1 + 1e-6) for t in every):
        assert reached >= rate / HEADROOM * (1 - 1e-6)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rate", 0.0),
        ("rate", -1.0),
        ("rate", float("nan")),
        ("latency_s", 0.0),
        ("max_slots", 0),
        ("slots", 0),
        ("rows_max", 0),
        ("epoch_bytes_max", 0),
    ],
)
def test_arguments_of_nothing_are_refused_by_name(name, value):
    with pytest.raises(DeclarationError, match=f"{name} is {value}, and must be"):
        tune_epochs(model(), **{name: value})


def test_work_in_source_tasks_asks_for_no_slots():
    """Parsing is most of the work, and its parallelism is the source's: one slot is enough."""
    flow = FlowModel(
        (
            Step("source", 1e-6, source_rate=1e6, at_source=True),
            Step("parse", 4e-6, at_source=True),
            Step("count", 1e-8),
        ),
        (Stream("source", "parse", 1, 0), Stream("parse", "count", 0.01, 16)),
    )
    engine = EpochModel(flow, SPARK, 1, 4, source_tasks=4)

    tuned = tune_epochs(engine)

    assert tuned.settings.slots == 1
    assert tuned.bottleneck == "parse"
    assert any("1 of 4 slots" in line for line in tuned.why)
    assert any("of an epoch in source tasks: more processors" in line for line in tuned.why)
    assert tuned.prediction.rows_per_s > 0.9 * 4 / 5e-6


@given(
    ppt=st.floats(1e-8, 1e-4), cores=st.integers(1, 5), at_source=st.sampled_from([(), ("first",)])
)
def test_no_slot_count_is_much_faster_than_the_chosen_one(ppt, cores, at_source):
    """Against trying them all."""
    flow = at_source_tasks(two_counts(ppt), "source", *at_source)
    engine = replace(model(ppt, cores), flow=flow, source_tasks=cores)
    chosen = tune_epochs(engine)

    every = [tune_epochs(engine, slots=n).prediction.rows_per_s for n in range(1, cores + 1)]
    assert chosen.prediction.rows_per_s >= 0.95 * max(every) * (1 - 1e-9)
    assert all(rate < 0.99 * max(every) for rate in every[: chosen.settings.slots - 1])


def test_slots_are_chosen_for_the_epochs_that_may_be_had():
    """Large epochs pay for more slots, small ones do not."""
    engine = replace(model(5e-6, cores=4), costs=replace(SPARK, task_s=0.4))

    assert tune_epochs(engine).settings.slots == 4
    small = tune_epochs(engine, rows_max=1_000)
    assert small.settings.slots == 1
    assert small.settings.rows_per_epoch == 1_000
    assert any("as asked for" in line for line in small.why)


def test_rows_that_seem_to_cost_nothing_are_not_rationed():
    flow = FlowModel((Step("source", source_rate=1e3), Step("op")), (Stream("source", "op", 1, 0),))
    engine = EpochModel(flow, replace(SPARK, byte_s=0.0), levels=1, cores=1)

    assert tune_epochs(engine, epoch_bytes_max=5_000).settings.rows_per_epoch == 5_000
