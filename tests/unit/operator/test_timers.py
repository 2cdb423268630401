"""Timers of per-key functions and of vectorised operators: when they fire, how often, in order."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headgate as hg
from headgate.errors import HeadgateError
from headgate.operator.base import Output, StateFields, StatefulOperator
from headgate.testing import ListSource, ManualClock, run

START = datetime(2026, 1, 1, tzinfo=UTC)
GAP = timedelta(seconds=10)
SCHEMA = "device string, ts timestamp"
ALARMS = "device string, silent_since timestamp"


def at(second):
    return START + timedelta(seconds=second)


def seen(device, rows, state, context):
    latest = max([row["ts"] for row in rows] + ([state] if state else []))
    context.set_timer(latest + GAP)
    return latest, None


def silent(device, timer, state, context):
    return state, [{"device": device, "silent_since": state}]


def alarm_flow(epochs, order_by="ts", delay=5, operator=None):
    flow = hg.Flow("alarms")
    source = ListSource(SCHEMA, epochs)
    rows = flow.source(source, event_time="ts", watermark=timedelta(seconds=delay))
    operator = operator or hg.Update(seen, output=ALARMS, rows_as="dicts", on_timer=silent)
    rows.key_by("device").process(operator, name="silence", order_by=order_by).to_memory("out")
    return flow


def gaps(rows, watermark):
    """Every silence of 10 s or more, by a loop over each device's sorted times."""
    found = []
    for device in sorted({device for device, _ in rows}):
        times = sorted(second for name, second in rows if name == device)
        for time, following in zip(times, [*times[1:], None], strict=True):
            until = watermark if following is None else following
            if until - time >= 10:
                found.append((device, time))
    return sorted(found)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 120)), min_size=1, max_size=40),
    st.integers(1, 5),
    st.integers(1, 3),
    st.booleans(),
)
def test_every_silence_is_told_once_however_rows_are_cut_into_epochs(rows, cuts, slots, crash):
    rows = sorted(rows, key=lambda row: row[1])  # none is late
    size = -(-len(rows) // cuts)
    epochs = [
        [{"device": d, "ts": at(s)} for d, s in rows[i : i + size]]
        for i in range(0, len(rows), size)
    ]
    # the clock row takes the watermark past all others
    epochs.append([{"device": "clock", "ts": at(1000)}])
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        told = {}
        if crash and len(epochs) > 1:
            first = run(alarm_flow(epochs[:-1]), slots=slots, checkpoint=place)
            told |= {(r["device"], r["silent_since"]): e for e, r in first.outputs.get("out", [])}
        done = run(alarm_flow(epochs), slots=4 - slots, checkpoint=place, ticks=2)
        again = [(r["device"], r["silent_since"]) for _, r in done.outputs.get("out", [])]
        repeated = [alarm for alarm in again if alarm in told]
        last = first.outputs["out"][-1][0] if crash and told else None
        assert all(told[alarm] == last for alarm in repeated)  # the epoch is delivered again
        alarms = sorted({*told, *again})
    found = [(d, round((since - START).total_seconds())) for d, since in alarms]
    assert [alarm for alarm in found if alarm[0] != "clock"] == gaps(rows, 995)


def test_without_an_order_timers_fire_after_the_rows_of_their_epoch():
    epochs = [[{"device": "a", "ts": at(0)}], [{"device": "b", "ts": at(60)}], []]
    done = run(alarm_flow(epochs, order_by=None))
    assert [row["silent_since"] for row in done.rows("out")] == [at(0)]


def test_a_processing_time_timer_fires_once_when_the_clock_has_passed_it():
    def begin(key, rows, state, context):
        context.set_timer(context.now + timedelta(seconds=5), name="later", clock="processing")
        return 1, None

    def later(key, timer, state, context):
        assert (timer.name, timer.clock) == ("later", "processing")
        return None, [{"device": key, "silent_since": timer.at}]

    clock = ManualClock(1_000)
    operator = hg.Update(begin, output=ALARMS, on_timer=later)
    epochs = [[{"device": "a", "ts": at(0)}], [], [], []]
    flow = alarm_flow(epochs, order_by=None, operator=operator)
    done = run(flow, clock=clock, before_epoch=lambda epoch: clock.advance(3_000))
    assert [epoch for epoch, _ in done.outputs["out"]] == [2]
    assert done.state("silence") == []


def test_timers_that_are_cancelled_or_moved_do_not_fire_at_their_old_time():
    def begin(key, rows, state, context):
        for row in rows:
            if state is None:
                context.set_timer(row["ts"] + GAP, name="a")
                context.set_timer(row["ts"] + GAP, name="b")
            else:
                context.cancel_timer("a")
                context.set_timer(row["ts"] + GAP, name="b")
            state = 1
        return state, None

    def tell(key, timer, state, context):
        return state, [{"device": timer.name, "silent_since": timer.at}]

    operator = hg.Update(begin, output=ALARMS, rows_as="dicts", on_timer=tell)
    epochs = [[{"device": "x", "ts": at(0)}], [{"device": "x", "ts": at(3)}]]
    epochs += [[{"device": "x", "ts": at(100)}], []]
    done = run(alarm_flow(epochs, operator=operator, delay=0), ticks=1)
    assert [tuple(row.values()) for row in done.rows("out")] == [("b", at(13))]


def test_timers_set_by_timers_fire_in_order_within_one_epoch():
    def begin(key, rows, state, context):
        context.set_timer(rows[0]["ts"] + GAP)
        return 0, None

    def again(key, timer, state, context):
        if state < 3:
            context.set_timer(timer.at + GAP)
        return state + 1, [{"device": key, "silent_since": timer.at}]

    operator = hg.Update(begin, output=ALARMS, rows_as="dicts", on_timer=again)
    epochs = [[{"device": "x", "ts": at(0)}], [{"device": "y", "ts": at(1000)}], []]
    done = run(alarm_flow(epochs, order_by=None, operator=operator))
    fired = [row["silent_since"] for row in done.rows("out") if row["device"] == "x"]
    assert fired == [at(10), at(20), at(30), at(40)]


def test_a_timer_that_sets_itself_to_the_past_for_ever_is_an_error():
    def begin(key, rows, state, context):
        context.set_timer(rows[0]["ts"])
        return 0, None

    def again(key, timer, state, context):
        context.set_timer(timer.at)
        return 0, None

    operator = hg.Update(begin, output=ALARMS, rows_as="dicts", on_timer=again)
    epochs = [[{"device": "x", "ts": at(0)}], [{"device": "y", "ts": at(9)}], []]
    with pytest.raises(HeadgateError, match="due at once"):
        run(alarm_flow(epochs, order_by=None, operator=operator))


class Silence(StatefulOperator):
    """The same alarm, vectorised."""

    uses_timers = True

    def state_fields(self, rows, key):
        return StateFields(pa.schema([("since", pa.int64())]))

    def output_schema(self, rows, key):
        return pa.schema([("device", pa.string()), ("silent_since", pa.timestamp("us", "UTC"))])

    def process(self, rows, state, clock):
        latest = np.full(len(rows.groups), np.iinfo(np.int64).min)
        times = rows.column("ts").cast(pa.int64()).to_numpy()
        np.maximum.at(latest, rows.groups.codes, times)
        latest = np.maximum(latest, state.read(rows.groups)["since"])
        state.write(rows.groups, {"since": latest})
        state.timers.set(rows.groups, latest + 10_000_000)
        return Output()

    def on_timers(self, timers, state, clock):
        groups = timers.keys.groups
        since = pa.array(state.read(groups)["since"]).cast(pa.timestamp("us", "UTC"))
        return pa.record_batch([groups.columns.column(0), since], ["device", "silent_since"])


def test_a_vectorised_operator_has_timers_too():
    epochs = [[{"device": d, "ts": at(s)} for s, d in enumerate("abcabd")]]
    epochs += [[{"device": "z", "ts": at(500)}], []]
    done = run(alarm_flow(epochs, operator=Silence(), order_by=None), slots=3)
    found = sorted((row["device"], row["silent_since"]) for row in done.rows("out"))
    assert found == [("a", at(3)), ("b", at(4)), ("c", at(2)), ("d", at(5))]


def test_a_function_that_fails_in_a_timer_makes_a_dead_letter_of_it():
    def bad(key, timer, state, context):
        raise ValueError("no")

    operator = hg.Update(seen, output=ALARMS, rows_as="dicts", on_timer=bad)
    flow = alarm_flow(
        [[{"device": "a", "ts": at(0)}], [{"device": "b", "ts": at(50)}], []],
        order_by=None,
        operator=operator,
    )
    flow.dead_letters().to_memory("dead")
    done = run(flow)
    assert ["no" in row["reason"] for row in done.rows("dead")] == [True]


def test_a_context_without_on_timer_tells_the_time_only():
    def tell(key, rows, state, context):
        return 1, [{"device": key, "silent_since": context.watermark}]

    def wrong(key, rows, state, context):
        context.set_timer(context.now)
        return 1, None

    epochs = [[{"device": "a", "ts": at(7)}], [{"device": "a", "ts": at(8)}]]
    done = run(alarm_flow(epochs, None, 5, hg.Update(tell, output=ALARMS)))
    assert [row["silent_since"] for row in done.rows("out")] == [None, at(2)]
    with pytest.raises(HeadgateError, match="on_timer"):
        run(alarm_flow(epochs, None, 5, hg.Update(wrong, output=ALARMS)))
