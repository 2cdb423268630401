"""A flow that has changed goes on from its state, and its results are those of a plain fold.

Each change runs some epochs as it was, dies or ends, and goes on as it is now with another number
of slots; what it holds then is compared with an oracle that knows nothing of files.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headgate as hg
from headgate.commit import faults
from headgate.commit.inspection import Inspection
from headgate.errors import DeclarationError, IncompatibleFlow, UnknownName
from headgate.testing import ListSource, run
from headgate.topology.schema import to_schema

Rows = list[dict[str, Any]]
KEYS = 7


class Killed(BaseException):
    """The driver is dead."""


@dataclass(frozen=True)
class Change:
    """How a flow is declared before and after, what a start says, and what it should hold."""

    before: Callable[[hg.Flow, list[Rows]], None]
    after: Callable[[hg.Flow, list[Rows]], None]
    expected: Callable[[Rows, Rows], Rows]
    says: dict[str, Any] = field(default_factory=dict)
    operator: str = "op"


def source(flow: hg.Flow, schema: str, epochs: list[Rows], **names: str) -> Any:
    """Rows of k and v under these names, as the schema's types."""
    kinds = to_schema(schema)
    made = [
        pa.table({f.name: _column([row[n] for row in rows], f.type) for f, n in zip(kinds, "kv")})
        for rows in epochs
    ]
    return flow.source(ListSource(schema, made), name=names.get("name", "rows"))


def _column(values: list[int], kind: pa.DataType) -> pa.Array:
    if pa.types.is_string(kind):
        return pa.array([f"n{value}" for value in values], kind)
    if pa.types.is_decimal(kind):
        return pa.array([Decimal(value) for value in values], kind)
    return pa.array(values, pa.int64()).cast(kind)


def folded(make: Callable[[list[int]], Any], key: str, out: str) -> Callable[[Rows, Rows], Rows]:
    def expected(first: Rows, second: Rows) -> Rows:
        values: dict[int, list[int]] = {}
        for row in first + second:
            values.setdefault(row["k"], []).append(row["v"])
        return [{key: k, out: make(v)} for k, v in values.items()]

    return expected


def declare(schema: str, key: str, operator: Callable[[], Any], name: str = "op") -> Any:
    def made(flow: hg.Flow, epochs: list[Rows]) -> None:
        source(flow, schema, epochs).key_by(key).process(operator(), name=name).to_memory("out")

    return made


def summed(key: Any, rows: Rows, state: Any) -> Any:
    held = 0 if state is None else state["total"]
    return (held + sum(row["v"] for row in rows),), None


def renamed_total(key: Any, rows: Rows, state: Any) -> Any:
    held = 0 if state is None else state["total"]
    return (held + sum(row["v"] for row in rows),), None


def total_and_count(key: Any, rows: Rows, state: Any) -> Any:
    """`seen` counts from 100 in keys that were there before it was."""
    state = state or {"seen": 0, "amount": 0}
    assert state["seen"] is not None
    return {
        "seen": state["seen"] + len(rows),
        "amount": state["amount"] + sum(row["v"] for row in rows),
    }, None


OUT = pa.schema({"k": pa.int64()})


def update(fn: Any, state: str, **more: Any) -> Callable[[], Any]:
    return lambda: hg.Update(fn, OUT, "dicts", state=state, **more)


def seen_since(first: Rows, second: Rows) -> Rows:
    old = {row["k"] for row in first}
    sums = folded(sum, "k", "amount")(first, second)
    counts = {row["k"]: 100 * (row["k"] in old) for row in sums}
    for row in second:
        counts[row["k"]] += 1
    return [row | {"seen": counts[row["k"]]} for row in sums]


