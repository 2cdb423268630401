"""Published rows: a file that is damaged, or missing from a table, is noticed.

A table of many epochs is a few files, and a reader sees every row once at every moment.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.commit.parts import coordinator, quiet

from headgate import Flow
from headgate.commit import published
from headgate.commit.checkpoint import Checkpoint
from headgate.commit.manifest import Manifest
from headgate.commit.published import (
    FANOUT,
    GRACE_S,
    CompactionsBeside,
    TableCompaction,
    check_published,
    missing_files,
    published_files,
    rows_published,
    visible,
)
from headgate.commit.publishing import STAGING_GRACE_EPOCHS, publish, staging_uri
from headgate.errors import StateFileError
from headgate.slot.compile import compile_flow
from headgate.slot.program import Program
from headgate.state.digest import digest_of
from headgate.state.storage import Storage
from object_store import LocalS3
from strategies import examples, quick_folder

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
        check(table, 0)
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
    assert rows_published(place, last, "unknown") == 0
    assert rows_published(place, None, "a") == 0


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


FLOW, SINK = "a-b", "c"
Rows = list[dict[str, Any]]


def parquet(table: pa.Table) -> bytes:
    content = pa.BufferOutputStream()
    pq.write_table(table, content, compression="zstd")
    data: bytes = content.getvalue().to_pybytes()
    return data


def publish_epoch(storage: Storage, epoch: int, *tables: pa.Table) -> list[str]:
    """As a flow does it: staged by tasks, then renamed. Returns the names they were staged by."""
    uri = staging_uri(storage.uri, FLOW, SINK)
    files = []
    for task, table in enumerate(tables):
        data = parquet(table)
        name = f"e{epoch:09d}-L01-{task:05d}-{digest_of(data)}.parquet"
        Storage.at(uri).write(name, data)
        files.append({"name": name})
    publish(FLOW, SINK, epoch, files, uri)
    return [file["name"] for file in files]


def rows_of(epoch: int, tasks: int = 2) -> list[pa.Table]:
    return [pa.table({"epoch": [epoch] * 3, "row": [f"{task}.{i}" for i in range(3)]})
            for task in range(tasks)]  # fmt: skip


def expected(epochs: int, tasks: int = 2) -> Rows:
    return [row for e in range(epochs) for table in rows_of(e, tasks) for row in table.to_pylist()]


def seen(storage: Storage, names: list[str] | None = None) -> Rows:
    """What a reader finds that listed these names, or lists now; in the order of the epochs."""
    taken, _ = visible(published_files(names or storage.list(), FLOW, SINK))
    return [
        row
        for file in taken
        for row in pq.read_table(pa.BufferReader(storage.read(file.name))).to_pylist()
    ]


def files_of(storage: Storage) -> list[str]:
    return [file.name for file in published_files(storage.list(), FLOW, SINK)]


class Clock:
    """By which files grow old as soon as a test says so."""

    def __init__(self, storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        self._born: dict[str, float] = {}
        monkeypatch.setattr(storage, "modified_s", self._modified)
        create = storage.create

        def note(name: str, data: Any) -> bool:
            self._born.setdefault(name, self.now_s)
            return create(name, data)

        monkeypatch.setattr(storage, "create", note)

    def _modified(self, name: str) -> float:
        return self._born[name]


@pytest.mark.parametrize(("kind", "epochs"), [("local", 200), ("s3", 40)])
def test_many_epochs_are_a_few_files_and_every_row_is_there_once(
    kind: str,
    epochs: int,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = str(tmp_path) if kind == "local" else request.getfixturevalue("s3").folder()
    storage = Storage.at(place)
    clock = Clock(storage, monkeypatch)
    compaction = TableCompaction(storage, FLOW, SINK)
    most = 0
    for epoch in range(epochs):
        publish_epoch(storage, epoch, *rows_of(epoch))
        clock.now_s += 60
        if compaction.is_due(epoch):
            compaction.run(epoch, clock.now_s)
        most = max(most, len(files_of(storage)))
        if epoch % 17 == 0:
            assert seen(storage) == expected(epoch + 1)

    assert seen(storage) == expected(epochs)
    # not compacted yet; merged, and still there for who has listed them; blocks of two sizes
    assert most <= 2 * (STAGING_GRACE_EPOCHS + FANOUT) + 3 * 2 * FANOUT + 2 * FANOUT


def test_each_row_is_copied_once_per_level(tmp_path: Path) -> None:
    storage, epochs = Storage.at(str(tmp_path)), FANOUT**2 + STAGING_GRACE_EPOCHS
    compaction, copied = TableCompaction(storage, FLOW, SINK), []
    for epoch in range(epochs):
        publish_epoch(storage, epoch, *rows_of(epoch, tasks=1))
        while compaction.is_due(epoch) and (name := compaction.run(epoch, 0.0)):
            copied.append(pq.read_metadata(tmp_path / name).num_rows)

    assert copied.count(3 * FANOUT) == FANOUT and copied.count(3 * FANOUT**2) == 1
    assert len(copied) == FANOUT + 1  # three rows an epoch, two levels
    assert seen(storage) == expected(epochs, tasks=1)


def test_who_listed_before_reads_it_all_until_the_grace_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = Storage.at(str(tmp_path))
    clock = Clock(storage, monkeypatch)
    for epoch in range(24):
        publish_epoch(storage, epoch, *rows_of(epoch))
    listed = storage.list()
    compaction = TableCompaction(storage, FLOW, SINK)

    assert compaction.run(23, clock.now_s) and compaction.run(23, clock.now_s)
    assert compaction.run(23, clock.now_s + GRACE_S - 1) is None
    assert seen(storage, listed) == seen(storage) == expected(24)

    compaction.run(23, clock.now_s + GRACE_S)
    assert len(files_of(storage)) == 2 + 2 * STAGING_GRACE_EPOCHS
    assert seen(storage) == expected(24)


def test_the_newest_epochs_stay_as_they_are(tmp_path: Path) -> None:
    """The last one may have to be published again, and then its files must be there."""
    storage = Storage.at(str(tmp_path))
    for epoch in range(FANOUT + STAGING_GRACE_EPOCHS - 1):
        publish_epoch(storage, epoch, *rows_of(epoch))
    compaction = TableCompaction(storage, FLOW, SINK)

    assert compaction.run(FANOUT + STAGING_GRACE_EPOCHS - 2, 0.0) is None
    assert compaction.run(FANOUT + STAGING_GRACE_EPOCHS - 1, 0.0) is not None


def test_an_old_table_of_many_files_is_caught_up_with(tmp_path: Path) -> None:
    storage, epochs = Storage.at(str(tmp_path)), 120
    for epoch in range(epochs):
        publish_epoch(storage, epoch, *rows_of(epoch))
    compaction, runs = TableCompaction(storage, FLOW, SINK), 0
    while compaction.is_due(epochs) and runs < 100:
        compaction.run(epochs - 1, 4e9)
        runs += 1

    assert seen(storage) == expected(epochs)
    assert len(files_of(storage)) <= 2 * (STAGING_GRACE_EPOCHS + FANOUT) + 2 * FANOUT


class Died(BaseException):
    """The driver is dead."""


class Dying(Storage):
    """Dies before, inside or after the nth thing that it is asked to do."""

    steps, half = 10**9, False

    def _step(self, act: Callable[[], Any], begin: Callable[[], Any] = lambda: None) -> Any:
        self.steps -= 1
        if self.steps == 0:
            begin()
            raise Died
        done = act()
        if self.steps == 1 and not self.half:
            raise Died
        return done

    def read(self, name: str) -> bytes:
        data: bytes = self._step(lambda: super(Dying, self).read(name))
        return data

    def create(self, name: str, data: Any) -> bool:
        made: bool = self._step(lambda: super(Dying, self).create(name, data))
        return made

    def delete(self, *names: str) -> None:
        some = names[: len(names) // 2]
        self._step(
            lambda: super(Dying, self).delete(*names), lambda: super(Dying, self).delete(*some)
        )


@pytest.mark.parametrize("half", [False, True])
def test_a_crash_at_any_step_neither_hides_nor_doubles_a_row(tmp_path: Path, half: bool) -> None:
    storage, epochs = Dying(str(tmp_path)), FANOUT * FANOUT + STAGING_GRACE_EPOCHS
    storage.half = half
    for epoch in range(epochs):
        publish_epoch(Storage.at(str(tmp_path)), epoch, *rows_of(epoch, tasks=1))
    truth, crashes = expected(epochs, tasks=1), 0
    for step in range(1, 2000):
        storage.steps = 1 + 7 * step % 11
        compaction = TableCompaction(storage, FLOW, SINK)
        try:
            idle = compaction.run(epochs - 1, 4e9) is None
        except Died:
            idle, crashes = False, crashes + 1
        assert seen(Storage.at(str(tmp_path))) == truth
        if idle and len(files_of(storage)) == 1 + STAGING_GRACE_EPOCHS:
            break

    assert crashes > 20
    assert len(files_of(storage)) == 1 + STAGING_GRACE_EPOCHS


@pytest.mark.parametrize("seed", range(6))
def test_two_drivers_and_readers_at_any_pace(seed: int, tmp_path: Path) -> None:
    """One driver stops anywhere, also half-way through its listing, and goes on much later."""
    rng = random.Random(seed)
    epochs = 3 * FANOUT + STAGING_GRACE_EPOCHS
    plain = Storage.at(str(tmp_path))
    for epoch in range(epochs):
        publish_epoch(plain, epoch, *rows_of(epoch, tasks=1))
    truth = expected(epochs, tasks=1)

    class Slow(Storage):
        """Lists in two halves, with something in between."""

        def list(self, prefix: str = "") -> list[str]:
            names = super().list(prefix)
            cut = rng.randrange(len(names) + 1)
            between()
            return sorted(set(names[:cut]) | set(super().list(prefix)[cut:]))

        def read(self, name: str) -> bytes:
            if rng.random() < 0.2:
                between()
            return super().read(name)

    depth = 0

    def between() -> None:
        """Another driver, which is not slow, merges and deletes; readers look."""
        nonlocal depth
        if depth == 0:
            depth += 1
            other = TableCompaction(plain, FLOW, SINK)
            for _ in range(rng.randrange(4)):
                other.run(epochs - 1, 4e9)
                assert seen(plain) == truth
            depth -= 1

    slow = TableCompaction(Slow(str(tmp_path)), FLOW, SINK)
    for _ in range(12):
        try:
            slow.run(epochs - 1, 4e9)
        except FileNotFoundError:
            pass  # the other one has deleted what it was to read
        assert seen(plain) == truth


def test_who_was_paused_while_listing_cannot_replace_a_whole_block_by_a_part(
    tmp_path: Path,
) -> None:
    """It has passed the place where the block appears, and then finds half of the files gone."""
    plain = Storage.at(str(tmp_path))
    for epoch in range(2 * FANOUT):
        publish_epoch(plain, epoch, *rows_of(epoch, tasks=1))

    class Paused(Storage):
        def list(self, prefix: str = "") -> list[str]:
            block = TableCompaction(plain, FLOW, SINK).run(2 * FANOUT - 1, 0.0)
            _, covered = visible(published_files(plain.list(), FLOW, SINK))
            plain.delete(*(file.name for file, _ in covered[:5]))
            return [name for name in super().list(prefix) if name != block]

    TableCompaction(Paused(str(tmp_path)), FLOW, SINK).run(2 * FANOUT - 1, 0.0)

    assert seen(plain) == expected(2 * FANOUT, tasks=1)


blocks = st.tuples(st.integers(0, 3), st.integers(0, 20))


@examples(200)
@given(files=st.lists(blocks, max_size=25))
def test_whatever_files_are_there_no_epoch_is_taken_twice(files: list[tuple[int, int]]) -> None:
    names = []
    for level, number in files:
        size = FANOUT**level
        first, last = number * size, (number + 1) * size - 1
        small = f"part-a--b-c-e{first:09d}-L01-00000-ab.parquet"
        names.append(small if not level else f"part-a--b-c-e{first:09d}-e{last:09d}.parquet")
    taken, covered = visible(published_files(set(names), FLOW, SINK))

    held = [epoch for file in taken for epoch in range(file.first, file.last + 1)]
    assert len(held) == len(set(held))
    there = {e for level, n in files for e in range(n * FANOUT**level, (n + 1) * FANOUT**level)}
    assert set(held) == there
    assert len(taken) + len(covered) == len(set(names))


def test_columns_that_came_or_went_are_null_where_they_were_not(tmp_path: Path) -> None:
    storage, truth = Storage.at(str(tmp_path)), []
    for epoch in range(2 * FANOUT):
        columns: dict[str, Any] = {"epoch": [epoch], "old": ["x"]}
        if epoch > 3:
            columns["new"] = [epoch / 2]
        if epoch > 5:
            del columns["old"]
        table = pa.table(columns)
        publish_epoch(storage, epoch, table)
        truth += [{"old": None, "new": None} | row for row in table.to_pylist()]

    name = TableCompaction(storage, FLOW, SINK).run(2 * FANOUT - 1, 0.0)

    assert name is not None
    assert pq.read_table(tmp_path / name).to_pylist() == truth[:FANOUT]


def test_files_stay_if_a_column_changed_its_type_or_a_file_is_damaged(tmp_path: Path) -> None:
    storage = Storage.at(str(tmp_path))
    last = 3 * FANOUT + STAGING_GRACE_EPOCHS - 1
    for epoch in range(last + 1):
        publish_epoch(storage, epoch, pa.table({"v": ["x" if epoch < 3 else epoch]}))
    damaged = next(name for name in files_of(storage) if f"e{FANOUT + 1:09d}" in name)
    data = bytearray(storage.read(damaged))
    data[len(data) // 3] ^= 4
    storage.write(damaged, bytes(data))
    before = files_of(storage)

    compaction = TableCompaction(storage, FLOW, SINK)
    made = [compaction.run(last, 0.0) for _ in range(3)]

    assert made == [f"part-a--b-c-e{2 * FANOUT:09d}-e{3 * FANOUT - 1:09d}.parquet", None, None]
    assert set(before) < set(files_of(storage))


def test_large_files_stay_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Storage.at(str(tmp_path))
    for epoch in range(2 * FANOUT):
        publish_epoch(storage, epoch, *rows_of(epoch))
    monkeypatch.setattr(published, "MERGED_BYTES_MAX", 3000)

    assert TableCompaction(storage, FLOW, SINK).run(2 * FANOUT - 1, 0.0) is None


def test_a_large_block_is_copied_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published, "CHUNK_BYTES", 1000)
    storage, tables = Storage.at(str(tmp_path)), []
    for epoch in range(2 * FANOUT):
        tables.append(pa.table({"epoch": [epoch] * 200, "i": list(range(200))}))
        publish_epoch(storage, epoch, tables[-1])

    name = TableCompaction(storage, FLOW, SINK).run(2 * FANOUT - 1, 0.0)

    assert name is not None
    merged = pq.ParquetFile(tmp_path / name, page_checksum_verification=True)
    assert merged.metadata.num_row_groups == FANOUT
    assert merged.read().equals(pa.concat_tables(tables[:FANOUT]))


@pytest.fixture
def beside(tmp_path: Path) -> Iterator[CompactionsBeside]:
    made = CompactionsBeside({SINK: TableCompaction(Storage.at(str(tmp_path)), FLOW, SINK)})
    yield made
    made.close()


def test_compaction_beside_the_epochs_keeps_up(beside: CompactionsBeside, tmp_path: Path) -> None:
    storage = Storage.at(str(tmp_path))
    for epoch in range(40):
        publish_epoch(storage, epoch, *rows_of(epoch))
        beside.after(SINK, epoch)
    beside.close()

    assert any(file.is_block for file in published_files(storage.list(), FLOW, SINK))
    assert seen(storage) == expected(40)


def test_trouble_with_compaction_stops_nothing(
    beside: CompactionsBeside, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    storage = Storage.at(str(tmp_path))
    storage.write("part-a--b-c-e000000000-e000000007.parquet", b"")
    (tmp_path / "part-a--b-c-e000000000-e000000007.parquet").unlink()
    (tmp_path / "part-a--b-c-e000000000-e000000007.parquet").symlink_to("/nowhere")
    publish_epoch(storage, 1, *rows_of(1))

    beside.after(SINK, 30)
    beside.close()

    assert "was not compacted" in caplog.text


def test_on_an_object_store_the_first_who_merges_a_block_wins(s3: LocalS3) -> None:
    uri = s3.folder()
    for epoch in range(2 * FANOUT):
        publish_epoch(Storage.at(uri), epoch, *rows_of(epoch))
    first, second = (TableCompaction(Storage.at(uri), FLOW, SINK) for _ in range(2))

    assert first.run(2 * FANOUT - 1, 0.0) is not None
    assert second.run(2 * FANOUT - 1, 0.0) is None
    assert seen(Storage.at(uri)) == expected(2 * FANOUT)


def test_a_flow_of_another_name_in_the_folder_is_left_alone() -> None:
    with quick_folder() as folder:
        storage = Storage.at(str(folder))
        for epoch in range(2 * FANOUT):
            publish_epoch(storage, epoch, *rows_of(epoch))
        assert TableCompaction(storage, "x", SINK).run(2 * FANOUT - 1, 4e9) is None
