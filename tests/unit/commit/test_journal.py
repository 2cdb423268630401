"""The journal: append-only, bounded, once per epoch, and not to be spoilt by any byte in it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.commit import journal as module
from headgate.commit.facts import ElasticFacts, EpochFacts, PlanFacts, RetryFacts
from headgate.commit.inspection import Inspection
from headgate.commit.journal import Journal
from headgate.state.digest import seal
from headgate.state.storage import Storage
from object_store import LocalS3
from strategies import examples, quick_folder
from unit.commit.parts import coordinator, quiet
from unit.state.remote import NotLocal


def record(epoch: int) -> dict[str, Any]:
    return {"schema": 1, "kind": "epoch", "epoch": epoch, "rows": epoch * 10}


class Line(EpochFacts):
    """An epoch whose line is short."""

    def to_json(self) -> dict[str, Any]:
        return record(self.epoch)


def lines(epochs: range) -> bytes:
    return b"".join(seal(record(epoch)) + b"\n" for epoch in epochs)


def epochs_of(journal: Journal) -> list[int]:
    return [r["epoch"] for r in journal.read() if r["kind"] == "epoch"]


class Counted(Storage):
    """Notes which files are read, and how much of them."""

    def __init__(self, uri: str, shared: bool = False) -> None:
        super().__init__(uri, shared)
        self.read_bytes: dict[str, int] = {}

    def read(self, name: str) -> bytes:
        data = super().read(name)
        self.read_bytes[name] = len(data)
        return data


@pytest.fixture(params=["local", "hadoop", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Storage]:
    """The same folder, opened again each time."""
    if request.param == "s3":
        uri = request.getfixturevalue("s3").folder()
        return lambda: Storage.at(uri)
    kind = Storage if request.param == "local" else NotLocal
    return lambda: kind.at(str(tmp_path / "journal"))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of a few records."""
    monkeypatch.setattr(module, "SEGMENT_BYTES", 1000)


def test_what_is_written_is_read_in_order(place: Callable[[], Storage]) -> None:
    journal = Journal(place())
    journal.append_epoch(Line(0))
    journal.append(RetryFacts(1, 0, "lost"))
    journal.append_epoch(Line(1))

    again = Journal(place())
    retry = {"schema": 1, "kind": "retry", "epoch": 1, "attempt": 0, "reason": "lost"}
    assert again.read() == [record(0), retry, record(1)]
    assert again.tail(2) == [retry, record(1)]
    assert again.tail(0) == [] and again.tail(9) == again.read()


def test_a_new_journal_is_empty(place: Callable[[], Storage]) -> None:
    assert Journal(place()).read() == Journal(place()).tail(3) == []


def test_an_epoch_is_written_once_however_often_it_is_told(
    place: Callable[[], Storage], small: None
) -> None:
    for epoch in range(30):
        for _ in range(2):  # a start tells the last epoch again
            journal = Journal(place())
            for _ in range(2):
                journal.append_epoch(Line(epoch))

    assert epochs_of(Journal(place())) == list(range(30))


def test_a_retry_does_not_count_as_the_epoch(tmp_path: Path) -> None:
    Journal(Storage.at(str(tmp_path))).append(RetryFacts(5, 0, "lost"))
    Journal(Storage.at(str(tmp_path))).append_epoch(Line(5))

    assert epochs_of(Journal(Storage.at(str(tmp_path)))) == [5]


def test_segments_are_bounded_and_the_oldest_are_dropped(
    place: Callable[[], Storage], small: None
) -> None:
    kept, written = 100, 400
    for start in range(0, written, 50):  # a restart now and then
        journal = Journal(place(), keep=kept)
        for epoch in range(start, start + 50):
            journal.append_epoch(Line(epoch))

    storage = place()
    epochs = epochs_of(Journal(storage))
    assert epochs == list(range(epochs[0], written))
    assert kept <= len(epochs) <= kept + 16
    assert all(storage.size(name) <= 1300 for name in storage.list())


def test_the_newest_records_are_read_from_the_newest_segments(tmp_path: Path, small: None) -> None:
    journal = Journal(Storage.at(str(tmp_path)))
    for epoch in range(200):
        journal.append_epoch(Line(epoch))
    storage = Counted(str(tmp_path))

    assert [r["epoch"] for r in Journal(storage).tail(5)] == list(range(195, 200))
    assert len(storage.read_bytes) <= 2 < len(storage.list())


