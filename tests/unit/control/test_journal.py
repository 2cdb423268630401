"""The journal: append-only, once per epoch, and not to be spoilt by a line that a crash cut."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import Count, Flow
from headgate.control.journal import FILE, Journal, imbalance
from headgate.state.storage import Storage
from headgate.testing import ListSource
from strategies import examples, quick_folder, run_quickly


def record(epoch: int) -> dict[str, object]:
    return {"schema": 1, "kind": "epoch", "epoch": epoch, "rows": epoch * 10}


def opened(folder: Path) -> Journal:
    return Journal(Storage.at(str(folder)))


def test_what_is_written_is_read_in_order(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    journal.append_epoch(record(0))
    journal.append("retry", epoch=1, reason="lost")
    journal.append_epoch(record(1))

    read = opened(tmp_path).read()

    assert read == [
        record(0), {"schema": 1, "kind": "retry", "epoch": 1, "reason": "lost"}, record(1),
    ]  # fmt: skip


def test_a_new_journal_is_empty(tmp_path: Path) -> None:
    assert opened(tmp_path).read() == []
    assert opened(tmp_path).last_epoch() == -1


def test_an_epoch_is_written_once_however_often_it_is_told(tmp_path: Path) -> None:
    for _ in range(2):
        journal = opened(tmp_path)
        for _ in range(2):
            journal.append_epoch(record(0))
            journal.append_epoch(record(1))

    assert [r["epoch"] for r in opened(tmp_path).read()] == [0, 1]


def test_a_retry_does_not_count_as_the_epoch(tmp_path: Path) -> None:
    opened(tmp_path).append("retry", epoch=5)

    assert opened(tmp_path).last_epoch() == -1


@examples(60)
@given(lost=st.integers(1, 400))
def test_a_cut_last_line_loses_itself_and_nothing_else(lost: int) -> None:
    with quick_folder() as folder:
        journal = opened(folder)
        for epoch in range(3):
            journal.append_epoch(record(epoch))
        file = folder / FILE
        text = file.read_bytes()
        last_line = len(text.splitlines(keepends=True)[-1])
        lost = 1 + lost % last_line  # from the newline alone to the whole line
        file.write_bytes(text[:-lost])

        after = opened(folder)
        after.append_epoch(record(2))
        after.append("retry", epoch=3)
        after.append_epoch(record(3))

        told = [(r["kind"], r["epoch"]) for r in opened(folder).read()]
        assert told == [("epoch", 0), ("epoch", 1), ("epoch", 2), ("retry", 3), ("epoch", 3)]


@pytest.mark.parametrize(
    ("loads", "expected"), [([], None), ([0, 0], None), ([5, 5], 1.0), ([9, 0, 0], 3.0)]
)
def test_imbalance_is_the_busiest_slot_over_the_mean(
    loads: list[int], expected: float | None
) -> None:
    assert imbalance(loads) == expected


def test_the_record_of_an_epoch_tells_what_happened() -> None:
    rows = [{"k": i % 5, "v": i} for i in range(20)]
    flow = Flow("trends")
    stream = flow.source(ListSource("k bigint, v bigint", [rows]), name="in")
    first = stream.key_by("k").process(Count(emit="rows"), name="first")
    first.key_by("v").process(Count(), name="second").to_memory("out")

    (told,) = run_quickly(flow, slots=2).records

    assert (told["flow"], told["epoch"], told["slots"], told["attempts"]) == ("trends", 0, 2, 1)
    assert (told["rows"], told["source_rows"]) == (20, {"in": 20})
    assert {op: sum(loads) for op, loads in told["loads"].items()} == {"first": 20, "second": 20}
    edge = told["edges"]["first->second"]
    assert edge["local_rows"] + edge["remote_rows"] == 20
    assert told["locality"] == edge["locality"] == edge["local_rows"] / 20
    assert told["edges"]["in->first"]["remote_rows"] == 20
    assert not told["edges"]["in->first"]["between_slots"]
    assert sum(s["rows"] for s in told["state"]["first"].values()) == 5
    assert told["sink_rows"] == {"out": 20}
    assert told["bytes_shuffled"] > 0
    assert json.loads(json.dumps(told)) == told
