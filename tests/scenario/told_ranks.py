"""Ranks in windows that tell changes, by a plain fold: what differs from the epoch before is told.

Of `TopRows` only the output is checked; its state is packed, and only it can read it.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
from tests.scenario.oracle import START, Case, Expected, Row, bag

import headgate as hg

Place = tuple[str, datetime]  # city and start of a window
CITIES = ["rome", "oslo", "bonn"]
SIZE = timedelta(minutes=1)
Ranked = Callable[[list[Row]], list[Row]]


def heaviest(rows: list[Row]) -> list[Row]:
    counts = Counter(row["tag"] for row in rows).items()
    best = sorted(counts, key=lambda pair: (-pair[1], pair[0]))[:2]
    return [{"tag": tag, "count": count} for tag, count in best]


def dearest(rows: list[Row]) -> list[Row]:
    best = sorted(rows, key=lambda row: (-row["price"], row["tag"], row["n"]))[:2]
    return [{"price": row["price"], "tag": row["tag"], "n": row["n"]} for row in best]


@dataclass
class Told:
    """The windows of one operator, and what was told of them."""

    ranked: Ranked
    slide: timedelta
    lateness: timedelta
    early: bool
    rows: dict[Place, list[Row]] = field(default_factory=lambda: defaultdict(list))
    table: dict[tuple[Any, ...], Row] = field(default_factory=dict)

    def starts(self, at: datetime) -> Iterable[datetime]:
        start = at - (at - START) % self.slide
        while start + SIZE > at:
            yield start
            start -= self.slide

    def epoch(self, rows: list[Row], before: datetime | None, now: datetime | None) -> list[Row]:
        for row in rows:
            for start in self.starts(row["ts"]):
                if before is None or start + SIZE + self.lateness > before:
                    self.rows[row["city"], start].append(row)
        told = []
        for (city, start), held in self.rows.items():
            if not self.early and (now is None or start + SIZE > now):
                continue
            for rank, values in enumerate(self.ranked(held), 1):
                place = (city, start, rank)
                if self.table.get(place) == values:
                    continue
                bounds = {"window_start": start, "window_end": start + SIZE}
                change = "update" if place in self.table else "insert"
                told.append({"city": city, **bounds, "rank": rank, **values, "change": change})
                self.table[place] = values
        return told


def ranks(rng: random.Random, epochs: int = 7, rows: int = 25) -> Case:
    """Items of windows and rows of overlapping ones, of late rows too, told early or put right."""
    delay, lateness = timedelta(seconds=20), timedelta(seconds=40)
    late = {"allowed_lateness": lateness}
    emits = [rng.choice(["changes", "updates"]) for _ in range(2)]
    data, number = [], 0
    for epoch in range(epochs):
        given = []
        for _ in range(rng.choice([0, 3, rows, rows])):
            number += 1
            at = START + timedelta(hours=1, seconds=epoch * 40 + rng.randrange(-150, 40))
            row = {"city": rng.choice(CITIES), "tag": rng.choice("pqrs"), "n": number}
            given.append(row | {"price": rng.randrange(6), "ts": at})
        data.append(given)
    slide = timedelta(seconds=20)

    def declare(_flow: hg.Flow, sources: dict[str, Any]) -> dict[str, Any]:
        cities = sources["posts"].key_by("city").process(hg.Count(emit="rows"), name="cities")
        items: Any = hg.TopK("tag", 2, hg.Tumbling(SIZE, time="ts", **late), emit=emits[0])
        sliding = hg.Sliding(SIZE, slide, time="ts", **late)
        best: Any = hg.TopRows(2, ("price desc", "tag"), ["n"], emit=emits[1], window=sliding)
        return {
            "items": cities.key_by("city").process(items, name="items"),
            "best": cities.key_by("city").process(best, name="best"),
        }

    folds = {
        "items": Told(heaviest, SIZE, lateness, emits[0] == "changes"),
        "best": Told(dearest, slide, lateness, emits[1] == "changes"),
    }
    counts: Counter[str] = Counter()
    before: datetime | None = None  # the watermark that the epoch before went by
    now: datetime | None = None
    latest: datetime | None = None
    expected = []
    for given in data:
        counts.update(row["city"] for row in given)
        told = {name: fold.epoch(given, before, now) for name, fold in folds.items()}
        times = [row["ts"] for row in given] + ([] if latest is None else [latest])
        before = now
        if times:
            latest = max(times)
            now = max(latest - delay, now or latest - delay)
        expected.append(
            Expected(
                {"cities": bag({"city": city, "count": n} for city, n in counts.items())},
                {name: bag(rows) for name, rows in told.items()},
            )
        )
    keys = {
        name: (pa.schema({"city": pa.string()}), [(city,) for city in CITIES])
        for name in ("cities", "items", "best")
    }
    return Case(
        "ranks", {"posts": "city string, tag string, n bigint, price bigint, ts timestamp"},
        {"posts": data}, declare, expected, keys,
        {"posts": {"event_time": "ts", "watermark": delay}}, unread=frozenset({"items", "best"}),
    )  # fmt: skip
