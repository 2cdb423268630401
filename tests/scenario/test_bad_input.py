"""Bad functions, bad rows, bad files, bad checkpoints: a named error, and nothing half done."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.scenario.oracle import bag, chain

import headgate as hg
from headgate.commit.checkpoint import IDENTITY, Checkpoint
from headgate.errors import (
    ForeignCheckpoint,
    IncompatibleFlow,
    OperatorFailed,
    Overtaken,
    StateFileError,
    StorageFailed,
    StorageFull,
    UnknownSlot,
    UnsupportedVersion,
)
from headgate.state.digest import seal
from headgate.testing import ListSource, LocalRun, run

SCHEMA = "k bigint, v bigint"
BAD = 13
EPOCHS = [[{"k": v % 3, "v": v} for v in range(8 * e, 8 * e + 8)] for e in range(3)]
ALL = bag({"v": row["v"], "count": 1} for rows in EPOCHS for row in rows)


def holds_bad(batch: pa.RecordBatch) -> bool:
    return BAD in batch.column("v").to_pylist()


def raising(batch: pa.RecordBatch) -> pa.RecordBatch:
    if holds_bad(batch):
        raise ValueError("bad luck")
    return batch


def wrong_column(batch: pa.RecordBatch) -> Any:
    return batch.rename_columns(["k", "w"]) if holds_bad(batch) else batch


def wrong_count(batch: pa.RecordBatch) -> Any:
    return batch.slice(1) if holds_bad(batch) else batch


def wrong_type(batch: pa.RecordBatch) -> Any:
    if not holds_bad(batch):
        return batch
    words = pa.array(["many" if v == BAD else str(v) for v in batch.column("v").to_pylist()])
    return {"k": batch.column("k"), "v": words}


def nothing(batch: pa.RecordBatch) -> Any:
    return None if holds_bad(batch) else batch


def row_raising(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "k": 1 // (row["v"] - BAD) * 0 + row["k"]}


def row_without_column(row: dict[str, Any]) -> dict[str, Any]:
    return {"k": row["k"]} if row["v"] == BAD else row


def row_of_wrong_type(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "v": "many"} if row["v"] == BAD else row


def row_that_is_none(row: dict[str, Any]) -> Any:
    return None if row["v"] == BAD else row


def mask_raising(batch: pa.RecordBatch) -> Any:
    raising(batch)
    return np.ones(batch.num_rows, np.bool_)


def mask_of_numbers(batch: pa.RecordBatch) -> Any:
    return np.ones(batch.num_rows, np.int8 if holds_bad(batch) else np.bool_)


def mask_too_short(batch: pa.RecordBatch) -> Any:
    return np.ones(batch.num_rows - holds_bad(batch), np.bool_)


def row_predicate_raising(row: dict[str, Any]) -> bool:
    row_raising(row)
    return True


def flat_raising(batch: pa.RecordBatch) -> Any:
    return raising(batch), np.arange(batch.num_rows)


def flat_without_origins(batch: pa.RecordBatch) -> Any:
    return batch if holds_bad(batch) else (batch, np.arange(batch.num_rows))


def flat_with_strange_origins(batch: pa.RecordBatch) -> Any:
    return batch, np.arange(batch.num_rows) + 1000 * holds_bad(batch)


def update_raising(_key: Any, rows: Any, state: Any) -> Any:
    if any(row["v"] == BAD for row in rows):
        raise ValueError("bad luck")
    return (state or 0) + len(rows), rows


@dataclass(frozen=True)
class Passing(hg.StatefulOperator):
    """Counts, and passes rows on; may fail in `process`, in `finish`, or by what it returns."""

    fails: str = ""

    def state_fields(self, rows: pa.Schema, key: Any) -> hg.StateFields:
        return hg.StateFields(pa.schema([pa.field("n", pa.int64())]))

    def output_schema(self, rows: pa.Schema, key: Any) -> pa.Schema:
        return rows

    def process(self, rows: hg.KeyedRows, state: Any, clock: hg.EpochClock) -> Any:
        groups = rows.groups
        state.write(groups, {"n": state.read(groups)["n"] + groups.sizes})
        if self.fails == "process":
            raising(rows.batch)
        if self.fails == "state length" and holds_bad(rows.batch):
            state.write(groups, {"n": [1] * (len(groups) + 1)})
        if self.fails == "state type" and holds_bad(rows.batch):
            state.write(groups, {"n": ["one"] * len(groups)})
        if self.fails == "state column" and holds_bad(rows.batch):
            state.write(groups, {"m": [1] * len(groups)})
        if self.fails == "output" and holds_bad(rows.batch):
            return rows.batch.select(["k"])
        return rows.batch

    def finish(self, state: Any, clock: hg.EpochClock, carry: Any = None) -> Any:
        if self.fails == "finish" and clock.epoch == 1:
            raise ValueError("bad luck")
        return None


Apply = Callable[[Any], Any]
MENDED: dict[str, Apply] = {
    "map": lambda s: s.map(lambda batch: batch, SCHEMA, name="fragile"),
    "map_rows": lambda s: s.map_rows(lambda row: row, SCHEMA, name="fragile"),
    "filter": lambda s: s.filter(lambda b: np.ones(b.num_rows, np.bool_), name="fragile"),
    "filter_rows": lambda s: s.filter_rows(lambda row: True, name="fragile"),
    "flat_map": lambda s: s.flat_map(lambda b: (b, np.arange(b.num_rows)), SCHEMA, name="fragile"),
    "stateful": lambda s: s.key_by("k").process(Passing(), name="fragile"),
    "update": lambda s: s.key_by("k").process(
        hg.Update(
            _fine("update_raising"),
            output=pa.schema({"k": pa.int64(), "v": pa.int64()}),
            rows_as="dicts",
        ),
        name="fragile",
    ),
}


def _fine(name: str) -> Any:
    def fine(_key: Any, rows: Any, state: Any) -> Any:
        return (state or 0) + len(rows), rows

    fine.__name__ = name  # what a checkpoint remembers of an Update
    return fine


def _update(s: Any) -> Any:
    schema = pa.schema({"k": pa.int64(), "v": pa.int64()})
    return s.key_by("k").process(
        hg.Update(update_raising, output=schema, rows_as="dicts"), name="fragile"
    )


# what is applied, how it looks when mended, and which rows a dead-letter sink gets (None: no
# row can be blamed)
BROKEN: dict[str, tuple[Apply, str, list[int] | None]] = {
    "map raises": (lambda s: s.map(raising, SCHEMA, name="fragile"), "map", [BAD]),
    "map, wrong column": (lambda s: s.map(wrong_column, SCHEMA, name="fragile"), "map", [BAD]),
    "map, wrong count": (lambda s: s.map(wrong_count, SCHEMA, name="fragile"), "map", [BAD]),
    "map, wrong type": (lambda s: s.map(wrong_type, SCHEMA, name="fragile"), "map", [BAD]),
    "map, nothing": (lambda s: s.map(nothing, SCHEMA, name="fragile"), "map", [BAD]),
    "row raises": (lambda s: s.map_rows(row_raising, SCHEMA, name="fragile"), "map_rows", [BAD]),
    "row, no column": (
        lambda s: s.map_rows(row_without_column, SCHEMA, name="fragile"), "map_rows", [BAD],
    ),
    "row, wrong type": (
        lambda s: s.map_rows(row_of_wrong_type, SCHEMA, name="fragile"), "map_rows", [BAD],
    ),
    "row, none": (
        lambda s: s.map_rows(row_that_is_none, SCHEMA, name="fragile"), "map_rows", [BAD],
    ),
    "filter raises": (lambda s: s.filter(mask_raising, name="fragile"), "filter", [BAD]),
    "filter, numbers": (lambda s: s.filter(mask_of_numbers, name="fragile"), "filter", [BAD]),
    "filter, short": (lambda s: s.filter(mask_too_short, name="fragile"), "filter", [BAD]),
    "row filter raises": (
        lambda s: s.filter_rows(row_predicate_raising, name="fragile"), "filter_rows", [BAD],
    ),
    "flat_map raises": (
        lambda s: s.flat_map(flat_raising, SCHEMA, name="fragile"), "flat_map", [BAD],
    ),
    "flat_map, no origins": (
        lambda s: s.flat_map(flat_without_origins, SCHEMA, name="fragile"), "flat_map", [BAD],
    ),
    "flat_map, strange origins": (
        lambda s: s.flat_map(flat_with_strange_origins, SCHEMA, name="fragile"), "flat_map", [BAD],
    ),
    "process raises": (
        lambda s: s.key_by("k").process(Passing("process"), name="fragile"), "stateful", [BAD],
    ),
    "process, wrong columns": (
        lambda s: s.key_by("k").process(Passing("output"), name="fragile"), "stateful", [BAD],
    ),
    **{
        f"{fails} is wrong": (
            lambda s, fails=fails: s.key_by("k").process(Passing(fails), name="fragile"),
            "stateful",
            [BAD],
        )
        for fails in ("state length", "state type", "state column")
    },
    "finish raises": (
        lambda s: s.key_by("k").process(Passing("finish"), name="fragile"), "stateful", None,
    ),
    "update raises": (_update, "update", [v for v in range(8, 16) if v % 3 == BAD % 3]),
}  # fmt: skip


def flow_with(apply: Apply, epochs: Any = EPOCHS, *, dead: bool = False) -> hg.Flow:
    flow = hg.Flow("fragile")
    source = flow.source(ListSource(SCHEMA, epochs), name="rows")
    before = source.key_by("k").process(hg.Count(emit="rows"), name="before")
    made = apply(before)
    made.key_by("v").process(hg.Count(), name="values").to_memory("out")
    if dead:
        flow.dead_letters().to_memory("dead")
    return flow


@pytest.mark.parametrize("name", BROKEN)
def test_a_failing_operator_commits_nothing_and_loses_nothing(name: str, tmp_path: Path) -> None:
    broken, mended, bad = BROKEN[name]
    with pytest.raises(OperatorFailed) as caught:
        run(flow_with(broken), slots=2, checkpoint=tmp_path / "checkpoint")

    error = caught.value
    assert (error.operator, error.epoch) == ("fragile", 1)
    assert error.slot in (0, 1)
    assert isinstance(error.sample, str)
    assert bad is None or any(f"'v': {v}" in error.sample for v in bad), error.sample
    assert error.reason and "epoch 1" in str(error)
    assert Checkpoint(str(tmp_path / "checkpoint")).epochs() == [0]
    done = run(flow_with(MENDED[mended]), slots=2, checkpoint=tmp_path / "checkpoint")
    assert bag(done.state("values")) == ALL
    assert sum(row["count"] for row in done.state("before")) == 24


@pytest.mark.parametrize("name", [n for n, (_, _, rows) in BROKEN.items() if rows is not None])
def test_a_dead_letter_sink_takes_the_bad_rows_and_only_them(name: str) -> None:
    broken, _, bad = BROKEN[name]
    assert bad is not None

    done = run(flow_with(broken, dead=True), slots=2)

    letters = done.rows("dead")
    assert sorted(json.loads(row["row"])["v"] for row in letters) == bad
    assert {(row["operator"], row["epoch"]) for row in letters} == {("fragile", 1)}
    assert all(row["reason"] and row["slot"] in (0, 1) for row in letters)
    assert bag(done.state("values")) == bag(
        {"v": row["v"], "count": 1} for rows in EPOCHS for row in rows if row["v"] not in bad
    )
    assert [r["dead_rows"] for r in done.records] == [{}, {"fragile": len(bad)}, {}]
    if "process" in name:  # what the failed call wrote was taken back
        assert sum(row["n"] for row in done.state("fragile")) == 24 - len(bad)


def test_a_finish_that_fails_stops_the_flow_even_with_dead_letters() -> None:
    with pytest.raises(OperatorFailed) as caught:
        run(flow_with(BROKEN["finish raises"][0], dead=True), slots=2)
    assert caught.value.operator == "fragile"


def test_null_keys_stop_the_flow_where_they_are_forbidden(tmp_path: Path) -> None:
    epochs: Any = [[{"k": 1, "v": 1}], [{"k": None, "v": 2}]]

    def build(nulls: Any) -> hg.Flow:
        flow = hg.Flow("nulls")
        source = flow.source(ListSource(SCHEMA, epochs), name="rows")
        source.key_by("k", nulls=nulls).process(hg.Count(), name="counts").discard()
        return flow

    with pytest.raises(OperatorFailed) as caught:
        run(build("error"), checkpoint=tmp_path / "checkpoint")
    assert (caught.value.operator, caught.value.epoch) == ("counts", 1)
    done = run(build("drop"), checkpoint=tmp_path / "checkpoint")
    assert done.state("counts") == [{"k": 1, "count": 1}]


def test_a_sum_that_leaves_64_bits_is_a_bad_row() -> None:
    epochs = [[{"k": 1, "v": 2**62}], [{"k": 1, "v": 2**62}, {"k": 2, "v": 5}]]
    flow = hg.Flow("overflow")
    source = flow.source(ListSource(SCHEMA, epochs), name="rows")
    source.key_by("k").process(hg.Sum("v"), name="sums").discard()
    with pytest.raises(OperatorFailed, match="64-bit"):
        run(flow)

    flow.dead_letters().to_memory("dead")
    done = run(flow)
    assert bag(done.state("sums")) == bag([{"k": 1, "sum": 2**62}, {"k": 2, "sum": 5}])
    assert len(done.rows("dead")) == 1


# --- files ------------------------------------------------------------------------------------


def counting(epochs: Any, **more: Any) -> hg.Flow:
    flow = hg.Flow("counting")
    source = flow.source(ListSource(SCHEMA, epochs), name="rows")
    source.key_by("k").process(hg.Count(**more), name="counts").to_memory("out")
    return flow


def counts_of(epochs: Any) -> Counter[Any]:
    counts = Counter(row["k"] for rows in epochs for row in rows)
    return bag({"k": k, "count": n} for k, n in counts.items())


def damage(path: Path, how: str) -> None:
    if how == "missing":
        path.unlink()
    elif how == "cut":
        path.write_bytes(path.read_bytes()[:-5])
    else:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 0xFF
        path.write_bytes(bytes(data))


@pytest.mark.parametrize("how", ["missing", "cut", "changed"])
def test_a_damaged_state_file_is_named(how: str, tmp_path: Path) -> None:
    place = tmp_path / "checkpoint"
    before = run(counting(EPOCHS[:2]), slots=1, checkpoint=place)
    assert before.coordinator.last is not None
    victim = before.coordinator.last.chains["counts"][0][-1].name
    whole = (place / "state" / victim).read_bytes()
    damage(place / "state" / victim, how)

    with pytest.raises(StateFileError) as caught:
        run(counting(EPOCHS), slots=1, checkpoint=place)

    assert caught.value.file == victim and victim in str(caught.value)
    assert (caught.value.operator, caught.value.slot) == ("counts", 0)
    assert Checkpoint(str(place)).epochs() == [0, 1]
    (place / "state" / victim).write_bytes(whole)
    done = run(counting(EPOCHS), slots=1, checkpoint=place)
    assert bag(done.state("counts")) == counts_of(EPOCHS)


@pytest.mark.parametrize("how", ["missing", "cut", "changed"])
def test_a_damaged_snapshot_is_replaced_by_what_it_was_folded_from(
    how: str, tmp_path: Path
) -> None:
    rng = random.Random(how)
    epochs = [[{"k": rng.randrange(9), "v": e}, {"k": rng.randrange(9), "v": e}] for e in range(60)]
    place, files = tmp_path / "checkpoint", []
    for upto in range(10, 60):
        last = run(counting(epochs[:upto]), slots=1, checkpoint=place).coordinator.last
        assert last is not None
        files = [f for f in last.chains["counts"][0] if f.replaces]
        if files:
            break
    assert files, "no compaction in 60 epochs"
    damage(place / "state" / files[0].name, how)

    done = run(counting(epochs[: upto + 3]), slots=1, checkpoint=place)

    assert bag(done.state("counts")) == counts_of(epochs[: upto + 3])


def test_a_journal_cut_by_a_crash_loses_no_epoch(tmp_path: Path) -> None:
    """Half a line is all that a crash in the middle of an append leaves."""
    place = tmp_path / "checkpoint"
    run(counting(EPOCHS[:2]), checkpoint=place)
    (journal,) = (place / "journal").iterdir()
    whole = journal.read_bytes()
    journal.write_bytes(whole[: len(whole) - 40])

    run(counting(EPOCHS), checkpoint=place)
    again = run(counting(EPOCHS), checkpoint=place)

    records = [r for r in again.coordinator.journal.read() if r["kind"] == "epoch"]
    assert [r["epoch"] for r in records] == [0, 1, 2]


# --- checkpoints ------------------------------------------------------------------------------


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """One that knows epochs 0 and 1 of `counting`."""
    run(counting(EPOCHS[:2]), checkpoint=tmp_path / "checkpoint")
    return tmp_path / "checkpoint"


def check_untouched(checkpoint: Path) -> None:
    """Whatever was refused, the right flow still goes on."""
    done = run(counting(EPOCHS), checkpoint=checkpoint)
    assert bag(done.state("counts")) == counts_of(EPOCHS)


def test_the_checkpoint_of_another_flow_is_refused(checkpoint: Path) -> None:
    other = hg.Flow("other")
    source = other.source(ListSource(SCHEMA, EPOCHS), name="rows")
    source.key_by("k").process(hg.Count(), name="counts").discard()
    with pytest.raises(ForeignCheckpoint) as caught:
        run(other, checkpoint=checkpoint)
    assert (caught.value.found, caught.value.wanted) == ("counting", "other")
    check_untouched(checkpoint)


@pytest.mark.parametrize(
    ("declare", "what"),
    [
        (lambda s: s.key_by("k").process(hg.Sum("v"), name="counts"), "state"),
        (lambda s: s.key_by("v").process(hg.Count(), name="counts"), "key"),
        (lambda s: s.key_by("k", "v").process(hg.Count(), name="counts"), "key"),
        (lambda s: s.key_by("k").process(hg.Count("v"), name="counts"), "settings"),
        (
            lambda s: s.key_by("k").process(hg.Count(ttl=timedelta(hours=1)), name="counts"),
            "ttl_ms",
        ),
        (lambda s: s.key_by("k").process(hg.Count(), name="renamed"), "gone"),
    ],
    ids=["state", "key", "more key", "settings", "ttl", "renamed"],
)
def test_a_change_that_state_cannot_follow_is_refused(
    declare: Any, what: str, checkpoint: Path
) -> None:
    flow = hg.Flow("counting")
    declare(flow.source(ListSource(SCHEMA, EPOCHS), name="rows")).to_memory("out")

    with pytest.raises(IncompatibleFlow) as caught:
        run(flow, checkpoint=checkpoint)

    assert any(what in change and "counts" in change for change in caught.value.changes)
    check_untouched(checkpoint)


def test_another_key_type_is_refused(checkpoint: Path) -> None:
    flow = hg.Flow("counting")
    source = flow.source(ListSource("k string, v bigint", []), name="rows")
    source.key_by("k").process(hg.Count(), name="counts").discard()
    with pytest.raises(IncompatibleFlow):
        run(flow, checkpoint=checkpoint)
    check_untouched(checkpoint)


def test_an_operator_may_go_if_its_state_is_given_up(checkpoint: Path) -> None:
    flow = hg.Flow("counting")
    source = flow.source(ListSource(SCHEMA, EPOCHS), name="rows")
    source.key_by("v").process(hg.Count(), name="renamed").discard()

    done = run(flow, checkpoint=checkpoint, drop_state=["counts"])

    assert bag(done.state("renamed")) == bag({"v": r["v"], "count": 1} for r in EPOCHS[2])


def test_another_format_is_refused(checkpoint: Path) -> None:
    identity = checkpoint / IDENTITY
    told = identity.read_bytes()
    for change in ({"format": 99}, {"hash": "md5"}, {"hash": "hg1"}):
        identity.write_bytes(seal({**json.loads(told), **change}))
        with pytest.raises(UnsupportedVersion):
            run(counting(EPOCHS), checkpoint=checkpoint)
    identity.write_bytes(told)
    check_untouched(checkpoint)


def test_a_checkpoint_without_identity_is_refused(checkpoint: Path) -> None:
    told = (checkpoint / IDENTITY).read_bytes()
    (checkpoint / IDENTITY).unlink()
    with pytest.raises(ForeignCheckpoint):
        run(counting(EPOCHS), checkpoint=checkpoint)
    (checkpoint / IDENTITY).write_bytes(told)
    check_untouched(checkpoint)


def test_tables_for_other_slots_or_operators_are_refused(checkpoint: Path) -> None:
    with pytest.raises(UnknownSlot):
        run(counting(EPOCHS), slots=2, checkpoint=checkpoint, tables={"counts": hg.hash_table(3)})
    with pytest.raises(UnknownSlot):
        run(counting(EPOCHS), slots=2, checkpoint=checkpoint, tables={"x": hg.hash_table(2)})
    check_untouched(checkpoint)


def test_new_sinks_stateless_operators_slots_and_state_resume(checkpoint: Path) -> None:
    flow = hg.Flow("counting")
    source = flow.source(ListSource(SCHEMA, EPOCHS), name="rows")
    passed = source.shuffle().map(lambda batch: batch, SCHEMA, name="new_map")
    counts = passed.key_by("k").process(hg.Count(), name="counts")
    counts.to_memory("renamed_sink")
    counts.key_by("count").process(hg.Count(name="n"), name="new_operator").to_memory("new_sink")

    done = run(flow, slots=5, checkpoint=checkpoint)

    assert bag(done.state("counts")) == counts_of(EPOCHS)
    assert sum(row["value.count"] for row in done.state("new_operator")) == 3


def test_of_two_drivers_on_one_checkpoint_the_older_stops(tmp_path: Path) -> None:
    place = tmp_path / "checkpoint"

    def other_driver(epoch: int) -> None:
        if epoch == 1:
            run(counting(EPOCHS), checkpoint=place)

    with pytest.raises(Overtaken) as caught:
        run(counting(EPOCHS), checkpoint=place, before_epoch=other_driver)
    assert (caught.value.generation, caught.value.newest) == (1, 2)
    check_untouched(place)


# --- room -------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("mounting a small disk needs root")
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("this kernel does not let us mount")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_stops_the_flow_and_room_lets_it_go_on(small_disk: Path) -> None:
    case = chain(random.Random(5), epochs=12, rows=10)
    rng = random.Random(6)
    for rows in case.epochs["rows"]:
        rows += [{"k1": rng.randrange(10**9), "k2": "z" * 50, "v": 0} for _ in range(2000)]
    sums: dict[str, int] = {}
    for rows in case.epochs["rows"]:
        for row in rows:
            sums[row["k2"]] = sums.get(row["k2"], 0) + row["v"]

    def go() -> LocalRun:
        flow, streams = case.flow()
        streams["sums"].to_memory("out")
        return run(flow, slots=2, checkpoint=small_disk / "checkpoint", check_purity=False)

    with pytest.raises(StorageFull) as caught:
        go()
    assert str(small_disk) in caught.value.uri
    committed = Checkpoint(str(small_disk / "checkpoint")).epochs()
    assert len(committed) < 12
    with pytest.raises(StorageFull):
        go()  # still full, and no worse
    assert Checkpoint(str(small_disk / "checkpoint")).epochs()[-1:] == committed[-1:]

    subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
    done = go()

    assert bag(done.state("second")) == bag({"k2": k, "sum": n} for k, n in sums.items())
    assert sum(row["count"] for row in done.state("first")) == sum(
        len(rows) for rows in case.epochs["rows"]
    )
    records = [r for r in done.coordinator.journal.read() if r["kind"] == "epoch"]
    assert [r["epoch"] for r in records] == list(range(12))


def test_a_read_only_checkpoint_stops_the_flow_and_is_named(small_disk: Path) -> None:
    """At a start, and under a running flow."""
    place = small_disk / "checkpoint"

    def mounted(how: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{how}", str(small_disk)], check=True)

    run(counting(EPOCHS[:1]), checkpoint=place)
    mounted("ro")
    with pytest.raises(StorageFailed, match="Read-only") as caught:
        run(counting(EPOCHS), checkpoint=place)
    assert str(small_disk) in caught.value.path
    mounted("rw")
    with pytest.raises(StorageFailed, match="start the flow again"):
        run(counting(EPOCHS), checkpoint=place, before_epoch=lambda e: mounted("ro" if e else "rw"))
    mounted("rw")
    check_untouched(place)


@pytest.mark.parametrize("name", ["", "headgate.json", "manifests"])
def test_a_file_where_a_folder_should_be_and_the_other_way_round_is_named(
    name: str, tmp_path: Path
) -> None:
    place = tmp_path / "checkpoint"
    if name == "headgate.json":
        (place / name).mkdir(parents=True)
    else:
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_text("?")
    with pytest.raises(StorageFailed) as caught:
        run(counting(EPOCHS), checkpoint=place)
    assert str(place) in caught.value.path


class _Gone:
    """Its name is looked up when state is read back, and then it is not there."""


def _keeps_an_object(key: Any, rows: Any, state: Any) -> Any:
    return _Gone(), None


def test_state_that_cannot_be_read_back_is_named_with_its_place_and_a_row_of_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(epochs: list[list[dict[str, int]]]) -> hg.Flow:
        flow = hg.Flow("kept")
        update = hg.Update(_keeps_an_object, output=pa.schema({"k": pa.int64()}))
        rows = flow.source(ListSource("k bigint", epochs)).key_by("k")
        rows.process(update, name="objects").to_memory("out")
        return flow

    first = [{"k": 5}]
    run(build([first]), slots=1, checkpoint=tmp_path)
    monkeypatch.delattr(f"{__name__}._Gone")

    with pytest.raises(OperatorFailed, match="still importable") as caught:
        run(build([first, [{"k": 3}, {"k": 5}]]), slots=1, checkpoint=tmp_path)

    error = caught.value
    assert (error.operator, error.slot, error.epoch) == ("objects", 0, 1)
    assert error.key == "5"
