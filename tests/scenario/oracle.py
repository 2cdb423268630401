"""What a flow must have made true after every epoch, by a plain fold in Python, one row at a time.

A `Case` is a flow, its input and the answer. Outputs are compared as multisets of rows per epoch,
state as a multiset of rows after each epoch.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from tests.scenario.folded_windows import FoldedWindows

import headgate as hg
from headgate.testing import ListSource

Row = dict[str, Any]
Rows = "Counter[tuple[Any, ...]]"
START = datetime(2024, 1, 1, tzinfo=UTC)


def bag(rows: Iterable[Mapping[str, Any]]) -> Counter[tuple[Any, ...]]:
    """Rows as a multiset, whatever their order and the order of their columns."""
    return Counter(tuple(sorted(row.items())) for row in rows)


@dataclass
class Expected:
    """State per operator and output per sink after one epoch."""

    state: dict[str, Counter[tuple[Any, ...]]]
    output: dict[str, Counter[tuple[Any, ...]]]


@dataclass
class Case:
    """A flow to declare on any sources, what to feed it, and what must come of it."""

    name: str
    schemas: dict[str, str]
    epochs: dict[str, list[list[Row]]]
    declare: Callable[[hg.Flow, dict[str, Any]], dict[str, Any]]
    expected: list[Expected]
    keys: dict[str, tuple[pa.Schema, list[tuple[Any, ...]]]] = field(default_factory=dict)
    event_time: dict[str, dict[str, Any]] = field(default_factory=dict)
    unread: frozenset[str] = frozenset()  # operators whose state only they can read
    near: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def epoch_count(self) -> int:
        return max(len(given) for given in self.epochs.values())

    def flow(self, frames: Mapping[str, Any] | None = None) -> tuple[hg.Flow, dict[str, Any]]:
        """Declare it on these frames (default: list sources); returns its streams, to be sunk."""
        flow = hg.Flow(self.name)
        sources = {
            name: flow.source(
                frames[name] if frames else ListSource(schema, self.epochs[name]),
                name=name,
                **self.event_time.get(name, {}),
            )
            for name, schema in self.schemas.items()
        }
        return flow, self.declare(flow, sources)


def chain(rng: random.Random, epochs: int = 4, rows: int = 40, *, empty: bool = True) -> Case:
    """Two keyed operators in a row: the shape in which rows leave their slot in between."""
    sizes = [0, rows // 2, rows] if empty else [rows]
    data = [
        [
            {"k1": rng.randrange(9), "k2": rng.choice("abcdefg") + "x", "v": rng.randrange(-5, 50)}
            for _ in range(rng.choice(sizes))
        ]
        for _ in range(epochs)
    ]

    def declare(_flow: hg.Flow, sources: dict[str, Any]) -> dict[str, Any]:
        first = sources["rows"].key_by("k1").process(hg.Count(emit="rows"), name="first")
        return {"sums": first.key_by("k2").process(hg.Sum("v"), name="second")}

    counts: Counter[Any] = Counter()
    sums: dict[str, int] = {}
    expected = []
    for given in data:
        for row in given:
            counts[row["k1"]] += 1
            sums[row["k2"]] = sums.get(row["k2"], 0) + row["v"]
        touched = {row["k2"] for row in given}
        expected.append(
            Expected(
                {
                    "first": bag({"k1": k, "count": n} for k, n in counts.items()),
                    "second": bag({"k2": k, "sum": n} for k, n in sums.items()),
                },
                {"sums": bag({"k2": k, "sum": sums[k]} for k in touched)},
            )
        )
    keys = {
        "first": (pa.schema({"k1": pa.int64()}), [(k,) for k in range(9)]),
        "second": (pa.schema({"k2": pa.string()}), [(c + "x",) for c in "abcdefg"]),
    }
    return Case(
        "chain", {"rows": "k1 bigint, k2 string, v bigint"}, {"rows": data}, declare, expected, keys
    )


def wide(rng: random.Random, epochs: int = 4, rows: int = 40) -> Case:
    """Columns that only the sink reads, behind two keyed operators and a filter."""
    data = [
        [
            {
                "k1": rng.randrange(9), "k2": rng.randrange(5), "v": rng.randrange(-5, 50),
                "w": rng.choice([None, "", "é", f"{rng.random()}" * rng.randrange(30)]),
                "y": rng.choice([None, b"", b"\0" * rng.randrange(40)]),
            }
            for _ in range(rng.choice([0, 1, rows]))
        ]
        for _ in range(epochs)
    ]  # fmt: skip

    def declare(_flow: hg.Flow, sources: dict[str, Any]) -> dict[str, Any]:
        first = sources["rows"].key_by("k1").process(hg.Count(emit="rows"), name="first")
        large = first.filter(pc.field("v") >= 0, name="large")
        return {"told": large.key_by("k2").process(hg.Sum("v", emit="rows"), name="second")}

    counts: Counter[int] = Counter()
    sums: Counter[int] = Counter()
    expected = []
    for given in data:
        told = [row for row in given if row["v"] >= 0]
        counts.update(row["k1"] for row in given)
        for row in told:
            sums[row["k2"]] += row["v"]
        state = {
            "first": bag({"k1": k, "count": n} for k, n in counts.items()),
            "second": bag({"k2": k, "sum": n} for k, n in sums.items()),
        }
        expected.append(Expected(state, {"told": bag(told)}))
    keys = {
        "first": (pa.schema({"k1": pa.int64()}), [(k,) for k in range(9)]),
        "second": (pa.schema({"k2": pa.int64()}), [(k,) for k in range(5)]),
    }
    schemas = {"rows": "k1 bigint, k2 bigint, v bigint, w string, y binary"}
    return Case("wide", schemas, {"rows": data}, declare, expected, keys)


def branches(rng: random.Random, epochs: int = 4, rows: int = 30) -> Case:
    """Two sources, a union, a branch that is shuffled, a broadcast one and a global count."""
    left = [
        [{"k": rng.randrange(7), "v": rng.randrange(20)} for _ in range(rows)]
        for _ in range(epochs)
    ]
    right = [
        [{"name": rng.choice(["0", "3", "9"])} for _ in range(rng.randrange(rows))]
        for _ in range(epochs)
    ]

    def declare(_flow: hg.Flow, sources: dict[str, Any]) -> dict[str, Any]:
        named = sources["right"].shuffle().map(_as_left, "k bigint, v bigint", name="as_left")
        both = sources["left"].union(named)
        per_key = both.key_by("k").process(hg.Max("v", emit="rows"), name="largest")
        new = per_key.key_by("v", "k").process(hg.Deduplicate(), name="new")
        total = new.globally().process(hg.Count(), name="total")
        small = sources["left"].local_or_shuffle().filter(pc.field("v") < 10, name="small")
        return {"new": new, "total": total, "small": small.select("k")}

    seen: set[tuple[int, int]] = set()
    largest: dict[int, int] = {}
    expected = []
    for ours, theirs in zip(left, right, strict=True):
        given = ours + [{"k": int(row["name"]), "v": -1} for row in theirs]
        new = {(row["k"], row["v"]) for row in given} - seen
        seen |= new
        for row in given:
            largest[row["k"]] = max(row["v"], largest.get(row["k"], row["v"]))
        expected.append(
            Expected(
                {
                    "largest": bag({"k": k, "value": v} for k, v in largest.items()),
                    "new": bag({"k": k, "v": v} for k, v in seen),
                    "total": bag([{"count": len(seen)}] if seen else []),
                },
                {
                    "new": bag({"k": k, "v": v} for k, v in new),
                    "total": bag([{"count": len(seen)}] if new else []),
                    "small": bag({"k": row["k"]} for row in ours if row["v"] < 10),
                },
            )
        )
    keys = {
        "largest": (pa.schema({"k": pa.int64()}), [(k,) for k in range(7)]),
        "new": (
            pa.schema({"v": pa.int64(), "k": pa.int64()}),
            [(v, k) for v in range(20) for k in range(7)],
        ),
    }
    schemas = {"left": "k bigint, v bigint", "right": "name string"}
    return Case("branches", schemas, {"left": left, "right": right}, declare, expected, keys)


def _as_left(batch: pa.RecordBatch) -> pa.RecordBatch:
    k = batch.column("name").cast(pa.int64())
    return pa.RecordBatch.from_arrays([k, pa.array([-1] * len(k), pa.int64())], names=["k", "v"])


def ordered(rng: random.Random, epochs: int = 4, rows: int = 40) -> Case:
    """The last value in source order, behind another keyed operator: order must survive it."""
    data = [
        [
            {"k1": rng.randrange(5), "k2": rng.choice([None, 1, 2, 3, 4]), "v": number}
            for number in range(rows)
        ]
        for _ in range(epochs)
    ]

    def declare(_flow: hg.Flow, sources: dict[str, Any]) -> dict[str, Any]:
        first = sources["rows"].key_by("k1").process(hg.Count(emit="running"), name="first")
        last = first.key_by("k2").process(hg.Last("v", "k1", ordered=True), name="last")
        return {"last": last}

    counts: Counter[int] = Counter()
    last: dict[Any, Row] = {}
    expected = []
    for given in data:
        counts.update(row["k1"] for row in given)
        last |= {row["k2"]: row for row in given}
        touched = {row["k2"] for row in given}
        expected.append(
            Expected(
                {
                    "first": bag({"k1": k, "count": n} for k, n in counts.items()),
                    "last": bag(last.values()),
                },
                {"last": bag(last[k] for k in touched)},
            )
        )
    keys = {
        "first": (pa.schema({"k1": pa.int64()}), [(k,) for k in range(5)]),
        "last": (pa.schema({"k2": pa.int64()}), [(k,) for k in (None, 1, 2, 3, 4)]),
    }
    return Case(
        "ordered", {"rows": "k1 bigint, k2 bigint, v bigint"}, {"rows": data}, declare, expected,
        keys,
    )  # fmt: skip


def windows(
    rng: random.Random, epochs: int = 4, rows: int = 30, *, k: int = 2, quiet: Sequence[int] = ()
) -> Case:
    """The top items of every city and minute, and rows that come late; none in `quiet` epochs."""
    size, delay = timedelta(minutes=1), timedelta(seconds=30)
    data = []
    for epoch in range(epochs):
        given = []
        for _ in range(0 if epoch in quiet else rows):
            second = epoch * 50 + rng.randrange(-90, 60)
            row = {
                "city": rng.choice(["rome", "oslo"]),
                "tag": rng.choice("pqrs"),
                "ts": START + timedelta(hours=1, seconds=second),
            }
            given.append(row)
        data.append(given)

    def declare(_flow: hg.Flow, sources: dict[str, Any]) -> dict[str, Any]:
        cities = sources["posts"].key_by("city").process(hg.Count(emit="rows"), name="cities")
        top = hg.TopK("tag", k=k, window=hg.Tumbling("1 minute", time="ts"))
        told = cities.key_by("city").process(top, name="top")
        return {"top": told, "late": told.late()}

    held: dict[tuple[str, datetime], Counter[str]] = defaultdict(Counter)
    cities: Counter[str] = Counter()
    watermark: datetime | None = None
    used: datetime | None = None  # by the epoch before
    latest: datetime | None = None
    expected = []
    for given in data:
        late = []
        for row in given:
            cities[row["city"]] += 1
            start = row["ts"] - (row["ts"] - START) % size
            if used is None or start + size > used:
                held[row["city"], start][row["tag"]] += 1
            else:
                late.append(row)
        closed = [w for w in held if watermark is not None and w[1] + size <= watermark]
        output = []
        for city, start in closed:
            tags = sorted(held.pop((city, start)).items(), key=lambda item: (-item[1], item[0]))
            for rank, (tag, count) in enumerate(tags[:k], 1):
                ends = {"window_start": start, "window_end": start + size}
                output.append({"city": city, **ends, "rank": rank, "tag": tag, "count": count})
        state = [
            {"city": city, "window_start": start, "tag": tag, "count": count}
            for (city, start), tags in held.items()
            for tag, count in tags.items()
        ]
        times = [row["ts"] for row in given] + ([] if latest is None else [latest])
        latest, used = max(times), watermark
        watermark = max(latest - delay, watermark or latest - delay)
        expected.append(
            Expected(
                {
                    "top": bag(state),
                    "cities": bag({"city": c, "count": n} for c, n in cities.items()),
                },
                {"top": bag(output), "late": bag(late)},
            )
        )
    keys = {
        "cities": (pa.schema({"city": pa.string()}), [("rome",), ("oslo",)]),
        "top": (pa.schema({"city": pa.string()}), [("rome",), ("oslo",)]),
    }
    return Case(
        "windows", {"posts": "city string, tag string, ts timestamp"}, {"posts": data}, declare,
        expected, keys, {"posts": {"event_time": "ts", "watermark": delay}},
    )  # fmt: skip


def chained_windows(
    rng: random.Random, *, epochs: int = 8, rows: int = 40, quiet: Sequence[int] = ()
) -> Case:
    """Windows of windows, shorter and longer ones, and a merge of a window with its own input."""
    seconds = [rng.choice([20, 45, 60, 150]) for _ in range(3)]
    sizes = [timedelta(seconds=s) for s in seconds]
    delay = timedelta(seconds=rng.choice([0, 40]))
    steps = rng.choice([50, 120])
    data = [
        [
            {
                "city": rng.choice(["rome", "oslo", "bonn"]),
                "tag": rng.choice("pqrs"),
                "ts": START + timedelta(hours=1, seconds=epoch * steps + rng.randrange(-90, 60)),
            }
            for _ in range(0 if epoch in quiet else rows)
        ]
        for epoch in range(epochs)
    ]
    window = [hg.Tumbling(size, time="window_start") for size in sizes]
    columns = {"tags": ("city", "tag"), "cities": ("city",), "all": (), "both": ("city",)}
    values = {"tags": "count", "cities": "sum", "all": "sum", "both": "sum"}

    def row_of(
        name: str, key: tuple[str, ...], start: datetime, number: int, size: timedelta | None = None
    ) -> Row:
        end = {} if size is None else {"window_end": start + size}
        held = dict(zip(columns[name], key, strict=True))
        return {**held, "window_start": start, **end, values[name]: number}

    def declare(_flow: hg.Flow, sources: dict[str, Any]) -> dict[str, Any]:
        posts = sources["posts"]
        first = hg.Count(window=hg.Tumbling(sizes[0], time="ts"))
        tags = posts.key_by("city", "tag").process(first, name="tags")
        cities = tags.key_by("city").process(hg.Sum("count", window=window[1]), name="cities")
        all_ = cities.globally().process(hg.Sum("sum", window=window[2]), name="all")
        timed = "city string, t timestamp, n bigint"
        rows = posts.map_rows(lambda r: {"city": r["city"], "t": r["ts"], "n": 1}, timed)
        again = tags.map_rows(
            lambda r: {"city": r["city"], "t": r["window_end"], "n": r["count"]}, timed
        )
        mixed = hg.Sum("n", window=hg.Tumbling(sizes[1], time="t"))
        both = rows.union(again).key_by("city").process(mixed, name="both")
        return {"tags": tags, "cities": cities, "all": all_, "both": both}

    tags, cities, all_, both = (FoldedWindows(sizes[i], START) for i in (0, 1, 2, 1))
    watermark: datetime | None = None
    used: datetime | None = None  # by the epoch before
    latest: datetime | None = None
    marks: list[datetime | None] = [None, None]
    expected = []
    for given in data:
        before, marks = marks, [tags.first_open(watermark), None]
        marks[1] = cities.first_open(marks[0])
        for row in given:
            tags.take((row["city"], row["tag"]), row["ts"], 1, used)
            both.take((row["city"],), row["ts"], 1, before[0])
        closed_tags = tags.close(watermark)
        for (city, _), start, number in closed_tags:
            cities.take((city,), start, number, None)
            both.take((city,), start + sizes[0], number, None)
        closed_cities = cities.close(marks[0])
        for _, start, number in closed_cities:
            all_.take((), start, number, None)
        closed = {"tags": closed_tags, "cities": closed_cities, "all": all_.close(marks[1])}
        closed["both"] = both.close(marks[0])
        folds = {"tags": tags, "cities": cities, "all": all_, "both": both}
        used = watermark
        latest = max([row["ts"] for row in given] + ([] if latest is None else [latest]))
        watermark = max(latest - delay, watermark or latest - delay)
        expected.append(
            Expected(
                {
                    name: bag(row_of(name, *w, n) for w, n in fold.held.items())
                    for name, fold in folds.items()
                },
                {
                    name: bag(row_of(name, *w, folds[name].size) for w in closed[name])
                    for name in folds
                },
            )
        )
    city = (pa.schema({"city": pa.string()}), [("rome",), ("oslo",), ("bonn",)])
    pairs = [(town, tag) for (town,) in city[1] for tag in "pqrs"]
    keys = {
        "tags": (pa.schema({"city": pa.string(), "tag": pa.string()}), pairs),
        "cities": city,
        "both": city,
    }
    return Case(
        "chained_windows", {"posts": "city string, tag string, ts timestamp"}, {"posts": data},
        declare, expected, keys, {"posts": {"event_time": "ts", "watermark": delay}},
    )  # fmt: skip


CASES: Sequence[Callable[[random.Random], Case]] = (
    chain,
    wide,
    branches,
    ordered,
    windows,
    chained_windows,
)


def random_table(
    rng: random.Random, case: Case, operator: str, slots: int, buckets: int
) -> hg.RoutingTable:
    """Any legal table: buckets and some pinned keys anywhere among some of the slots."""
    import numpy as np

    among = rng.sample(range(slots), rng.randint(1, slots))
    owners = np.array([rng.choice(among) for _ in range(buckets)], np.int32)
    table = hg.hash_table(slots, buckets).with_buckets(owners)
    schema, keys = case.keys[operator]
    chosen = rng.sample(keys, rng.randrange(len(keys) + 1))
    if not chosen:
        return table
    columns = [pa.array([key[i] for key in chosen], field.type) for i, field in enumerate(schema)]
    near = case.near.get(operator, ())
    return table.pin(columns, [rng.choice(among) for _ in chosen], near=near)
