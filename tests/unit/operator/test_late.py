"""Late rows as a stream: exactly what operators drop, for every kind of operator that drops rows.

The oracle moves the watermark by hand, epoch by epoch, and judges each row by itself.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

import headgate as hg
from headgate.errors import DeclarationError
from headgate.testing import ListSource, run
from unit.operator.join_oracle import LEFT, RIGHT, START, draw

DELAY = timedelta(seconds=20)
ROWS = "k string, n bigint, t timestamp"
Row = dict[str, Any]
Marks = list[datetime | None]


def rows_of(seed: int, epochs: int = 6) -> list[list[Row]]:
    rng = random.Random(f"late {seed}")
    return [
        [
            {
                "k": rng.choice([None, "a", "b", "c"]),
                "n": epoch * 100 + number,
                "t": START + timedelta(seconds=30 * epoch + rng.randrange(-170, 30)),
            }
            for number in range(rng.choice([0, 5, 20]))
        ]
        for epoch in range(epochs)
    ]


def watermarks_before(times: list[list[datetime]], delay: timedelta) -> Marks:
    """For every epoch the watermark that the epoch before it went by."""
    marks: Marks = [None, None]
    latest: datetime | None = None
    for given in times:
        latest = max([*given, *([] if latest is None else [latest])], default=None)
        marks.append(None if latest is None else latest - delay)
    return marks[: len(times)]


def floor(at: datetime, seconds: int) -> datetime:
    return at - (at - START) % timedelta(seconds=seconds)


def seconds(count: int) -> timedelta:
    return timedelta(seconds=count)


# operator, more for process(), and whether a time is late by the watermark of the epoch before
KINDS: dict[str, tuple[Any, dict[str, Any], Callable[[datetime, datetime], bool]]] = {
    "tumbling": (
        hg.Count(window=hg.Tumbling("40 seconds", time="t")), {},
        lambda t, mark: floor(t, 40) + seconds(40) <= mark,
    ),
    "allowed lateness": (
        hg.Count(window=hg.Tumbling("40 seconds", time="t", allowed_lateness="25 seconds")), {},
        lambda t, mark: floor(t, 40) + seconds(40) <= mark - seconds(25),
    ),
    "sliding": (
        hg.Sum("n", window=hg.Sliding("40 seconds", "10 seconds", time="t")), {},
        lambda t, mark: floor(t, 10) + seconds(40) <= mark,
    ),
    "sessions": (
        hg.TopRows(1, "n", window=hg.Session("15 seconds", time="t")), {},
        lambda t, mark: t + seconds(15) <= mark,
    ),
    "duplicates": (
        hg.Deduplicate("10 seconds", time="t", ordered=True), {}, lambda t, mark: t <= mark,
    ),
    "order": (hg.Count(), {"order_by": "t"}, lambda t, mark: t < mark),
}  # fmt: skip


@pytest.mark.parametrize("nulls", ["key", "drop"])
@pytest.mark.parametrize("kind", KINDS)
def test_late_rows_are_those_that_the_operator_drops(kind: str, nulls: Any) -> None:
    operator, more, is_late = KINDS[kind]
    late = 0
    for seed in range(3):
        epochs = rows_of(seed)
        flow = hg.Flow("late")
        rows = flow.source(ListSource(ROWS, epochs), event_time="t", watermark=DELAY)
        passed = rows.filter("n % 7 <> 3")
        counts = passed.key_by("k", nulls=nulls).process(operator, name="op", **more)
        counts.to_memory("out")
        counts.late().to_memory("late")
        done = run(flow, slots=1 + seed, partitions=2)

        expected, marks = [], watermarks_before([[r["t"] for r in e] for e in epochs], DELAY)
        for number, (given, mark) in enumerate(zip(epochs, marks, strict=True)):
            for row in given:
                known = nulls == "key" or row["k"] is not None
                if row["n"] % 7 != 3 and known and mark is not None and is_late(row["t"], mark):
                    expected.append((number, tuple(sorted(row.items()))))
        got = [(epoch, tuple(sorted(row.items()))) for epoch, row in done.outputs["late"]]
        assert Counter(got) == Counter(expected)
        counted = {r["epoch"]: r["late_rows"].get("op", 0) for r in done.records if "epoch" in r}
        by_epoch = Counter(number for number, _ in expected)
        assert {e: n for e, n in counted.items() if n} == dict(by_epoch)
        late += len(expected)
    assert late > 9


JOINS: dict[str, dict[str, Any]] = {
    "interval": {"within": ("-10 seconds", "10 seconds"), "how": "full"},
    "tumbling": {"window": hg.Tumbling("1 minute", time="t"), "times": ("t", "at"), "how": "full"},
    "as_of": {"as_of": True, "how": "left"},
}


def is_late_in(kind: str, side: str, at: datetime, mark: datetime) -> bool:
    if kind == "tumbling":
        return floor(at, 60) + seconds(60) <= mark
    return at < mark and not (kind == "as_of" and side == "right")


@pytest.mark.parametrize("lateness", [0, 35])
@pytest.mark.parametrize("kind", JOINS)
def test_late_rows_of_joins_are_a_stream_and_dead_letters(kind: str, lateness: int) -> None:
    """And what is not late meets all that it should, however long the join has to hold it."""
    for seed in range(3):
        left, right = draw(seed, epochs=6)
        flow = hg.Flow("joined")
        a = flow.source(ListSource(LEFT, left), event_time="t", watermark="10 seconds")
        b = flow.source(ListSource(RIGHT, right), event_time="at", watermark="10 seconds")
        joined = a.key_by("k").join(
            b.key_by("id"), name="join", late="dead_letters",
            allowed_lateness=timedelta(seconds=lateness), **JOINS[kind],
        )  # fmt: skip
        joined.to_memory("out")
        flow.dead_letters().to_memory("dead")
        sides = ["left"] if kind == "as_of" else ["left", "right"]
        for side in sides:
            joined.late(side).to_memory(f"late-{side}")
        done = run(flow, slots=1 + seed, input_ends=True)

        lates = {"left": Counter[str](), "right": Counter[str]()}
        kept: dict[str, list[Row]] = {"left": [], "right": []}
        mark, used, latest = None, None, {}
        for epoch in range(6):
            before = used
            for side, rows, time in (("left", left, "t"), ("right", right, "at")):
                for row in rows[epoch]:
                    word = row["v" if side == "left" else "w"]
                    back = None if before is None else before - seconds(lateness)
                    if back is not None and is_late_in(kind, side, row[time], back):
                        lates[side][word] += 1
                    else:
                        kept[side].append(row)
            used = mark
            for side, rows, time in (("left", left, "t"), ("right", right, "at")):
                times = [row[time] for row in rows[epoch]]
                if times:
                    latest[side] = max([*times, *([latest[side]] if side in latest else [])])
            if latest:
                known = min(latest.values()) if len(latest) == 2 else None
                if known is not None:
                    mark = max(known - seconds(10), mark or known - seconds(10))
        for side in sides:
            name = "v" if side == "left" else "w"
            assert Counter(row[name] for row in done.rows(f"late-{side}")) == lates[side], seed
        letters = Counter(letter["operator"] for letter in done.rows("dead"))
        assert letters["join"] == sum(sum(lates[side].values()) for side in sides)
        if kind != "as_of":
            meet = near if kind == "interval" else in_one_minute
            assert pairs_of(done.rows("out")) == met(kept["left"], kept["right"], meet)


def pairs_of(rows: list[Row]) -> Counter[Any]:
    return Counter((row["v"], row["w"]) for row in rows if row["v"] and row["w"])


def near(one: datetime, other: datetime) -> bool:
    return abs(one - other) <= seconds(10)


def in_one_minute(one: datetime, other: datetime) -> bool:
    return floor(one, 60) == floor(other, 60)


def met(left: list[Row], right: list[Row], meet: Callable[[datetime, datetime], bool]) -> Any:
    return Counter(
        (a["v"], b["w"])
        for a in left
        for b in right
        if a["k"] is not None and a["k"] == b["id"] and meet(a["t"], b["at"])
    )


def test_late_rows_are_put_out_beside_results_and_go_on_like_any_others() -> None:
    """Union with what was in time: every row is counted once, in one place or the other."""
    epochs = rows_of(5)
    flow = hg.Flow("all")
    rows = flow.source(ListSource(ROWS, epochs), event_time="t", watermark=DELAY)
    minutes = rows.key_by("k").process(
        hg.Count(window=hg.Tumbling("1 minute", time="t")), name="minutes"
    )
    minutes.to_memory("minutes")
    minutes.late().key_by("k").process(hg.Count(), name="missed").to_memory("missed")
    done = run(flow, slots=3, input_ends=True)

    missed = {row["k"]: row["count"] for row in done.rows("missed")}
    counted = Counter[Any](missed)
    for row in done.rows("minutes"):
        counted[row["k"]] += row["count"]
    assert counted == Counter(row["k"] for given in epochs for row in given)
    assert missed


def declared(refuse: Callable[[Any, Any], Any]) -> Any:
    flow = hg.Flow("f")
    a = flow.source(ListSource(ROWS, []), event_time="t")
    b = flow.source(ListSource(RIGHT, []), event_time="at")
    return refuse(a, b)


@pytest.mark.parametrize(
    ("refuse", "says"),
    [
        (lambda a, b: a.late(), "keeps none"),
        (lambda a, b: a.key_by("k").process(hg.Count()).late(), "no row is late"),
        (lambda a, b: a.key_by("k").process(hg.Count(window=hg.Global(3))).late(), "no row is"),
        (
            lambda a, b: (
                a.key_by("k").process(hg.Count(window=hg.Tumbling("1 day", time="t"))).late("left")
            ),
            "one input",
        ),
        (
            lambda a, b: (
                a.key_by("n").join(b.key_by("id"), within=("0 seconds", "1 second")).late()
            ),
            r"late\('left'\)",
        ),
        (lambda a, b: a.key_by("n").join(b.key_by("id"), as_of=True).late("right"), "that side"),
        (lambda a, b: a.key_by("n").join(b.key_by("id")).late("left"), "no row"),
        (lambda a, b: a.key_by("n").join(b.key_by("id"), late="dead_letters"), "does not go by"),
        (lambda a, b: a.key_by("n").join(b.key_by("id"), allowed_lateness="1 day"), "does not go"),
        (lambda a, b: a.key_by("n").join(b.key_by("id"), as_of=True, late="keep"), "choose"),
        (lambda a, b: a.union(a.filter("n > 1")).late(), "right behind"),
        (
            lambda a, b: a.key_by("n").join(
                b.key_by("id"),
                window=hg.Tumbling("1 day", time="t", late="dead_letters"),
                times=("t", "at"),
            ),
            "to the join itself",
        ),
    ],
)
def test_what_has_no_late_rows_is_refused_with_a_way_out(refuse: Any, says: str) -> None:
    with pytest.raises(DeclarationError, match=says):
        declared(refuse)


def test_late_rows_of_a_join_need_somebody_who_takes_dead_letters() -> None:
    flow = hg.Flow("f")
    a = flow.source(ListSource(ROWS, []), event_time="t")
    joined = a.key_by("n").join(
        a.key_by("n"), within=("0 seconds", "1 second"), late="dead_letters", suffixes=("", "_2")
    )
    joined.to_memory("out")
    with pytest.raises(DeclarationError, match="dead letters"):
        flow.graph()


def test_a_flow_tells_whose_late_rows_a_stream_has() -> None:
    flow = hg.Flow("f")
    a = flow.source(ListSource(ROWS, []), event_time="t")
    a.key_by("k").process(hg.Count(), name="count", order_by="t").late().to_memory("late")
    assert "rows late for count" in str(flow.explain())
