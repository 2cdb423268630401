"""Joins and lookups of random flows: of which kind, by which keys, and how their rows go on.

What is joined has the columns of a source again, so that any step can follow: the left row with a
value of the right one in its place. A right row that met nobody brings its own number and time.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa

import headgate as hg

AROUND = {"within": ("-20 seconds", "15 seconds"), "times": ("t", "t")}
BEFORE = {"within": ("-1 minute", "0 seconds"), "times": ("t", "t")}
WINDOW = {"window": hg.Tumbling("40 seconds", time="t"), "times": ("t", "t")}
SLIDING = {"window": hg.Sliding("40 seconds", "20 seconds", time="t"), "times": ("t", "t")}
# Of equal times the row that arrived later counts, so the right side's get to differ.
AS_OF = {"as_of": True, "times": ("t", "exact")}

JOINS: dict[str, dict[str, Any]] = {
    "join": {},
    "join(ttl)": {"ttl": "5 seconds"},
    "join(left)": {"how": "left"},
    "join(full, ttl)": {"how": "full", "ttl": "10 seconds"},
    "join(within)": AROUND,
    "join(within, left)": {**BEFORE, "how": "left"},
    "join(within, full)": {**AROUND, "how": "full"},
    "join(window)": WINDOW,
    "join(window, right)": {**WINDOW, "how": "right"},
    "join(sliding, full)": {**SLIDING, "how": "full"},
    "join(as of)": AS_OF,
    "join(as of, left)": {**AS_OF, "how": "left"},
}
KEYS = (("a",), ("a",), ("b",), ("c",), ("f",), ("y",), ("v",), ("a", "b"), ("b", "a"))
PAIRED = {**{name: name for name in "abcfyv"}, "a": "v"}
SIDE = "key bigint, word string, worth bigint"


def draw_keys(rng: random.Random) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Key columns of left and right: those of the same name, or others of the same type."""
    key = rng.choice(KEYS)
    return key, tuple(PAIRED[name] for name in key) if rng.random() < 0.3 else key


def joined(left: Any, right: Any, step: Any, way: str) -> Any:
    """What the join puts out. Rows of a key have to meet in one place: few ways lead there."""
    if "as of" in step.what:
        right = right.with_columns(exact="timestamp_micros(unix_micros(t) + i)")
    way = way if way in ("auto", "dkg") else "hash"
    sides = [
        stream.key_by(*key, nulls=step.nulls, grouping=way, near=[key[at] for at in step.near])
        for stream, key in ((left, step.key), (right, step.right_key))
    ]
    return sides[0].join(sides[1], suffixes=("", "_r"), name=step.name, **JOINS[step.what])


def as_rows(pairs: Any) -> Any:
    """The columns of a source, out of those of both sides."""

    def either(name: str) -> str:
        both = name in pairs.schema.names and f"{name}_r" in pairs.schema.names
        return f"coalesce({name}, {name}_r) AS {name}" if both else name

    value = "v_r AS v" if "v_r" in pairs.schema.names else "v"
    return pairs.select(either("i"), "a", "b", "c", value, either("t"), "f", "y", "w")


def side_table(now_ms: int) -> pa.Table:
    """Words by number: another one every second."""
    second = now_ms // 1000
    keys = [key for key in range(12) if key % 5 != second % 5]
    words = ["", "x", "yy", None, "é"]
    return pa.table(
        {
            "key": pa.array(keys, pa.int64()),
            "word": pa.array([words[(key + second) % 5] for key in keys]),
            "worth": pa.array([(key * 7 + second) % 20 for key in keys], pa.int64()),
        }
    )


LOOKUPS: dict[str, dict[str, Any]] = {
    "lookup": {},
    "lookup(inner)": {"how": "inner"},
    "lookup(refresh)": {"refresh": "1 millisecond"},
    "lookup(inner, refresh)": {"how": "inner", "refresh": "1 millisecond"},
}


def looked_up(stream: Any, what: str, name: str, clock: Callable[[], int]) -> Any:
    """A row's word and worth in place of its own `b` and `v`, as of the epoch's time."""
    options = LOOKUPS[what]
    table: Any = side_table(3_000)
    if "refresh" in options:
        table, options = lambda: side_table(clock()), {**options, "schema": SIDE}
    found = stream.lookup(table, on={"a": "key"}, name=name, **options)
    return found.select("i", "a", "word AS b", "c", "worth AS v", "t", "f", "y", "w")