def test_a_start_reads_the_end_of_a_long_journal_only(tmp_path: Path) -> None:
    """However long: bytes and files are counted, as time says nothing on a busy machine."""
    storage = Counted(str(tmp_path))
    per_segment = module.SEGMENT_BYTES // len(lines(range(10**6, 10**6 + 1)))
    last = 6 * per_segment
    for first in range(0, last, per_segment):
        storage.write(f"{first:012d}.jsonl", lines(range(first, first + per_segment)))

    journal = Journal(storage)
    journal.append_epoch(Line(last - 1))  # there already
    journal.append_epoch(Line(last))

    assert sum(storage.read_bytes.values()) <= 2 * module.SEGMENT_BYTES
    assert len(storage.read_bytes) == 1
    assert epochs_of(Journal(Storage.at(str(tmp_path)))) == list(range(last + 1))


def test_an_epoch_before_many_starts_is_found(place: Callable[[], Storage], small: None) -> None:
    Journal(place()).append_epoch(Line(3))
    for _ in range(30):
        journal = Journal(place())
        journal.append(ElasticFacts(slots=1))
        journal.append_epoch(Line(3))

    assert epochs_of(Journal(place())) == [3]


def test_a_start_of_a_flow_reads_the_end_of_its_journal_only(
    tmp_path: Path, small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = coordinator(tmp_path)
    for epoch in range(40):
        at.run_epoch(epoch, "q", quiet)
    at.close()
    opened: list[str] = []
    read = Storage.read
    monkeypatch.setattr(
        Storage,
        "read",
        lambda self, name: [opened.append(f"{self.uri}/{name}"), read(self, name)][1],
    )

    again = coordinator(tmp_path)
    again.run_epoch(40, "q", quiet)
    Inspection(str(tmp_path)).operators()

    segments = len(again.checkpoint.journal.list())
    assert len([path for path in opened if "/journal/" in path]) == 1 < segments
    assert epochs_of(again.journal) == list(range(41))


@pytest.mark.parametrize("is_written", [True, False])
def test_a_write_that_failed_neither_loses_nor_doubles_a_record(
    s3: LocalS3, monkeypatch: pytest.MonkeyPatch, is_written: bool
) -> None:
    """Object stores may keep what they did not confirm."""
    uri = s3.folder()
    write = Storage.write
    journal = Journal(Storage.at(uri))
    journal.append_epoch(Line(0))

    def fail(self: Storage, name: str, data: Any, durable: bool = False) -> None:
        if is_written:
            write(self, name, data, durable)
        raise OSError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(Storage, "write", fail)
        with pytest.raises(OSError, match="no answer"):
            journal.append_epoch(Line(1))
    journal.append_epoch(Line(1))
    journal.append_epoch(Line(2))
    Journal(Storage.at(uri)).append_epoch(Line(2))

    assert epochs_of(Journal(Storage.at(uri))) == [0, 1, 2]


def test_a_driver_that_was_overtaken_replaces_no_record_of_the_next(s3: LocalS3) -> None:
    uri = s3.folder()
    old = Journal(Storage.at(uri))
    old.append_epoch(Line(0))
    new = Journal(Storage.at(uri))
    for epoch in range(1, 4):
        new.append_epoch(Line(epoch))
    old.append(RetryFacts(1, 0, "lost"))

    assert epochs_of(Journal(Storage.at(uri))) == list(range(4))


@pytest.mark.parametrize("is_full", [False, True])
def test_nor_where_both_begin_a_segment_at_one_number(
    s3: LocalS3, small: None, is_full: bool
) -> None:
    """At the first record of all, or when the segment of the old one is full."""
    uri = s3.folder()
    old = Journal(Storage.at(uri))
    old.append_epoch(Line(0)) if is_full else old._find_end()
    while old._room > 0:
        old.append_epoch(Line(max(old._epochs) + 1))
    first = max(old._epochs, default=-1) + 1
    new = Journal(Storage.at(uri))
    for epoch in range(first, first + 4):
        new.append_epoch(Line(epoch))
    old.append(RetryFacts(1, 0, "lost"))

    assert epochs_of(Journal(Storage.at(uri))) == list(range(first + 4))


def test_threads_may_share_a_journal(place: Callable[[], Storage], small: None) -> None:
    journal = Journal(place())
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda n: journal.append(ElasticFacts(slots=n)), range(60)))

    assert sorted(r["slots"] for r in Journal(place()).read()) == list(range(60))