def counted_since(first: Rows, second: Rows) -> Rows:
    """The total of all rows, and of what came since keys were there: 7 more where they were."""
    old = {row["k"] for row in first}
    since: dict[int, list[int]] = {}
    for row in second:
        since.setdefault(row["k"], []).append(row["v"])
    return [
        row
        | {"seen.count": 7 * (row["k"] in old) + len(since.get(row["k"], []))}
        | {"users.values": sorted(set(since[row["k"]])) if row["k"] in since else None}
        | {"low.value": min(since[row["k"]]) if row["k"] in since else None}
        for row in folded(sum, "k", "all.sum")(first, second)
    ]


LONG = "k bigint, v bigint"
CHANGES = {
    "aggregates added, one renamed, one given up": Change(
        declare(LONG, "k", lambda: hg.Aggregate(total=hg.Sum("v"), high=hg.Max("v"))),
        declare(
            LONG,
            "k",
            lambda: hg.Aggregate(
                {"all": hg.Sum("v")},
                seen=hg.Count(),
                low=hg.Min("v"),
                users=hg.CountDistinct("v"),
                defaults={"seen": 7, "low": None, "users": None},
            ),
        ),
        counted_since,
        {"renamed": {"op.total": "all"}, "drop_state": ["op.high"]},
    ),
    "a wider value": Change(
        declare("k bigint, v int", "k", lambda: hg.Max("v")),
        declare(LONG, "k", lambda: hg.Max("v")),
        folded(max, "k", "value"),
    ),
    "a wider float": Change(
        declare("k bigint, v float", "k", lambda: hg.Min("v")),
        declare("k bigint, v double", "k", lambda: hg.Min("v")),
        folded(lambda v: float(min(v)), "k", "value"),
    ),
    "a wider decimal": Change(
        declare("k bigint, v decimal(9,1)", "k", lambda: hg.Max("v")),
        declare("k bigint, v decimal(14,3)", "k", lambda: hg.Max("v")),
        folded(lambda v: Decimal(max(v)).quantize(Decimal("0.001")), "k", "value"),
    ),
    "a sum of wider values": Change(
        declare("k bigint, v int", "k", lambda: hg.Sum("v")),
        declare(LONG, "k", lambda: hg.Sum("v")),
        folded(sum, "k", "sum"),
    ),
    "a wider key": Change(
        declare("k int, v bigint", "k", lambda: hg.Sum("v")),
        declare(LONG, "k", lambda: hg.Sum("v")),
        folded(sum, "k", "sum"),
    ),
    "another name of a key": Change(
        declare(LONG, "k", lambda: hg.Sum("v")),
        declare("user bigint, v bigint", "user", lambda: hg.Sum("v")),
        folded(sum, "user", "sum"),
        {"renamed": {"k": "user"}},
    ),
    "another name of a column": Change(
        declare(LONG, "k", lambda: hg.Sum("v")),
        declare("k bigint, amount bigint", "k", lambda: hg.Sum("amount")),
        folded(sum, "k", "sum"),
        {"renamed": {"op.v": "amount"}},
    ),
    "another name of an operator": Change(
        declare(LONG, "k", lambda: hg.Sum("v")),
        declare(LONG, "k", lambda: hg.Sum("v"), "sums"),
        folded(sum, "k", "sum"),
        {"renamed": {"op": "sums"}},
        "sums",
    ),
    "another name of a function": Change(
        declare(LONG, "k", update(summed, "total bigint")),
        declare(LONG, "k", update(renamed_total, "total bigint")),
        folded(sum, "k", "total"),
        {"renamed": {"summed": "renamed_total"}},
    ),
    "state columns: one added, one renamed": Change(
        declare(LONG, "k", update(summed, "total bigint")),
        declare(
            LONG, "k", update(total_and_count, "seen int, amount bigint", defaults={"seen": 100})
        ),
        seen_since,
        {"renamed": {"op.total": "amount", "summed": "total_and_count"}},
    ),
    "all begins anew": Change(
        declare(LONG, "k", lambda: hg.Sum("v")),
        declare("k bigint, v double", "k", lambda: hg.Sum("v")),
        lambda first, second: folded(lambda v: float(sum(v)), "k", "sum")([], second),
        {"reset": ["op"]},
    ),
}


