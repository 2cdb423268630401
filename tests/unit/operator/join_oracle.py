"""Joins in plain Python: every left row against every right row."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import headgate as hg
from headgate.testing import ListSource

Row = dict[str, Any]
START = datetime(2026, 1, 1, tzinfo=UTC)
LEFT = "k bigint, v string, t timestamp"
RIGHT = "id bigint, w string, at timestamp"
HOWS = ("inner", "left", "right", "full")
KINDS: Mapping[str, dict[str, Any]] = {
    "interval": {"within": ("-30 seconds", "45 seconds")},
    "tumbling": {"window": hg.Tumbling("1 minute", time="t"), "times": ("t", "at")},
    "sliding": {"window": hg.Sliding("1 minute", "20 seconds", time="t"), "times": ("t", "at")},
    "regular": {},
}


def draw(seed: int, epochs: int = 4) -> tuple[list[list[Row]], list[list[Row]]]:
    """Rows of both sides by epoch: many of one key, some of none, neither side in step."""
    rng = random.Random(f"join {seed}")

    def rows(epoch: int, names: Sequence[str]) -> list[Row]:
        return [
            dict(
                zip(
                    names,
                    (
                        rng.choice([None, 0, 0, 0, *range(6)]),
                        f"{names[1]}{epoch}-{number}",
                        START + timedelta(seconds=40 * epoch + rng.randrange(-15, 60)),
                    ),
                    strict=True,
                )
            )
            for number in range(rng.choice([0, 2, 15]))
        ]

    left = [rows(epoch, ("k", "v", "t")) for epoch in range(epochs)]
    return left, [rows(epoch, ("id", "w", "at")) for epoch in range(epochs)]


def flow_of(
    left: list[list[Row]],
    right: list[list[Row]],
    delay: str = "10 minutes",
    key_by: Callable[[Any, str], Any] = lambda stream, name: stream.key_by(name),
    **join: Any,
) -> hg.Flow:
    flow = hg.Flow("joined")
    a = flow.source(ListSource(LEFT, left), name="a", event_time="t", watermark=delay)
    b = flow.source(ListSource(RIGHT, right), name="b", event_time="at", watermark=delay)
    key_by(a, "k").join(key_by(b, "id"), name="join", **join).to_memory("out")
    return flow


def expected(left: list[list[Row]], right: list[list[Row]], kind: str, how: str) -> Counter[Any]:
    """What a join of all rows comes to."""
    lefts = _placed([row for rows in left for row in rows], "t", kind)
    rights = _placed([row for rows in right for row in rows], "at", kind)
    found: Counter[Any] = Counter()
    met_left, met_right = set(), set()
    for i, (a, window) in enumerate(lefts):
        for j, (b, other) in enumerate(rights):
            if a["k"] is None or a["k"] != b["id"] or window != other:
                continue
            apart = (b["at"] - a["t"]).total_seconds()
            if kind == "interval" and not -30 <= apart <= 45:
                continue
            found[a["k"], window, a["v"], b["w"]] += 1
            met_left.add(i)
            met_right.add(j)
    if how in ("left", "full"):
        for i, (a, window) in enumerate(lefts):
            found[a["k"], window, a["v"], None] += i not in met_left
    if how in ("right", "full"):
        for j, (b, window) in enumerate(rights):
            found[b["id"], window, None, b["w"]] += j not in met_right
    return +found


def told(rows: list[Row]) -> Counter[Any]:
    """What a sink knows in the end: rows inserted, without those taken back."""
    known: Counter[Any] = Counter()
    for row in rows:
        window = row.get("window_start")
        place = row["k"], window, row["v"], row["w"]
        known[place] += -1 if row.get("change") == "delete" else 1
        assert known[place] >= 0, f"{place} was taken back, and is not there"
    return +known


def _placed(rows: list[Row], time: str, kind: str) -> list[tuple[Row, Any]]:
    """Rows with the windows that they are in."""
    if kind not in ("tumbling", "sliding"):
        return [(row, None) for row in rows]
    step = 60 if kind == "tumbling" else 20
    placed = []
    for row in rows:
        start = int((row[time] - START).total_seconds()) // step * step
        for number in range(60 // step):
            placed.append((row, START + timedelta(seconds=start - number * step)))
    return placed