@examples(60)
@given(lost=st.integers(1, 400))
def test_a_cut_last_line_loses_itself_and_nothing_else(lost: int) -> None:
    with quick_folder() as folder:
        journal = Journal(Storage.at(str(folder)))
        for epoch in range(3):
            journal.append_epoch(Line(epoch))
        (file,) = folder.iterdir()
        text = file.read_bytes()
        last_line = len(text.splitlines(keepends=True)[-1])
        lost = 1 + lost % last_line  # from the newline alone to the whole line
        file.write_bytes(text[:-lost])

        after = Journal(Storage.at(str(folder)))
        after.append_epoch(Line(2))
        after.append(RetryFacts(3, 0, "lost"))
        after.append_epoch(Line(3))

        told = [(r["kind"], r["epoch"]) for r in Journal(Storage.at(str(folder))).read()]
        assert told == [("epoch", 0), ("epoch", 1), ("epoch", 2), ("retry", 3), ("epoch", 3)]


garbage = st.one_of(
    st.binary(max_size=60),
    st.sampled_from(
        [
            b"\xff\xfe{",
            b"\0" * 9,
            b"[" * 100_000,
            b'{"kind": "epoch"}',
            b'{"kind": "epoch", "epoch": "x"}',
            b"[1]",
            b"null",
            b"1" * 6000,
            b'{"kind": 3}',
            b'{"digest": "", "kind": "epoch", "epoch": 1}',
        ]
    ),
)


@examples(80)
@given(noise=st.lists(garbage, max_size=4), at=st.lists(st.integers(0, 5), min_size=4, max_size=4))
def test_garbage_between_lines_is_passed_over(noise: list[bytes], at: list[int]) -> None:
    with quick_folder() as folder:
        journal = Journal(Storage.at(str(folder)))
        for epoch in range(5):
            journal.append_epoch(Line(epoch))
        (file,) = folder.iterdir()
        lines = file.read_bytes().splitlines()
        for piece, place in zip(noise, at, strict=False):
            lines.insert(place, piece.replace(b"\n", b""))
        file.write_bytes(b"\n".join(lines))

        after = Journal(Storage.at(str(folder)))
        after.append_epoch(Line(5))

        assert epochs_of(Journal(Storage.at(str(folder)))) == list(range(6))
        assert Journal(Storage.at(str(folder))).tail(1) == [record(5)]


@examples(200)
@given(bit=st.integers(0, 10**6))
def test_a_flipped_bit_loses_a_line_or_two_and_changes_none(bit: int) -> None:
    with quick_folder() as folder:
        journal = Journal(Storage.at(str(folder)))
        for epoch in range(5):
            journal.append_epoch(Line(epoch))
        (file,) = folder.iterdir()
        data = bytearray(file.read_bytes())
        data[bit // 8 % len(data)] ^= 1 << bit % 8
        file.write_bytes(data)

        after = Journal(Storage.at(str(folder)))
        after.append_epoch(Line(4))
        after.append_epoch(Line(5))
        found = Journal(Storage.at(str(folder))).read()

        known = [{name: r[name] for name in record(0)} for r in found]
        assert all(r == record(r["epoch"]) for r in known)
        epochs = {r["epoch"] for r in known}
        assert len(epochs) >= 4 and {4, 5} <= epochs


def test_every_line_is_json_also_with_numbers_that_json_has_not(tmp_path: Path) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    plan = PlanFacts(1, gap_pct=math.nan, slot_loads_pct=(1.5, -math.inf), bound_pct=2.5)
    Journal(Storage.at(str(tmp_path))).append(plan)

    (file,) = tmp_path.iterdir()
    told = json.loads(file.read_text(), parse_constant=refuse)
    assert told["gap_pct"] is None and told["slot_loads_pct"] == [1.5, None]
    assert told["bound_pct"] == 2.5