def epochs_of(seed: int, count: int) -> list[Rows]:
    draw = random.Random(seed)
    return [
        [
            {"k": draw.randrange(KEYS), "v": draw.randrange(-9, 100)}
            for _ in range(draw.randrange(9))
        ]
        for _ in range(count)
    ]


def flow_of(declared: Callable[[hg.Flow, list[Rows]], None], epochs: list[Rows]) -> hg.Flow:
    flow = hg.Flow("changing")
    declared(flow, epochs)
    return flow


def bag(rows: Rows) -> list[str]:
    return sorted(str(sorted(row.items())) for row in rows)


@pytest.mark.parametrize("name", CHANGES)
@given(seed=st.integers(0, 2**20), first=st.integers(1, 4), more=st.integers(0, 3), data=st.data())
@settings(max_examples=4)
def test_a_changed_flow_holds_what_a_fold_of_all_rows_holds(
    name: str,
    seed: int,
    first: int,
    more: int,
    data: st.DataObject,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    change, place = CHANGES[name], tmp_path_factory.mktemp("changed")
    epochs = epochs_of(seed, first + more + 1)
    slots = data.draw(st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 3)))
    point = data.draw(st.sampled_from(["planned", "tasks-done", "manifest-written", None]))
    told: dict[str, Any] = {"checkpoint": place, "warm_dir": str(place / "warm")}
    run(flow_of(change.before, epochs[:first]), slots=slots[0], **told)

    def die(at: str, epoch: int) -> None:
        if (at, epoch) == (point, first):
            raise Killed

    after = flow_of(change.after, epochs)
    if point is not None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(faults, "reach", die)
            with pytest.raises(Killed):
                run(after, slots=slots[1], **told, **change.says)
    run(after, slots=slots[1], **told, **change.says)
    done = run(after, slots=slots[2], **told, **change.says)  # said again, it changes nothing

    before = [row for rows in epochs[:first] for row in rows]
    since = [row for rows in epochs[first:] for row in rows]
    assert bag(done.state(change.operator)) == bag(change.expected(before, since))
    seen = Inspection(str(place)).rows(change.operator, 100)
    assert bag(seen.to_pylist()) == bag(done.state(change.operator))


# --- names, and what is refused ------------------------------------------------------------------


def kept_as(state: str, **defaults: Any) -> Callable[[], Any]:
    """Keys hold v in every column of the state from the start."""
    names = [part.split()[0] for part in state.split(",")]

    def fn(key: Any, rows: Rows, held: Any) -> Any:
        return (dict.fromkeys(names, rows[0]["v"]) if held is None else held), None

    return update(fn, state, defaults=defaults)


def goes_on(place: Path, at: int, state: str, defaults: dict[str, Any], **says: Any) -> Rows:
    """Epoch `at` has the new key `at`, whose value is `at` too."""
    epochs: list[Rows] = [[{"k": k, "v": k}] for k in range(at + 1)]
    flow = flow_of(declare(LONG, "k", kept_as(state, **defaults)), epochs)
    return run(flow, checkpoint=place, **says).state("op")


def test_a_name_given_up_and_taken_again_never_shows_what_it_was(tmp_path: Path) -> None:
    goes_on(tmp_path, 0, "a bigint", {})
    goes_on(tmp_path, 1, "b bigint", {}, renamed={"a": "b"})
    goes_on(tmp_path, 2, "b bigint, a int", {"a": 70})
    goes_on(tmp_path, 3, "b bigint", {}, drop_state=["op.a"])
    found = goes_on(tmp_path, 4, "b bigint, a bigint", {"a": 90}, slots=3)

    assert {row["k"]: (row["a"], row["b"]) for row in found} == {
        0: (90, 0), 1: (90, 1), 2: (90, 2), 3: (90, 3), 4: (4, 4)
    }  # fmt: skip


