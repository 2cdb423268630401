"""A cost-aware shuffle changes where rows are processed, never what comes out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headgate import Count, Flow
from headgate.testing import ListSource, LocalRun, run

SCHEMA = "author bigint, n bigint"


def epochs_of(count: int, rows: int = 90) -> list[list[dict[str, Any]]]:
    draw = np.random.default_rng(5)
    return [
        [
            {"author": int(author), "n": e * rows + i}
            for i, author in enumerate(draw.integers(0, 12, rows))
        ]
        for e in range(count)
    ]


def weigh(row: dict[str, Any]) -> dict[str, Any]:
    """Work that grows with the author; no sleep."""
    total = sum(range(int(row["author"]) * 400))
    return {"author": row["author"], "n": row["n"], "total": total % 7}


def reach(epochs: list[list[dict[str, Any]]], schedule: Any = "batch") -> Flow:
    flow = Flow("reach")
    rows = flow.source(ListSource(SCHEMA, epochs))
    shuffled = rows.shuffle(grouping="cost", attribute="author", schedule=schedule)
    weighed = shuffled.map_rows(weigh, "author bigint, n bigint, total bigint", name="weigh")
    weighed.to_memory("out")
    again = weighed.shuffle(grouping="cost", attribute="author", schedule=schedule)
    passed = again.map(lambda b: b, weighed.schema, name="again")
    passed.key_by("author").process(Count(), name="count")
    return flow


def check(done: LocalRun, epochs: list[list[dict[str, Any]]]) -> None:
    rows = [row for epoch in epochs for row in epoch]
    expected = sorted((weigh(row) for row in rows), key=lambda r: r["n"])
    assert sorted(done.rows("out"), key=lambda r: r["n"]) == expected
    counts = {row["author"]: row["count"] for row in done.state("count")}
    authors = [row["author"] for row in rows]
    assert counts == {author: authors.count(author) for author in set(authors)}


@pytest.mark.parametrize("schedule", ["batch", "online", "paper"])
def test_rows_are_those_of_a_plain_map_and_tasks_are_pure(schedule: Any) -> None:
    """Every task runs twice and is compared, before and after there are models."""
    epochs = epochs_of(6)
    done = run(reach(epochs, schedule), slots=3, partitions=2)
    check(done, epochs)
    records = [record["costs"]["weigh"] for record in done.records]
    assert records[0]["estimated_ms"] == [None] * 3
    assert all(sum(record["rows"]) == 90 for record in records)
    assert records[-1]["speed"] is not None and min(records[-1]["estimated_ms"]) > 0
    assert done.records[-1]["edges"]["source_1->weigh"]["grouping"] == "cost"


@pytest.mark.usefixtures("row_time")
def test_a_restart_schedules_with_what_was_measured_also_with_other_slots(tmp_path: Path) -> None:
    epochs = epochs_of(8)
    run(reach(epochs[:5]), slots=2, checkpoint=tmp_path)
    done = run(reach(epochs), slots=3, checkpoint=tmp_path)
    first = done.records[1]["costs"]["weigh"]
    assert first["estimated_ms"][0] is not None and len(first["estimated_ms"]) == 3
    counts = {row["author"]: row["count"] for row in done.state("count")}
    authors = [row["author"] for epoch in epochs for row in epoch]
    assert counts == {author: authors.count(author) for author in set(authors)}
