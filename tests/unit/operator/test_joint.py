"""Aggregate: several measures in one row of state, each equal to a plain fold of its rows.

Whatever is drawn: which aggregates with which conditions, windows, when results are told, and
whether rows are folded in other slots and merged.
"""

from __future__ import annotations

import math
import pickle
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.operator.harness import Away, Epoch, Slot, batch_of
from tests.unit.operator.measured import (
    CASES,
    EPOCH,
    SCHEMA,
    WHERES,
    Row,
    near,
    numbered,
    rows_of_a_stream,
)

from headgate.errors import DeclarationError, NameClash, SchemaMismatch, UnknownColumn
from headgate.operator import Aggregate, Count, Max, MeanOfLast, Min, Sliding, Sum, Tumbling
from strategies import examples

NAMES = [f"{case}|{where}" for case in CASES for where in WHERES]
SHAPES = [None, (10, 10), (20, 5), (30, 7)]
KEYED = pa.schema({"k": pa.string(), "v": pa.int64(), "ts": pa.timestamp("us", "UTC")})


def measure_of(name: str) -> Any:
    case, where = name.split("|")
    return CASES[case].make(where=WHERES[where].expression)


def folded(name: str, rows: list[Row]) -> Any:
    case, where = name.split("|")
    return CASES[case].fold([r for r in rows if WHERES[where].holds(r)])


def same(one: Any, other: Any) -> bool:
    if isinstance(other, near):
        return same(one, float(other)) or abs(one - other) <= 0.01 * abs(other)
    if isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float) and isinstance(other, float):
        if math.isnan(one) or math.isnan(other):
            return math.isnan(one) and math.isnan(other)
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-6)
    if isinstance(one, datetime):
        return bool(one.astimezone(UTC) == other)
    return one == other and (type(one) is type(other) or isinstance(one, Decimal))


def check_results(names: list[str], row: Row, rows: list[Row]) -> None:
    for name in names:
        expected = folded(name, rows)
        assert same(row[name], expected), (name, row[name], expected, rows)


def epochs_of(rows: list[Row]) -> list[list[list[list[Row]]]]:
    """Epochs of tasks of calls."""
    epochs: list[list[list[list[Row]]]] = [[[[]]]]
    for row in rows:
        if row["break"] == 3:
            epochs.append([[[]]])
        elif row["break"] == 2:
            epochs[-1].append([[]])
        elif row["break"] == 1:
            epochs[-1][-1].append([])
        epochs[-1][-1][-1].append(row)
    return epochs


def calls_of(tasks: list[list[list[Row]]], away: bool) -> list[list[pa.RecordBatch | Away]]:
    """Batches; every second call is made in another slot, if any is."""
    levels: list[list[pa.RecordBatch | Away]] = []
    for calls in tasks:
        level: list[pa.RecordBatch | Away] = []
        for number, call in enumerate(calls):
            batch = pa.RecordBatch.from_pylist(call, schema=SCHEMA)
            level.append(Away(batch) if away and number % 2 else batch)
        levels.append(level)
    return levels