def test_a_default_is_that_of_the_start_that_added_the_column(tmp_path: Path) -> None:
    goes_on(tmp_path, 0, "a bigint", {})
    goes_on(tmp_path, 1, "a bigint, b bigint", {"b": 70})
    found = goes_on(tmp_path, 2, "a bigint, b bigint", {"b": 80})

    assert {row["k"]: row["b"] for row in found} == {0: 70, 1: 1, 2: 2}


EPOCH: list[Rows] = [[{"k": 1, "v": 1}]]
SUM = declare(LONG, "k", lambda: hg.Sum("v"))
TWO = declare(LONG, "k", lambda: hg.Aggregate(n=hg.Count(), high=hg.Max("v")))
STATE = declare(LONG, "k", update(summed, "total bigint"))


@pytest.mark.parametrize(
    ("before", "after", "says", "told"),
    [
        (SUM, declare("k bigint, v double", "k", lambda: hg.Sum("v")), {}, "reset="),
        (SUM, declare("k string, v bigint", "k", lambda: hg.Sum("v")), {}, "key column 'k' was"),
        (SUM, declare("user bigint, v bigint", "user", lambda: hg.Sum("v")), {}, "renamed={"),
        (SUM, declare(LONG, "v", lambda: hg.Sum("k")), {}, "key of 'op' was"),
        (STATE, declare(LONG, "k", update(summed, "amount bigint")), {}, "'total' is gone"),
        (STATE, declare(LONG, "k", update(summed, "total int")), {}, "was int64, is now int32"),
        (STATE, declare(LONG, "k", update(renamed_total, "total bigint")), {}, "settings of 'op'"),
        (
            declare(LONG, "k", lambda: hg.Last("v")),
            declare("k bigint, v bigint, w bigint", "k", lambda: hg.Last("v", "w")),
            {},
            "column 'w' is new",
        ),
        (
            TWO,
            declare(LONG, "k", lambda: hg.Aggregate(n=hg.Count(), low=hg.Min("v"))),
            {"drop_state": ["op.high"]},
            "Aggregate(..., defaults={'low': None})",
        ),
        (
            TWO,
            declare(LONG, "k", lambda: hg.Aggregate(n=hg.Count())),
            {},
            "start with drop_state=['op.high']",
        ),
        (
            TWO,
            declare(LONG, "k", lambda: hg.Aggregate(n=hg.Count(), high=hg.Min("v"))),
            {},
            "settings of 'op'",
        ),
    ],
)
def test_what_cannot_be_carried_on_is_refused_with_a_way_out(
    before: Any, after: Any, says: dict[str, Any], told: str, tmp_path: Path
) -> None:
    run(flow_of(before, EPOCH), checkpoint=tmp_path)
    files = {path: path.read_bytes() for path in (tmp_path / "manifests").iterdir()}

    with pytest.raises(IncompatibleFlow) as caught:
        run(flow_of(after, EPOCH), checkpoint=tmp_path, **says)

    assert told in str(caught.value) and "reset=['name']" in str(caught.value)
    assert files == {path: path.read_bytes() for path in (tmp_path / "manifests").iterdir()}


@pytest.mark.parametrize(
    ("says", "error", "told"),
    [
        ({"renamed": {"nothing": "other"}}, UnknownName, "knows neither"),
        ({"renamed": {"op": "new"}}, DeclarationError, "still has 'op'"),
        ({"renamed": {"a": "b", "b": "a"}}, DeclarationError, "is there twice"),
        ({"renamed": "op"}, DeclarationError, "old names with their new ones"),
        ({"reset": ["nothing"]}, UnknownName, "no such stateful operator"),
        ({"reset": "op"}, DeclarationError, "list of names"),
    ],
)
def test_names_that_mean_nothing_are_refused(
    says: dict[str, Any], error: type[Exception], told: str, tmp_path: Path
) -> None:
    run(flow_of(SUM, EPOCH), checkpoint=tmp_path)

    def two(flow: hg.Flow, epochs: list[Rows]) -> None:
        rows = source(flow, LONG, epochs)
        for name in ("op", "new"):
            rows.key_by("k").process(hg.Sum("v"), name=name).to_memory(f"out_{name}")

    with pytest.raises(error, match=told):
        run(flow_of(two, EPOCH), checkpoint=tmp_path, **says)


