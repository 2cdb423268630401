"""Sessions against a plain fold: all times of a key in a list, cut where the pause is too long."""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.unit.operator.checks import Stream, same, streams
from tests.unit.operator.harness import Away, Epoch, Slot, batch_of
from tests.unit.operator.test_fixed_windows import FOLDS, NUMBERS, ROWS, batch, second_of

from headgate.errors import DeclarationError
from headgate.operator import Count, Session, Sum, TopK

GAPS = st.sampled_from([1, 4, 10, 25])
Times = list[tuple[int, Any]]  # rows of a key: second and value


def sessions_of(rows: Times, gap: int) -> list[Times]:
    cut: list[Times] = []
    for row in sorted(rows, key=lambda row: row[0]):
        if cut and row[0] <= cut[-1][-1][0] + gap:
            cut[-1].append(row)
        else:
            cut.append([row])
    return cut


def bounds_of(rows: Times, gap: int) -> tuple[int, int]:
    return rows[0][0], rows[-1][0] + gap


def place_of(row: dict[str, Any], keys: list[str]) -> tuple[Any, ...]:
    ends = second_of(row["window_start"]), second_of(row["window_end"])
    return (*(row[k] for k in keys), *ends)


@settings(max_examples=150, deadline=None)
@given(streams(NUMBERS), GAPS, st.sampled_from(list(FOLDS)), st.booleans(), st.data())
def test_sessions_are_those_of_a_plain_fold(
    stream: Stream, gap: int, name: str, away: bool, data: Any
) -> None:
    """Also with rows that other slots fold, whose partials may join two sessions."""
    make, kind, oracle = FOLDS[name]
    if pa.types.is_string(kind):
        rows = [(k, None if v is None else f"{v:07}", t, b) for k, v, t, b in stream.rows]
        stream = Stream(stream.shape, rows)
    away = away and name != "floats"
    open_: dict[tuple[Any, ...], Times] = defaultdict(list)
    before, now = -(10**6), -20
    with Slot(make(Session(timedelta(seconds=gap), "ts")), stream.schema(kind), stream.keys) as s:
        for tasks in [*stream.epochs(), []]:
            late = 0
            for row in (row for calls in tasks for call in calls for row in call):
                if row[2] + gap <= before:
                    late += 1
                else:
                    open_[stream.key(row)].append((row[2], row[1]))
            batches = [[stream.batch(call, kind) for call in calls] for calls in tasks]
            if away:
                batches = [[Away(b) if n % 2 else b for n, b in enumerate(bs)] for bs in batches]
            result = s.run(Epoch(batches, watermark_us=now * 10**6))
            expected = {}
            for key, rows in open_.items():
                cut = sessions_of(rows, gap)
                over = [one for one in cut if one[-1][0] + gap <= now]
                expected |= {(*key, *bounds_of(one, gap)): one for one in over}
                open_[key] = [row for one in cut if one not in over for row in one]
            got = {place_of(row, stream.keys): row for row in result.finished}
            assert result.late == late
            assert len(got) == len(result.finished)
            assert {repr(place) for place in got} == {repr(place) for place in expected}
            for place, row in got.items():
                values = [v for _, v in expected[place] if v is not None]
                assert same(row[name], oracle(values)), (place, values)
            assert [row["window_start"] for row in result.finished] == sorted(
                row["window_start"] for row in result.finished
            )
            before, now = now, now + data.draw(st.integers(0, 30))
        s.run(Epoch([], watermark_us=10**9))
        assert s.held() == []


@settings(max_examples=150, deadline=None)
@given(streams(NUMBERS), GAPS, st.booleans(), st.sampled_from([0, 15, 60]), st.data())
@example(Stream("number", [(1, 1, 0, 0), (1, 2, 20, 0), (1, 3, 10, 3)]), 10, True, 0, None)
def test_changes_build_what_a_plain_fold_holds(
    stream: Stream, gap: int, early: bool, lateness: int, data: Any
) -> None:
    """A table that applies them holds each session once; a session that grew is taken back."""
    if not early and not lateness:
        lateness = 5
    window = Session(timedelta(seconds=gap), "ts", allowed_lateness=timedelta(seconds=lateness))
    operator = Sum("v", window=window, emit="changes" if early else "updates")
    held: dict[tuple[Any, ...], Times] = defaultdict(list)
    table: dict[tuple[Any, ...], Any] = {}
    final: dict[tuple[Any, ...], Any] = {}
    before, now = -(10**6), -20
    with Slot(operator, stream.schema(pa.int64()), stream.keys) as slot:
        for tasks in [*stream.epochs(), []]:
            touched = Counter[tuple[Any, ...]]()
            for row in (row for calls in tasks for call in calls for row in call):
                if row[2] + gap + lateness > before:
                    held[stream.key(row)].append((row[2], row[1]))
                    touched[(*stream.key(row), row[2])] += 1
            batches = [[stream.batch(call, pa.int64()) for call in calls] for calls in tasks]
            result = slot.run(Epoch(batches, watermark_us=now * 10**6))
            for row in result.finished:
                place = place_of(row, stream.keys)
                if row["change"] == "delete":
                    assert row["sum"] is None
                    del table[place]
                    continue
                assert (row["change"] == "update") == (place in table)
                spans = (touched[(*place[:-2], t)] for t in range(place[-2], place[-1] - gap + 1))
                assert place not in table or sum(spans), "told again, though nothing came"
                table[place] = row["sum"]
            expected = dict(final)
            for key, rows in held.items():
                cut = sessions_of(rows, gap)
                for one in cut:
                    values = [v for _, v in one if v is not None]
                    if early or one[-1][0] + gap <= now:
                        expected[(*key, *bounds_of(one, gap))] = sum(values) if values else None
                gone = [one for one in cut if one[-1][0] + gap + lateness <= now]
                for one in gone:
                    place = (*key, *bounds_of(one, gap))
                    final[place] = expected[place]
                held[key] = [row for one in cut if one not in gone for row in one]
            assert table == expected
            before, now = now, now + (30 if data is None else data.draw(st.integers(0, 30)))
        slot.run(Epoch([], watermark_us=10**9))
        assert slot.held() == []


