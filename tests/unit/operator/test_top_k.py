"""TopK: the heaviest items of a window, ties by item, nulls left out."""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import UTC, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.operator.checks import EPOCH_START, TIME, Stream, streams
from tests.unit.operator.harness import Epoch, Slot, batch_of

from headgate.errors import DeclarationError, NameClash, UnknownColumn
from headgate.operator import TopK, Tumbling

WINDOW = Tumbling("10 seconds", time="ts")
ITEMS = st.one_of(st.none(), st.sampled_from(["x", "y", "z", "zz", ""]))
ROWS = pa.schema({"k": pa.int64(), "item": pa.string(), "w": pa.int64(), "ts": TIME})


@settings(max_examples=30, deadline=None)
@given(streams(ITEMS), st.integers(1, 4))
def test_finds_the_heaviest_items_of_every_window(stream: Stream, k: int) -> None:
    counts: dict[tuple[Any, ...], Counter[str]] = defaultdict(Counter)
    before, watermark = -(10**6), -20
    with Slot(TopK("v", k, WINDOW), stream.schema(pa.string()), stream.keys) as slot:
        for tasks in [*stream.epochs(), []]:
            late = 0
            for row in (row for calls in tasks for call in calls for row in call):
                start = row[2] // 10 * 10
                late += start + 10 <= before
                if start + 10 > before and row[1] is not None:
                    counts[(*stream.key(row), start)][row[1]] += 1
            batches = [[stream.batch(call, pa.string()) for call in calls] for calls in tasks]
            result = slot.run(Epoch(batches, watermark_us=watermark * 1_000_000))
            assert result.late == late
            expected = []
            for key in [key for key in counts if key[-1] + 10 <= watermark]:
                best = sorted(counts.pop(key).items(), key=lambda pair: (-pair[1], pair[0]))
                expected += [(*key, rank, *pair) for rank, pair in enumerate(best[:k], start=1)]
            got = [
                (
                    *(row[name] for name in stream.keys),
                    (row["window_start"] - EPOCH_START) // timedelta(seconds=1),
                    row["rank"],
                    row["v"],
                    row["count"],
                )
                for row in result.finished
            ]
            assert sorted(map(repr, got)) == sorted(map(repr, expected))
            assert [row[-3] for row in got] == _ranks(got)
            before, watermark = watermark, watermark + 25


def _ranks(rows: list[tuple[Any, ...]]) -> list[int]:
    """Rows of one key and window stand together, best first."""
    ranks: list[int] = []
    for number, row in enumerate(rows):
        again = number > 0 and rows[number - 1][:-3] == row[:-3]
        ranks.append(ranks[-1] + 1 if again else 1)
    return ranks


def test_weighs_items() -> None:
    batch = batch_of(
        ROWS, k=[1] * 5, item=["a", "b", "a", "c", "b"], w=[5, 4, -3, None, 0], ts=[0] * 5
    )
    with Slot(TopK("item", 3, WINDOW, weight="w", name="weight"), ROWS, ["k"]) as slot:
        slot.run(Epoch([[batch]]))
        rows = slot.run(Epoch([], watermark_us=10_000_000)).finished
        assert [(row["rank"], row["item"], row["weight"]) for row in rows] == [
            (1, "b", 4),
            (2, "a", 2),
        ]
        assert rows[0]["window_end"].astimezone(UTC) == EPOCH_START + timedelta(seconds=10)
        assert slot.held() == []


def test_ranks_items_that_arrow_does_not_sort() -> None:
    rows = pa.schema({"k": pa.int64(), "item": pa.float16(), "ts": TIME})
    items = [np.float16(x) for x in (2.0, -1.0, 1.5, -1.0)]
    with Slot(TopK("item", 2, WINDOW), rows, ["k"]) as slot:
        slot.run(Epoch([[batch_of(rows, k=[1] * 4, item=items, ts=[0] * 4)]]))
        best = slot.run(Epoch([], watermark_us=10_000_000)).finished

    assert [(row["item"], row["count"]) for row in best] == [(-1.0, 2), (1.5, 1)]


def test_refused_rows_are_named_by_their_place_in_the_batch() -> None:
    big = 2**63 - 1
    batch = batch_of(
        ROWS,
        k=[1] * 6,
        item=["a", None, "b", "b", "c", "a"],
        w=[1, 1, big, 1, 1, 1],
        ts=[None, 0, 0, 0, 0, 0],
    )
    with Slot(TopK("item", 3, WINDOW, weight="w"), ROWS, ["k"]) as slot:
        result = slot.run(Epoch([[batch]]))
        assert sorted(result.dead) == [0, 2, 3]
        assert sorted(row["item"] for row in slot.held()) == ["a", "c"]


def test_needs_and_declaration() -> None:
    assert TopK("item", 1, WINDOW).needs(ROWS, ["k"], set()) == {"k", "item", "ts"}
    assert TopK("item", 1, WINDOW, weight="w").needs(ROWS, ["k"], set()) == set(ROWS.names)
    with pytest.raises(DeclarationError, match="at least 1"):
        TopK("item", 0, WINDOW)
    with pytest.raises(UnknownColumn, match="TopK reads column 'nope'"):
        TopK("nope", 1, WINDOW).state_fields(ROWS, ["k"])
    with pytest.raises(NameClash, match="'item'"):
        TopK("item", 1, WINDOW).state_fields(ROWS, ["item"])
    rows = pa.schema({"k": pa.int64(), "item": pa.list_(pa.int8()), "ts": TIME})
    with pytest.raises(DeclarationError, match="list"):
        TopK("item", 1, WINDOW).state_fields(rows, ["k"])