@pytest.mark.parametrize("renamed", [{"g": "h"}, {"sums.g": "h", "pairs.g": "h"}])
def test_a_join_of_changes_goes_on_under_another_column(
    tmp_path: Path, renamed: dict[str, str]
) -> None:
    """By which its rows are known; `g` is another column in each operator."""

    def flow(epochs: int, g: str) -> hg.Flow:
        flow = hg.Flow("f")
        left = [[{"k": n % 2, g: n % 3, "v": n}] for n in range(epochs)]
        right = [[{"id": n % 2, "w": n}] for n in range(epochs)]
        rows = flow.source(ListSource(f"k bigint, {g} bigint, v bigint", left), name="left")
        other = flow.source(ListSource("id bigint, w bigint", right), name="right")
        sums = rows.key_by("k", g).process(hg.Sum("v", emit="changes"), name="sums")
        sums.key_by("k").join(other.key_by("id"), name="pairs").to_memory("out")
        return flow

    run(flow(5, "g"), checkpoint=tmp_path, slots=2)
    done = run(flow(9, "h"), checkpoint=tmp_path, slots=3, renamed=renamed)

    def later(done: Any) -> Rows:
        return [dict(zip("kgswc", row.values(), strict=True))
                for epoch, row in done.outputs["out"] if epoch >= 5]  # fmt: skip

    assert bag(later(done)) == bag(later(run(flow(9, "g"))))


def test_a_reset_leaves_state_alone_that_still_fits(tmp_path: Path) -> None:
    run(flow_of(SUM, EPOCH), checkpoint=tmp_path)

    done = run(flow_of(SUM, EPOCH * 2), checkpoint=tmp_path, reset=["op"])

    assert done.state("op") == [{"k": 1, "sum": 2}]


def test_rows_that_wait_for_their_order_are_not_forgotten(tmp_path: Path) -> None:
    """They are refused a place where they would be lost, and go on under other names."""

    def waiting(columns: str, order: str | None, more: int = 0) -> hg.Flow:
        schema = to_schema(columns)
        first, when = schema.names[0], schema.names[1]
        times = [[5, 3], [40] * more, [80] * more]
        made = [
            pa.table([pa.array([1] * len(t)), pa.array([x * 10**6 for x in t], schema[1].type)],
                     schema=schema)
            for t in times[: 1 + 2 * bool(more)]
        ]  # fmt: skip
        flow = hg.Flow("f")
        rows = flow.source(
            ListSource(schema, made), name="rows", event_time=when, watermark="10 seconds"
        )
        rows.key_by(first).process(
            hg.Update(in_order, pa.schema({"n": pa.int64()}), "dicts"), name="op", order_by=order
        ).to_memory("out")
        return flow

    run(waiting("k bigint, ts timestamp", "ts"), checkpoint=tmp_path)
    with pytest.raises(IncompatibleFlow, match="order_by of 'op' was 'ts'"):
        run(waiting("k bigint, ts timestamp", None), checkpoint=tmp_path)

    after = waiting("k bigint, at timestamp", "at", more=1)
    done = run(after, checkpoint=tmp_path, renamed={"ts": "at"}, input_ends=True)

    assert [row["n"] for row in done.rows("out")] == [3, 5, 40, 80]


