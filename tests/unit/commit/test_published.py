"""Published rows: a file that is damaged, or missing from a table, is noticed."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.commit.parts import coordinator, quiet
from tests.unit.commit.test_table_compaction import FLOW, SINK, publish_epoch, rows_of

from headgate import Flow
from headgate.commit.checkpoint import Checkpoint
from headgate.commit.manifest import Manifest
from headgate.commit.published import check_published, missing_files, rows_published
from headgate.commit.publishing import staging_uri
from headgate.commit.table_compaction import TableCompaction, published_files, visible
from headgate.errors import StateFileError
from headgate.slot.program import Program, compile_flow
from headgate.state.storage import Storage

EPOCHS = 20
ROWS = 6 * EPOCHS


@pytest.fixture
def table(tmp_path: Path) -> Storage:
    """Twenty epochs of six rows; the first sixteen are two blocks."""
    storage = Storage.at(str(tmp_path / "table"))
    for epoch in range(EPOCHS):
        publish_epoch(storage, epoch, *rows_of(epoch))
    compaction = TableCompaction(storage, FLOW, SINK)
    while compaction.run(EPOCHS + 8, 0.0):
        pass
    compaction.run(EPOCHS + 8, 1e12)
    return storage


def check(storage: Storage, rows: int | None = ROWS) -> int:
    files, _ = visible(published_files(storage.list(), FLOW, SINK))
    check_published(storage, files, SINK, rows)
    return len(files)


def test_what_is_whole_is_read(table: Storage) -> None:
    assert check(table) == 2 + 2 * (EPOCHS - 16)


def test_no_flipped_bit_and_no_cut_goes_unseen(table: Storage) -> None:
    rng = random.Random(3)
    for name in table.list():
        whole = table.read(name)
        at = rng.sample(range(len(whole)), 40)
        damaged = [
            whole[:i] + bytes([whole[i] ^ 1 << rng.randrange(8)]) + whole[i + 1 :] for i in at
        ]
        for data in (*damaged, whole[: at[0]], b""):
            table.write(name, data)
            with pytest.raises(StateFileError, match="verify=False") as caught:
                check(table)
            assert (caught.value.file, caught.value.sink) == (name, SINK)
        table.write(name, whole)
    check(table)


def test_a_missing_file_is_counted_by_its_rows(table: Storage) -> None:
    block, *_, small = table.list()
    for name, rows in ((small, 3), (block, 48)):
        whole = table.read(name)
        table.delete(name)
        with pytest.raises(StateFileError, match=f"{rows} of {ROWS} rows are missing"):
            check(table)
        check(table, None)
        table.write(name, whole)
    check(table)


def test_files_that_a_damaged_block_covers_stay(table: Storage) -> None:
    """They are all that it could be made of again."""
    storage = Storage.at(f"{table.uri}-again")
    for epoch in range(8):
        publish_epoch(storage, epoch, *rows_of(epoch))
    compaction = TableCompaction(storage, FLOW, SINK)
    block = compaction.run(EPOCHS, 0.0)
    assert block is not None
    before, whole = storage.list(), storage.read(block)
    storage.write(block, whole[:-9] + b"?" + whole[-8:])

    with pytest.raises(Exception, match="digest inside"):
        compaction.run(EPOCHS, 1e12)

    assert storage.list() == before


# --- how many there should be -------------------------------------------------------------------


def to_table(*sinks: str) -> Program:
    flow = Flow("f")
    rows = flow.source(lambda: None, schema="k bigint", name="in")
    for sink in sinks:
        rows.to_table(sink)
    rows.to_memory("other")
    return compile_flow(flow.graph())


def ran(folder: Path, epoch: int, *sinks: str, rows: int = 5) -> Manifest:
    at = coordinator(folder, of=to_table(*sinks))
    told = {sink: [{"name": "x", "rows": rows, "bytes": 1}] for sink in (*sinks, "other")}
    at.run_epoch(epoch, "q", lambda plan: quiet(plan, sinks=told))
    assert at.last is not None
    return at.last


def test_rows_of_tables_are_counted_over_starts_and_changes_of_the_flow(tmp_path: Path) -> None:
    assert ran(tmp_path, 0, "a").published == {"a": 5}
    assert ran(tmp_path, 1, "a", "b").published == {"a": 10, "b": 5}
    assert ran(tmp_path, 2, "b").published == {"a": 10, "b": 10}
    last = ran(tmp_path, 3, "a", "b")
    assert last.published == {"a": 15, "b": 15}

    place = Checkpoint(str(tmp_path))
    assert rows_published(place, place.last_manifest(), "a") == 15
    waiting = replace(last, epoch=4, published={"a": 20})
    assert rows_published(place, waiting, "a") == 15, "epoch 4 is committed, not published"
    assert rows_published(place, last, "unknown") is None
    assert rows_published(place, None, "a") is None


def test_a_table_of_an_earlier_version_is_not_counted(tmp_path: Path) -> None:
    """Nobody knows how many rows it had."""
    last = ran(tmp_path, 0, "a")
    Checkpoint(str(tmp_path)).commit(replace(last, epoch=1, published={}))

    assert ran(tmp_path, 2, "a", "b").published == {"b": 5}


def test_files_of_a_parquet_sink_that_were_taken_away_are_told(tmp_path: Path) -> None:
    out, place = tmp_path / "out", Checkpoint(str(tmp_path / "checkpoint"))
    uri = staging_uri(str(out), FLOW, SINK)
    manifests = []
    for epoch in range(3):
        names = publish_epoch(Storage.at(str(out)), epoch, *rows_of(epoch))
        files: list[dict[str, Any]] = [{"name": name, "rows": 3, "bytes": 1} for name in names]
        manifests.append(Manifest(epoch, "q", 1, {}, {}, {SINK: files}))
    for epoch in (0, 1):
        place.mark(epoch, SINK)
    assert missing_files(place, FLOW, SINK, uri, manifests) == []
    for path in sorted(out.glob("*.parquet"))[1:]:
        path.unlink()

    gone = missing_files(place, FLOW, SINK, uri, manifests)

    assert [Path(name).name.partition("-L01")[0][-10:] for name in gone] == [
        "e000000000", "e000000001", "e000000001",
    ]  # fmt: skip