@settings(max_examples=40, deadline=None)
@given(streams(st.sampled_from(["x", "y", "z", None])), GAPS)
def test_ranks_the_items_of_sessions(stream: Stream, gap: int) -> None:
    """Items of a key share its sessions, which may have pauses of some item."""
    times: dict[tuple[Any, ...], Times] = defaultdict(list)
    operator = TopK("v", 2, Session(timedelta(seconds=gap), "ts"))
    with Slot(operator, stream.schema(pa.string()), stream.keys) as slot:
        for row in stream.rows:
            if row[1] is not None:
                times[stream.key(row)].append((row[2], row[1]))
        slot.run(Epoch([[stream.batch([row], pa.string())] for row in stream.rows]))
        got = [
            (*place_of(row, stream.keys), row["rank"], row["v"], row["count"])
            for row in slot.run(Epoch([], watermark_us=10**9)).finished
        ]
    expected = []
    for key, rows in times.items():
        for one in sessions_of(rows, gap):
            counts = Counter(item for _, item in one).items()
            best = sorted(counts, key=lambda pair: (-pair[1], pair[0]))[:2]
            place = (*key, *bounds_of(one, gap))
            expected += [(*place, rank, *pair) for rank, pair in enumerate(best, 1)]
    assert sorted(map(repr, got)) == sorted(map(repr, expected))


def test_a_long_session_keeps_few_rows() -> None:
    """Its past is merged as the watermark goes on; the result is that of all rows."""
    with Slot(Sum("v", window=Session("2 seconds", "ts")), ROWS, ["k"]) as slot:
        most = 0
        for second in range(100):
            got = slot.run(Epoch([[batch(second)]], watermark_us=(second - 3) * 10**6)).finished
            assert not got
            most = max(most, len(slot.held()))
        slot.run(Epoch([[batch(97)]], watermark_us=97 * 10**6))
        last = slot.run(Epoch([], watermark_us=10**9)).finished

    assert most <= 8
    assert [row["sum"] for row in last] == [sum(range(100)) + 97]
    assert (second_of(last[0]["window_start"]), second_of(last[0]["window_end"])) == (0, 101)


def test_a_late_row_joins_two_sessions() -> None:
    window = Session("10 seconds", "ts")
    with Slot(Count(window=window, emit="changes"), ROWS, ["k"]) as slot:
        two = slot.run(Epoch([[batch(0, 18)]], watermark_us=0)).finished
        one = slot.run(Epoch([[batch(9)]], watermark_us=0)).finished

    def told(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
        return [(*place_of(row, []), row["count"], row["change"]) for row in rows]

    assert told(two) == [(0, 10, 1, "insert"), (18, 28, 1, "insert")]
    assert told(one) == [(0, 10, None, "delete"), (18, 28, None, "delete"), (0, 28, 3, "insert")]


def test_sessions_in_processing_time() -> None:
    epochs = [(2, 0), (1, 8_000), (0, 17_999), (0, 18_000), (1, 18_001)]
    got = []
    with Slot(Count(window=Session("10 seconds", None)), ROWS, ["k"]) as slot:
        for count, now_ms in epochs:
            result = slot.run(Epoch([[batch(*range(count))]], now_ms=now_ms))
            got.append([(*place_of(row, ["k"]), row["count"]) for row in result.finished])

    assert got == [[], [], [], [(1, 0, 18, 3)], []]


def test_sums_of_floats_do_not_leak_into_the_next_session() -> None:
    rows = pa.schema({"k": pa.int64(), "v": pa.float64(), "ts": pa.timestamp("us", "UTC")})
    values, seconds = [1e300, float("nan"), 1.0, 2.0], [0, 1, 10, 11]
    given = batch_of(rows, k=[1] * 4, v=values, ts=[s * 10**6 for s in seconds])
    with Slot(Sum("v", window=Session("2 seconds", "ts")), rows, ["k"]) as slot:
        slot.run(Epoch([[given]]))
        got = [row["sum"] for row in slot.run(Epoch([], watermark_us=10**8)).finished]

    assert got[0] != got[0] and got[1] == 3.0


@pytest.mark.parametrize(
    ("declare", "match"),
    [
        (lambda: Session("0 seconds", "ts"), "positive"),
        (lambda: Session("soon", "ts"), "not a duration"),
        (lambda: Session("1 day", "ts", late="keep"), "choose 'drop' or 'dead_letters'"),
        (lambda: Session("1 day", None, allowed_lateness="1 hour"), "no row is late"),
        (lambda: Count(window=Session("1 day", "ts"), emit="rows"), "when it is final"),
    ],
)
def test_what_cannot_work_is_refused(declare: Any, match: str) -> None:
    with pytest.raises(DeclarationError, match=match):
        declare()


def test_the_gap_is_kept_in_the_checkpoint() -> None:
    assert Count(window=Session("1 minute", "ts")).describe()["window"] == {
        "kind": "session", "time": "ts", "gap_us": 60_000_000,
    }  # fmt: skip