def test_whatever_an_added_aggregate_keeps_it_tells_what_came_since(tmp_path: Path) -> None:
    """In windows that are open too, from Variance to Collect; a window that is new has all."""

    def flow(more: dict[str, Any], epochs: list[Rows]) -> hg.Flow:
        flow = hg.Flow("f")
        given = [pa.Table.from_pylist(rows, TIMED) for rows in epochs]
        rows = flow.source(ListSource(TIMED, given), event_time="ts", watermark="1 hour")
        window = hg.Sliding("20 seconds", "10 seconds", time="ts")
        asked = hg.Aggregate({"n": hg.Count(), **more}, window=window, defaults=dict.fromkeys(more))
        rows.key_by("k").process(asked, name="op").to_memory("out")
        return flow

    since: dict[str, Any] = {
        "mean": hg.Mean("v"), "spread": hg.StdDev("v", population=True), "near": hg.Median("v"),
        "some": hg.ApproxCountDistinct("v"), "first": hg.First("v", by="ts"),
        "last": hg.Last("v", by="ts"), "all": hg.Collect("v", by="ts"), "top": hg.Any("big"),
    }  # fmt: skip
    at = [(1, 5.0), (12, 6.0)], [(2, 8.0), (13, 8.0), (31, 9.0)], []
    epochs = [[{"k": 1, "v": v, "big": v > 8, "ts": s * 1_000_000} for s, v in rows] for rows in at]
    run(flow({}, epochs[:1]), checkpoint=tmp_path)
    run(flow(since, epochs[:2]), checkpoint=tmp_path, slots=3)
    done = run(flow(since, epochs), checkpoint=tmp_path, input_ends=True)

    found = {row["window_start"].timestamp(): row for row in done.rows("out")}
    assert {at: (row["n"], row["all"]) for at, row in found.items()} == {
        -10: (2, [8.0]), 0: (4, [8.0, 8.0]), 10: (2, [8.0]), 20: (1, [9.0]), 30: (1, [9.0])
    }  # fmt: skip
    row = found[0]
    told = [row[name] for name in ("mean", "spread", "some", "first", "last", "top")]
    assert told == [8.0, 0.0, 1, 8.0, 8.0, False] and abs(row["near"] - 8) < 0.08


TIMED = to_schema("k bigint, v double, big boolean, ts timestamp")


@pytest.mark.parametrize(
    ("defaults", "told"),
    [
        ({"m": None}, "no aggregate of that name"),
        ({"mean": 3.0}, "keeps more than its result"),
    ],
)
def test_defaults_that_say_nothing_are_refused(defaults: dict[str, Any], told: str) -> None:
    with pytest.raises(DeclarationError, match=told):
        hg.Aggregate(n=hg.Count(), mean=hg.Mean("v"), defaults=defaults)


@pytest.mark.parametrize(
    "window", [hg.Sliding("2 seconds", "1 second", "ts"), hg.Session("2 seconds", "ts")]
)
def test_a_default_that_would_be_added_up_is_refused(window: Any) -> None:
    with pytest.raises(DeclarationError, match=r"added up.*\{'n': None\}"):
        hg.Aggregate(n=hg.Count(), m=hg.Min("v"), defaults={"n": 7, "m": 3}, window=window)
    hg.Aggregate(n=hg.Count(), m=hg.Min("v"), defaults={"n": 0, "m": 3}, window=window)


def in_order(key: Any, rows: Rows, state: Any) -> Any:
    times = [value for row in rows for name, value in row.items() if name != "k"]
    return (state or 0) + 1, [{"n": time.second + 60 * time.minute} for time in times]


def test_a_renamed_output_column_is_refused_where_published_rows_have_it(tmp_path: Path) -> None:
    def table(name: str, sink: str, kind: str = "bigint") -> hg.Flow:
        flow = hg.Flow("f")
        rows = source(flow, f"k bigint, v {kind}", EPOCH)
        rows.key_by("k").process(hg.Sum("v", name=name), name="op").to_table(sink)
        return flow

    run(table("total", "out"), checkpoint=tmp_path)

    with pytest.raises(IncompatibleFlow, match="had 'total', and has 'amount' instead") as caught:
        run(table("amount", "out"), checkpoint=tmp_path)
    assert "give the sink another name=" in str(caught.value)
    run(table("amount", "amounts"), checkpoint=tmp_path)