def windows_of(row: Row, shape: tuple[int, int] | None) -> list[int | None]:
    if shape is None:
        return [None]
    size, slide = shape
    return list(range(row["second"] // slide * slide, row["second"] - size, -slide))


chosen_names = st.lists(st.sampled_from(NAMES), min_size=1, max_size=5, unique=True)


@examples(60)
@given(
    rows=rows_of_a_stream.map(numbered),
    names=chosen_names,
    shape=st.sampled_from(SHAPES),
    emit=st.sampled_from(["updates", "changes"]),
    lateness=st.sampled_from([0, 0, 15]),
    split=st.booleans(),
    data=st.data(),
)
def test_results_are_those_of_plain_folds(
    rows: list[Row], names: list[str], shape: Any, emit: Any, lateness: int, split: bool, data: Any
) -> None:
    window = None
    if shape is not None:
        names = [name for name in names if CASES[name.split("|")[0]].panes] or ["count|"]
        size, slide = (timedelta(seconds=s) for s in shape)
        late = timedelta(seconds=lateness)
        window = (
            Tumbling(size, "ts", allowed_lateness=late)
            if size == slide
            else Sliding(size, slide, "ts", allowed_lateness=late)
        )
    operator = Aggregate({name: measure_of(name) for name in names}, window=window, emit=emit)
    split = split and operator.mergeable(SCHEMA, ["k"])
    held: dict[tuple[Any, Any], list[Row]] = defaultdict(list)
    told: set[tuple[Any, Any]] = set()
    before, now = -(10**6), -20
    with Slot(operator, SCHEMA, ["k"]) as slot:
        for tasks in [*epochs_of(rows), []]:
            touched = set()
            for row in (r for calls in tasks for call in calls for r in call):
                for start in windows_of(row, shape):
                    if start is None or start + shape[0] + lateness > before:
                        held[row["k"], start].append(row)
                        touched.add((row["k"], start))
            result = slot.run(Epoch(calls_of(tasks, split), watermark_us=now * 10**6))
            assert not result.dead and not result.dead_partials
            due = touched
            if shape is not None and emit == "updates":
                closing = {w for w in held if w[1] + shape[0] <= now}
                due = {w for w in closing if w in touched or w[1] + shape[0] > before}
            got = {}
            for made in result.finished:
                start = None
                if shape is not None:
                    start = (made["window_start"].astimezone(UTC) - EPOCH) // timedelta(seconds=1)
                got[made["k"], start] = made
            assert len(got) == len(result.finished)
            assert set(got) == due
            for which, made in got.items():
                check_results(names, made, held[which])
                if operator.tells:
                    assert made["change"] == ("update" if which in told else "insert")
            told |= set(got)
            before, now = now, now + data.draw(st.integers(0, 40))


@examples(30)
@given(rows=rows_of_a_stream.map(numbered), names=chosen_names)
def test_running_results_are_those_after_each_row(rows: list[Row], names: list[str]) -> None:
    names = [name for name in names if CASES[name.split("|")[0]].running] or ["count|"]
    operator = Aggregate({name: measure_of(name) for name in names}, emit="running")
    seen: dict[Any, list[Row]] = defaultdict(list)
    with Slot(operator, SCHEMA, ["k"]) as slot:
        for tasks in epochs_of(rows):
            result = slot.run(Epoch(calls_of(tasks, away=False)))
            came = [r for calls in tasks for call in calls for r in call]
            for row, made in zip(came, result.passed, strict=True):
                seen[row["k"]].append(row)
                assert made["n"] == row["n"]
                check_results(names, made, seen[row["k"]])


@examples(20)
@given(rows=rows_of_a_stream.map(numbered), name=st.sampled_from(NAMES))
def test_a_condition_on_an_aggregate_by_itself(rows: list[Row], name: str) -> None:
    seen: dict[Any, list[Row]] = defaultdict(list)
    measure = measure_of(name)
    with Slot(measure, SCHEMA, ["k"]) as slot:
        for tasks in epochs_of(rows):
            result = slot.run(Epoch(calls_of(tasks, away=False)))
            for row in (r for calls in tasks for call in calls for r in call):
                seen[row["k"]].append(row)
            for made in result.finished:
                assert same(made[measure.name], folded(name, seen[made["k"]]))


def test_a_row_that_one_sum_cannot_take_is_refused_for_all() -> None:
    operator = Aggregate(n=Count(), total=Sum("v"), high=Max("v"))
    batch = batch_of(KEYED, k=["a", "a", "b"], v=[2**62, 2**62, 1], ts=[1, 2, 3])
    with Slot(operator, KEYED, ["k"]) as slot:
        result = slot.run(Epoch([[batch]]))

    assert sorted(result.dead) == [0, 1]
    assert "Sum of column 'v' leaves the 64-bit range" in result.dead[0]
    assert result.finished == [{"k": "b", "n": 1, "total": 1, "high": 1}]


def test_one_row_of_state_holds_them_all() -> None:
    operator = Aggregate(n=Count(), low=Min("v"), high=Max("v", where=pc.field("v") > 3))
    batch = batch_of(KEYED, k=["a", "a"], v=[1, 2], ts=[1, 2])
    with Slot(operator, KEYED, ["k"]) as slot:
        slot.run(Epoch([[batch]]))
        assert slot.held() == [{"k": "a", "n.count": 2, "low.value": 1, "high.value": None}]


def test_only_columns_that_are_read_are_asked_for() -> None:
    where = (pc.field("i") > 0) & pc.field("s").is_valid()
    operator = Aggregate(n=Count(where=where), total=Sum("m"))

    assert operator.needs(SCHEMA, ["k"], set()) == {"k", "i", "s", "m"}
    assert Count(where=where).needs(SCHEMA, ["k"], set()) == {"k", "i", "s"}


def test_it_says_what_it_is() -> None:
    operator = Aggregate(n=Count(where=pc.field("v") > 1), window=Tumbling("1 day", "ts"))
    again = pickle.loads(pickle.dumps(operator))

    assert repr(again) == repr(operator)
    assert again.describe() == operator.describe()
    assert operator.describe() == {
        "operator": "Aggregate",
        "aggregates": {"n": {"operator": "Count", "column": None, "where": "(v > 1)"}},
        "window": {"kind": "tumbling", "time": "ts", "size_us": 86_400_000_000},
    }


@pytest.mark.parametrize(
    ("declare", "match"),
    [
        (Aggregate, "no aggregates"),
        (lambda: Aggregate(n=Count(emit="rows")), "emit= is said once"),
        (lambda: Aggregate(n=Count(ttl="1 hour")), "ttl= is said once"),
        (lambda: Aggregate(n=MeanOfLast("v", 3)), "share a row of state"),
        (lambda: Aggregate(n="count"), "share a row of state"),  # type: ignore[arg-type]
        (lambda: Aggregate(n=Count(), emit="often"), "'often'"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_joined_is_refused(declare: Any, match: str) -> None:
    with pytest.raises(DeclarationError, match=match):
        declare()


@pytest.mark.parametrize(
    ("operator", "error", "match"),
    [
        (Aggregate(k=Count()), NameClash, "another keyword"),
        (Aggregate(n=Sum("nope")), UnknownColumn, "'nope'"),
        (Count(where=pc.field("nope") > 1), UnknownColumn, "where= of Count"),
        (Count(where=pc.field("v")), SchemaMismatch, "no condition"),
        (Count(where="v > 1 and"), DeclarationError, "where= of Count"),
        (Count(where=lambda row: True), DeclarationError, "SQL text"),
    ],
)
def test_what_does_not_fit_the_rows_is_refused(operator: Any, error: Any, match: str) -> None:
    with pytest.raises(error, match=match):
        operator.declared(KEYED, ["k"])
