"""Event time behind windows, and at the end of the input."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headgate as hg
from headgate.errors import DeclarationError
from headgate.operator.rows import EpochClock
from headgate.slot.compile import clocks_behind_windows, compile_flow, is_closing_due, packed
from headgate.slot.program import Program
from headgate.testing import ListSource, run
from strategies import examples

START = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: int) -> datetime:
    return START + timedelta(seconds=seconds)


def chained(epochs: list[list[dict[str, Any]]], first: str, second: str, time: str) -> hg.Flow:
    flow = hg.Flow("chained")
    rows = flow.source(ListSource("k string, ts timestamp", epochs), event_time="ts")
    counts = rows.key_by("k").process(hg.Count(window=hg.Tumbling(first, time="ts")), name="first")
    last = hg.Sum("count", window=hg.Tumbling(second, time=time))
    counts.globally().process(last, name="second").to_memory("out")
    return flow


def compiled(first: str, second: str) -> Program:
    return compile_flow(chained([], first, second, "window_start").graph())


def test_what_a_window_emits_is_not_late_for_the_next_one() -> None:
    epochs = [[{"k": "a", "ts": at(s)}] for s in (0, 30, 120, 125, 300)]

    for time, start in (("window_start", 0), ("window_end", 60)):
        result = run(chained(epochs, "1 minute", "1 minute", time))

        first = result.rows("out")[0]
        assert (first["window_start"], first["sum"]) == (at(start), 2)
        assert all(not record["late_rows"] for record in result.records)


def test_an_hour_is_not_late_for_minutes() -> None:
    """A window that is shorter than the one before it waits until that one is closed."""
    epochs = [[{"k": "a", "ts": at(s)}] for s in (0, 3_500, 3_700, 3_800)]

    result = run(chained(epochs, "1 hour", "1 minute", "window_start"))

    assert [(row["window_start"], row["sum"]) for row in result.rows("out")] == [(at(0), 2)]


def test_when_the_input_ends_all_windows_close_one_after_the_other() -> None:
    epochs = [[{"k": "a", "ts": at(s)} for s in range(0, 90, 3)], [{"k": "b", "ts": at(80)}]]

    result = run(chained(epochs, "1 minute", "1 hour", "window_end"), input_ends=True)

    assert [(row["window_start"], row["sum"]) for row in result.rows("out")] == [(at(0), 31)]
    assert result.state("first") == result.state("second") == []
    assert run(chained(epochs, "1 minute", "1 hour", "window_end")).rows("out") == []


@examples(100)
@given(
    before=st.none() | st.integers(-(10**9), 10**9),
    more=st.integers(0, 10**9),
    size=st.integers(1, 10**8),
)
def test_rows_of_windows_that_are_open_are_never_late(
    before: int | None, more: int, size: int
) -> None:
    """Whatever the first operator may still emit, the second has not closed."""
    program = compiled(f"{size} microseconds", "7 microseconds")
    clock = EpochClock(3, 0, (before or 0) + more, before)

    behind = clocks_behind_windows(program, clock)["second"]

    late_us = behind.previous_watermark_us
    if before is not None:
        first_open = before // size * size  # it ends after what the first operator has closed
        assert late_us is not None and late_us <= first_open
        assert first_open <= before < first_open + size


def test_operators_that_are_not_behind_windows_have_the_flows_time() -> None:
    clocks = clocks_behind_windows(compiled("1 minute", "1 hour"), EpochClock(1, 0, 5))

    assert set(clocks) == {"second"}
    assert clocks_behind_windows(compiled("1 minute", "1 hour"), EpochClock(1, 0)) == {}


# --- epochs without rows ----------------------------------------------------------------------


@examples(40)
@given(
    seconds=st.lists(st.lists(st.integers(0, 200), min_size=1, max_size=3), min_size=1, max_size=4),
    sizes=st.tuples(*[st.sampled_from([20, 60, 90, 3600])] * 2),
)
def test_a_tick_closes_what_the_last_rows_completed_once_and_only_if_it_is_due(
    seconds: list[list[int]], sizes: tuple[int, int]
) -> None:
    epochs = [[{"k": "a", "ts": at(s)} for s in some] for some in seconds]
    flow = chained(epochs, f"{sizes[0]} seconds", f"{sizes[1]} seconds", "window_start")
    at_end = run(flow).coordinator
    last = at_end.last
    assert last is not None

    ticked = run(flow, ticks=2)

    counted: Counter[int] = Counter()
    for epoch, some in enumerate(seconds):
        earlier = seconds[: max(epoch - 1, 0)]  # a row counts in the epoch that emits its window
        mark = max((s for before in earlier for s in before), default=-1)
        starts = [s // sizes[0] * sizes[0] for s in some]
        counted.update(start for start in starts if start + sizes[0] > mark)
    mark = max(s for some in seconds for s in some)
    whole = {start: n for start, n in counted.items() if start + sizes[0] <= mark}
    behind = mark // sizes[0] * sizes[0]
    sums: Counter[int] = Counter()
    for start, n in whole.items():
        sums[start // sizes[1] * sizes[1]] += n
    wanted = {at(start): n for start, n in sums.items() if start + sizes[1] <= behind}
    emitted = [(row["window_start"], row["sum"]) for row in ticked.rows("out")]
    assert len(emitted) == len(dict(emitted)) and dict(emitted) == wanted
    closed, nothing = ticked.records[-2:]
    due = is_closing_due(at_end.program, last.used_watermark_us, last.watermark_us)
    assert due or not closed["sink_rows"]
    assert not nothing["sink_rows"] and closed["tick"]
    after = ticked.coordinator.last
    assert after is not None
    assert not is_closing_due(at_end.program, after.used_watermark_us, after.watermark_us)


def test_a_tick_is_not_due_when_no_window_ends() -> None:
    program = compiled("1 minute", "1 hour")

    assert not is_closing_due(program, 61_000_000, 119_999_999)
    assert is_closing_due(program, 61_000_000, 120_000_000)
    assert is_closing_due(program, None, 0)
    assert not is_closing_due(program, None, None)


def test_a_tick_is_due_for_operators_that_do_not_say_what_they_hold() -> None:
    flow = hg.Flow("own")
    rows = flow.source(ListSource("k string, ts timestamp", []), event_time="ts")
    rows.key_by("k").process(EndsEpochs(), name="own").to_memory("out")

    assert is_closing_due(compile_flow(flow.graph()), 1, 2)
    assert not is_closing_due(compile_flow(flow.graph()), 2, 2)


class EndsEpochs(hg.StatefulOperator):
    ends_epochs = True

    def state_fields(self, rows: pa.Schema, key: Sequence[str]) -> hg.StateFields:
        return hg.StateFields(pa.schema([]))

    def output_schema(self, rows: pa.Schema, key: Sequence[str]) -> pa.Schema:
        return rows


# --- A flow that cannot travel to workers is refused, and the operator that cannot is named.


def _same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


@dataclass(frozen=True)
class Locked(hg.Count):
    lock: Any = field(default_factory=threading.Lock)


def flow_with(function: Any, operator: Any) -> hg.Flow:
    flow = hg.Flow("f")
    rows = flow.source(ListSource("k bigint", [[{"k": 1}]])).map(_same, "k bigint", name="first")
    rows = rows.map(function, "k bigint", name="second")
    rows.key_by("k").process(operator, name="counts").to_memory("out")
    return flow


def locking() -> Any:
    lock = threading.Lock()

    def locked(batch: pa.RecordBatch) -> pa.RecordBatch:
        with lock:
            return batch

    return locked


@pytest.mark.parametrize(
    ("flow", "named"),
    [
        (flow_with(locking(), hg.Count()), "second"),
        (flow_with(_same, Locked()), "counts"),
    ],
)
def test_the_kit_refuses_what_spark_would_and_names_the_operator(flow: hg.Flow, named: str) -> None:
    with pytest.raises(DeclarationError, match="lock") as caught:
        run(flow)

    assert caught.value.operator == named and repr(named) in str(caught.value)


def test_functions_with_closures_travel() -> None:
    step = [3]
    flow = flow_with(lambda batch: {"k": [k.as_py() + step[0] for k in batch["k"]]}, hg.Count())

    assert run(flow).rows("out") == [{"k": 4, "count": 1}]


def test_a_program_that_fails_as_a_whole_is_reported_too() -> None:
    program = compile_flow(flow_with(_same, hg.Count()).graph())

    def dumps(thing: Any) -> bytes:
        if thing is program:
            raise ValueError("too large")
        return pickle.dumps(thing)

    with pytest.raises(DeclarationError, match="too large"):
        packed(program, dumps)


def test_the_kit_does_not_import_pyspark() -> None:
    code = (
        "import sys, headgate as hg\n"
        "from headgate.testing import ListSource, run\n"
        "flow = hg.Flow('f')\n"
        "flow.source(ListSource('k bigint', [[{'k': 1}]])).to_memory('out')\n"
        "run(flow)\n"
        "assert '_headgate_cloudpickle' in sys.modules\n"
        "assert not [name for name in sys.modules if name.split('.')[0] in ('pyspark', 'py4j')]\n"
    )

    subprocess.run([sys.executable, "-c", code], check=True)
