"""The guide's recipes for function sinks: whatever fails, and when, every epoch counts once."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headgate as hg
from headgate.errors import SinkFailed
from headgate.testing import ListSource, run
from strategies import examples

EPOCHS = [[{"tag": f"t{(i * i + e) % 5}"} for i in range(12)] for e in range(3)]
INSERT = "insert into rows values (:epoch, :tag, :count)"
Sink = Callable[[sqlite3.Connection, list[dict[str, Any]], int], None]


def by_version(to: sqlite3.Connection, rows: list[dict[str, Any]], epoch: int) -> None:
    """As Delta's txnAppId and txnVersion: a version that is not larger is dropped."""
    (last,) = to.execute("select max(version) from versions").fetchone()
    if last is None or last < epoch:
        to.executemany(INSERT, [{**row, "epoch": epoch} for row in rows])
        to.execute("insert into versions values (?)", (epoch,))


def replacing(to: sqlite3.Connection, rows: list[dict[str, Any]], epoch: int) -> None:
    to.execute("delete from rows where epoch = ?", (epoch,))
    to.executemany(INSERT, [{**row, "epoch": epoch} for row in rows])


def merging(to: sqlite3.Connection, rows: list[dict[str, Any]], epoch: int) -> None:
    to.executemany("insert or replace into totals values (:tag, :count)", rows)


def appending(to: sqlite3.Connection, rows: list[dict[str, Any]], epoch: int) -> None:
    """No recipe: what a sink that does not look at the epoch comes to."""
    to.executemany(INSERT, [{**row, "epoch": epoch} for row in rows])


def deliver(folder: Path, sink: Sink, faults: list[str]) -> tuple[list[Any], list[Any]]:
    """Run the flow to its end, start after start; the sink fails as told, call by call."""
    base = sqlite3.connect(folder / "out.db")
    base.execute("create table rows (epoch integer, tag text, count integer)")
    base.execute("create table totals (tag text primary key, count integer)")
    base.execute("create table versions (version integer)")
    waiting = list(faults)

    def write(rows: list[dict[str, Any]], epoch: int) -> None:
        fault = waiting.pop(0) if waiting else "none"
        if fault == "before":
            raise ConnectionError("no database")
        with base:
            sink(base, rows, epoch)
            if fault == "during":
                raise ConnectionError("lost in the middle")
        if fault == "after":
            raise ConnectionError("lost after the commit")

    while True:
        flow = hg.Flow("tags")
        tags = flow.source(ListSource("tag string", EPOCHS)).key_by("tag")
        tags.process(hg.Count(), name="counts").to(write, name="db")
        try:
            run(flow, slots=1, checkpoint=folder / "checkpoint", check_purity=False)
        except SinkFailed:
            continue
        kept = base.execute("select epoch, tag, count from rows order by 1, 2").fetchall()
        totals = base.execute("select tag, count from totals order by 1").fetchall()
        base.close()
        return kept, totals


def expected() -> tuple[list[Any], list[Any]]:
    counts: dict[str, int] = {}
    rows = []
    for epoch, given_rows in enumerate(EPOCHS):
        for row in given_rows:
            counts[row["tag"]] = counts.get(row["tag"], 0) + 1
        rows += sorted((epoch, tag, counts[tag]) for tag in {row["tag"] for row in given_rows})
    return rows, sorted(counts.items())


FAULTS = st.lists(st.sampled_from(["none", "before", "during", "after"]), max_size=6)


@pytest.mark.parametrize("sink", [by_version, replacing, merging])
@examples(5)
@given(faults=FAULTS)
def test_a_recipe_gives_every_epoch_once_whatever_fails(sink: Sink, faults: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        rows, totals = deliver(Path(folder), sink, faults)

    assert (totals if sink is merging else rows) == expected()[sink is merging]


def test_without_a_recipe_a_lost_answer_doubles_an_epoch(tmp_path: Path) -> None:
    rows, _ = deliver(tmp_path, appending, ["none", "after"])

    assert len(rows) > len(expected()[0]) and sorted(set(rows)) == expected()[0]
