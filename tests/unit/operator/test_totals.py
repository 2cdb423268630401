"""Totals of panes: what they hold, and that windows do not show whether there are any."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.operator.checks import TIME, Stream, streams
from tests.unit.operator.harness import Away, Epoch, Slot, batch_of

from headgate.operator import Aggregate, Count, Max, Mean, Sliding, Sum
from headgate.operator.totals import PANES, THERE, TOTALS
from headgate.state.layout import StateSchema
from strategies import examples

SHAPES = [(10, 5, 0), (30, 10, 3), (12, 8, 5), (7, 1, 0), (60, 7, 2), (60, 1, 0)]
LARGE = [2**63 - 1, -(2**63), 2**62, 2**58, -(2**58)]
SMALL = st.one_of(st.none(), st.integers(-9, 9))


def sliding(shape: tuple[int, int, int], **more: Any) -> Sliding:
    size, slide, offset = (timedelta(seconds=s) for s in shape)
    return Sliding(size, slide, "ts", offset=offset, **more)


def sums(shape: tuple[int, int, int], kind: pa.DataType) -> Aggregate:
    made = {"n": Count(), "some": Count("v"), "total": Sum("v"), "few": Sum("v", where="v > 2")}
    if pa.types.is_int32(kind):
        made["mean"] = Mean("v")
    return Aggregate(made, window=sliding(shape))


class Plain(Slot):
    """A slot of before there were totals."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._beside: dict[str, StateSchema] = {}
        self._chains = {}


def totals_of(slot: Slot) -> list[dict[str, Any]]:
    with slot._open_beside(TOTALS, 99) as beside:
        rows: list[dict[str, Any]] = beside.all().batch().to_pylist()
    return rows


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int32(), SMALL),
        (pa.int64(), st.one_of(SMALL, st.sampled_from(LARGE))),
        (pa.decimal128(12, 2), SMALL),
    ],
    ids=["int", "large", "decimal"],
)
@examples(60)
@given(data=st.data())
def test_windows_do_not_show_whether_there_are_totals(
    kind: pa.DataType, values: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    """The same bytes, whatever is late, split, refused or closed at once; also if they are lost."""
    stream: Stream = data.draw(streams(values))
    shape = data.draw(st.sampled_from(SHAPES))
    operator, now = sums(shape, kind), -20
    of = (stream.schema(kind), stream.keys)
    with Slot(operator, *of) as slot, Plain(operator, *of) as plain:
        for tasks in [*stream.epochs(), [], [], []]:
            batches = [[stream.batch(call, kind) for call in calls] for calls in tasks]
            away = data.draw(st.booleans(), label="away")
            calls = [[Away(call) if away else call for call in task] for task in batches]
            epoch = Epoch(calls, watermark_us=now * 10**6)
            if data.draw(st.integers(0, 9), label="lost") == 0:
                slot._chains = dict.fromkeys(slot._chains, ())
            got, expected = slot.run(epoch), plain.run(epoch)
            assert got == expected
            now += data.draw(st.sampled_from([0, 1, 3, 9, 30]))
        slot.run(Epoch([], watermark_us=10**10))
        assert slot.held() == []


ZONES = ["Europe/Berlin", "Australia/Lord_Howe", "America/St_Johns"]
HOURS = [(24, 6, 0), (24, 24, 5), (5, 3, 2), (2, 1, 0), (50, 7, 0)]


@examples(60)
@given(
    zone=st.sampled_from(ZONES),
    shape=st.sampled_from(HOURS),
    begin=st.sampled_from(["2024-03-29", "2024-04-05", "2024-10-04", "2024-10-25", "2024-11-01"]),
    epochs=st.lists(
        st.tuples(
            st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 96)), max_size=5),
            st.sampled_from([0, 2, 6, 30]),  # half hours
        ),
        max_size=12,
    ),
)
def test_clocks_that_are_put_forward_and_back_change_nothing_either(
    zone: str, shape: tuple[int, int, int], begin: str, epochs: list[Any]
) -> None:
    """Days of 23 and 25 hours; hours that are left out or come twice, or half of them."""
    size, slide, offset = (timedelta(hours=h) for h in shape)
    window = Sliding(size, slide, "ts", offset=offset, timezone=zone)
    schema = pa.schema({"k": pa.string(), "ts": TIME})
    first = int(datetime.fromisoformat(f"{begin}T00:00:00Z").timestamp()) * 2 // 3600
    now = first
    operator = Count(window=window)
    with Slot(operator, schema, ["k"]) as slot, Plain(operator, schema, ["k"]) as plain:
        for rows, step in [*epochs, ([], 96), ([], 96)]:
            times = [(first + at) * 1800 * 10**6 for _, at in rows]
            given_rows = batch_of(schema, k=[k for k, _ in rows], ts=times)
            epoch = Epoch([[given_rows]] if rows else [], watermark_us=now * 1800 * 10**6)
            assert slot.run(epoch) == plain.run(epoch)
            now += step


