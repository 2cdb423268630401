"""The global window against a plain fold: what came since a key was told, or in all."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.operator.checks import Stream, streams
from tests.unit.operator.harness import Away, Epoch, Slot
from tests.unit.operator.test_fixed_windows import ROWS

from headgate.errors import DeclarationError
from headgate.operator import Count, Global, Sum, TopK

NUMBERS = st.integers(-(10**6), 10**6)
EVERY = st.sampled_from([None, 2, 5, "10 seconds"])


@settings(max_examples=120, deadline=None)
@given(streams(NUMBERS), EVERY, st.booleans(), st.booleans(), st.booleans(), st.data())
def test_a_trigger_tells_what_a_plain_fold_holds(
    stream: Stream, every: Any, event: bool, reset: bool, away: bool, data: Any
) -> None:
    more = {"clock": "event"} if event and isinstance(every, str) else {}
    window = Global(every, then="reset" if reset else "keep", **more)
    held: dict[Any, list[int]] = defaultdict(list)
    new: dict[Any, int] = defaultdict(int)
    before, now = None, 3
    with Slot(Sum("v", window=window), stream.schema(pa.int64()), stream.keys) as slot:
        for tasks in [*stream.epochs(), []]:
            touched = set()
            for row in (row for calls in tasks for call in calls for row in call):
                held[stream.key(row)].append(row[1])
                new[stream.key(row)] += 1
                touched.add(stream.key(row))
            batches: list[list[Any]] = [
                [stream.batch(call, pa.int64()) for call in calls] for calls in tasks
            ]
            if away:
                batches = [[Away(b) if n % 2 else b for n, b in enumerate(bs)] for bs in batches]
            result = slot.run(Epoch(batches, watermark_us=now * 10**6, now_ms=now * 1000))
            if isinstance(every, str):
                due = set(new) if before is not None and now // 10 > before // 10 else set()
            else:
                due = {key for key in touched if new[key] >= (every or 1)}
            got = {tuple(row[k] for k in stream.keys): row["sum"] for row in result.finished}
            assert got == {key: sum(held[key]) for key in due}
            assert len(got) == len(result.finished) and not result.late
            for key in due:
                del new[key]
                if reset:
                    del held[key]
            before, now = now, now + data.draw(st.integers(0, 15))
        assert len(slot.held()) == len(held)


@pytest.mark.parametrize(
    ("declare", "match"),
    [
        (lambda: Global(0), "every"),
        (lambda: Global("soon"), "not a duration"),
        (lambda: Global(5, clock="event"), "is for an interval"),
        (lambda: Global(5, then="stop"), "choose 'keep' or 'reset'"),
        (lambda: Global(late="dead_letters"), "no row is late"),
        (lambda: Count(window=Global(), emit="changes").state_fields(ROWS, ["k"]), "its trigger"),
        (lambda: TopK("v", 2, Global()).output_schema(ROWS, ["k"]), "Global never is"),
    ],
)
def test_what_cannot_work_is_refused(declare: Any, match: str) -> None:
    with pytest.raises(DeclarationError, match=match):
        declare()
