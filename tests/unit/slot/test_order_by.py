"""`order_by=`: rows of a key reach an operator in event-time order, whatever way they came."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headgate as hg
from headgate.errors import DeclarationError
from headgate.testing import ListSource, run

START = datetime(2026, 1, 1, tzinfo=UTC)
SCHEMA = "k string, ts timestamp, n bigint"
OUT = "k string, seen string"


def at(second):
    return START + timedelta(seconds=second)


def joined(key, rows, state):
    """Writes down all that it has seen, in order."""
    seen = (state or "") + "".join(f"{row['n']}," for row in rows)
    return seen, [{"k": key, "seen": seen}]


def flow_of(epochs, delay=10, operator=None):
    flow = hg.Flow("f")
    source = ListSource(SCHEMA, epochs)
    rows = flow.source(source, event_time="ts", watermark=timedelta(seconds=delay))
    operator = operator or hg.Update(joined, output=OUT, rows_as="dicts")
    rows.key_by("k").process(operator, name="op", order_by="ts").to_memory("out")
    return flow


def expected(epochs, delay):
    """(key -> values in order, late rows): slow and obvious."""
    previous = current = latest = None
    waiting, order, late, arrival = [], {}, 0, 0
    for epoch in epochs:
        for key, second, n in epoch:
            if previous is not None and second < previous:
                late += 1
            else:
                waiting.append((second, arrival, key, n))
            arrival += 1
        ready = sorted(row for row in waiting if current is not None and row[0] < current)
        waiting = [row for row in waiting if row not in ready]
        for _, _, key, n in ready:
            order.setdefault(key, []).append(n)
        previous = current
        seconds = [second for _, second, _ in epoch]
        latest = max([*seconds, *([] if latest is None else [latest])], default=None)
        current = None if latest is None else latest - delay
    return order, waiting, late


epochs_of_rows = st.lists(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 60)), max_size=12),
    min_size=1,
    max_size=6,
)


@settings(max_examples=40, deadline=None)
@given(epochs_of_rows, st.integers(0, 20), st.integers(1, 3))
def test_rows_come_as_in_a_sorted_fold(drawn, delay, slots):
    number = iter(range(1000))
    epochs = [[(key, second, next(number)) for key, second in epoch] for epoch in drawn]
    given_rows = [[{"k": k, "ts": at(s), "n": n} for k, s, n in epoch] for epoch in epochs]

    done = run(flow_of(given_rows, delay), slots=slots, partitions=1)

    order, waiting, late = expected(epochs, delay)
    seen = {}
    for row in done.rows("out"):
        seen[row["k"]] = [int(n) for n in row["seen"].split(",")[:-1]]
    assert seen == order
    assert sum(record.get("late_rows", {}).get("op", 0) for record in done.records) == late
    assert sum(len(n) for n in order.values()) + late + len(waiting) == next(number)


def test_when_the_input_ends_all_rows_are_handed_over():
    epochs = [[{"k": "a", "ts": at(s), "n": s} for s in (5, 1, 3)]]
    done = run(flow_of(epochs), input_ends=True)
    assert done.rows("out")[-1]["seen"] == "1,3,5,"


def test_a_mean_of_the_last_is_that_of_the_latest_times():
    seconds = [9, 2, 7, 1, 8, 3]
    epochs = [[{"k": "a", "ts": at(s), "n": s} for s in seconds]]
    done = run(flow_of(epochs, operator=hg.MeanOfLast("n", 2)), input_ends=True)
    means = [(row["n"], row["mean"]) for row in done.rows("out")]
    assert means == [(1, 1.0), (2, 1.5), (3, 2.5), (7, 5.0), (8, 7.5), (9, 8.5)]


def test_rows_that_wait_survive_a_restart_and_another_number_of_slots(tmp_path):
    epochs = [[{"k": k, "ts": at(s), "n": s} for s in (5, 1, 3) for k in "abcdef"]]
    later = [{"k": k, "ts": at(s), "n": s} for s in (2, 90) for k in "abcdef"]
    run(flow_of(epochs), slots=2, checkpoint=tmp_path)
    done = run(flow_of([*epochs, later]), slots=3, checkpoint=tmp_path, ticks=1)
    assert {row["k"]: row["seen"] for row in done.rows("out")} == dict.fromkeys(
        "abcdef", "1,2,3,5,"
    )


def test_a_row_without_a_time_is_a_dead_letter():
    flow = flow_of([[{"k": "a", "ts": None, "n": 1}, {"k": "a", "ts": at(1), "n": 2}]])
    flow.dead_letters().to_memory("dead")
    done = run(flow, input_ends=True)
    assert [row["seen"] for row in done.rows("out")] == ["2,"]
    assert "no event time" in done.rows("dead")[0]["reason"]


def test_order_needs_event_times_of_a_source():
    flow = hg.Flow("f")
    rows = flow.source(ListSource(SCHEMA, [[]]))
    rows.key_by("k").process(hg.Count(), order_by="ts")
    with pytest.raises(DeclarationError, match="wait for ever"):
        flow.graph()


def test_order_needs_a_column_of_times():
    rows = hg.Flow("f").source(ListSource(SCHEMA, [[]]), event_time="ts")
    with pytest.raises(DeclarationError, match="'n'"):
        rows.key_by("k").process(hg.Count(), order_by="n")
    with pytest.raises(DeclarationError, match="one place"):
        rows.key_by("k", grouping="partial").process(hg.Count(), order_by="ts")