@examples(60)
@given(stream=streams(SMALL), shape=st.sampled_from(SHAPES), data=st.data())
def test_a_total_is_the_sum_of_the_panes_that_were_in_a_closed_window(
    stream: Stream, shape: tuple[int, int, int], data: st.DataObject
) -> None:
    """That is why closing reads only panes that come and go; the windows' end is plain arithmetic.

    Once a first window of the stream is closed: before, there is nothing to add panes to.
    """
    size, slide, offset = shape
    operator, now, built = Sum("v", window=sliding(shape)), -20, False
    with Slot(operator, stream.schema(pa.int64()), stream.keys) as slot:
        for tasks in stream.epochs():
            batches = [[stream.batch(call, pa.int64()) for call in calls] for calls in tasks]
            slot.run(Epoch(batches, watermark_us=now * 10**6))
            last = (now - size - offset) // slide * slide + offset
            with slot._open(99, 0, None) as state:
                panes = state.all().batch().to_pylist()
            expected, known = dict[str, list[int]](), [*stream.keys]
            for pane in panes:
                if pane["window_start"].timestamp() < last + size:
                    total = expected.setdefault(repr([pane[k] for k in known]), [0, 0, 0])
                    total[0] += 1
                    total[1] += pane["sum"] or 0
                    total[2] += pane["sum"] is not None
            held = {
                repr([row[k] for k in known]): [row[PANES], row["sum"], row[THERE + "sum"]]
                for row in totals_of(slot)
            }
            if built:
                assert held == expected
            step = data.draw(st.sampled_from([slide, 2 * slide, 3 * slide + 1]))
            now, built = now + step, True


def test_a_window_reads_panes_that_come_and_go_only() -> None:
    """Shown by panes that nobody may read: they hold something else than the totals know."""
    schema = pa.schema({"k": pa.string(), "v": pa.int64(), "ts": TIME})
    operator = Sum("v", window=sliding((10, 1, 0)))
    with Slot(operator, schema, ["k"]) as slot:
        rows = batch_of(schema, k=["a"] * 10, v=[1] * 10, ts=[s * 10**6 for s in range(10)])
        slot.run(Epoch([[rows]], watermark_us=9 * 10**6))
        slot.run(Epoch([], watermark_us=10 * 10**6))
        with slot._open(98, 0, None) as state:
            all_panes = state.all()
            changed = all_panes.batch().set_column(2, "sum", pa.array([100] * len(all_panes)))
            column = all_panes.layout.find("sum")
            values = {**all_panes.columns, column.name: column.store(changed["sum"], len(changed))}
            state.absorb(type(all_panes)(all_panes.layout, all_panes.ids, values))
            slot.chain = state.commit()
        closed = slot.run(Epoch([], watermark_us=11 * 10**6)).finished
        again = slot.run(Epoch([], watermark_us=12 * 10**6)).finished

    assert [row["sum"] for row in closed] == [9]  # the second of one to ten lost its first pane
    assert [row["sum"] for row in again] == [9 - 100]


def test_only_exact_sums_have_totals() -> None:
    schema = pa.schema({"k": pa.string(), "v": pa.int64(), "f": pa.float64(), "ts": TIME})
    window = sliding((10, 5, 0))
    late = sliding((10, 5, 0), allowed_lateness="1 minute")
    has = Counter(
        {
            name: TOTALS in operator.beside(schema, ["k"])
            for name, operator in {
                "sum": Sum("v", window=window),
                "floats": Sum("f", window=window),
                "wide mean": Mean("v", window=window),
                "max": Max("v", window=window),
                "joint": Aggregate(n=Count(), total=Sum("v"), window=window),
                "not all": Aggregate(n=Count(), high=Max("v"), window=window),
                "told again": Sum("v", window=late),
                "for a while": Sum("v", window=window, ttl="1 hour"),
                "no window": Sum("v"),
            }.items()
        }
    )
    assert {name for name, yes in has.items() if yes} == {"sum", "joint"}
