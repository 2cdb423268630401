"""Spark's checkpoint must go on where the manifests end; anything else is an error."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.unit.commit.parts import coordinator, quiet

from headgate.commit.checkpoint import Checkpoint
from headgate.commit.continuity import (
    check_sources,
    check_start,
    source_changes,
    spark_names,
    spark_query_id,
)
from headgate.commit.coordinator import EpochResult
from headgate.errors import ForeignCheckpoint, IncompatibleFlow
from headgate.slot.plan import EpochPlan
from headgate.state.storage import Storage


def never(plan: EpochPlan) -> EpochResult:
    raise AssertionError("no operator may run")


def plans(folder: Path, epoch: int, rows: str = "rows") -> None:
    """What Spark does before it calls for an epoch."""
    path = folder / "spark" / "offsets" / str(epoch)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'v1\n{{"batchWatermarkMs":0}}\n"{rows} of {epoch}"')


def start(folder: Path, query_id: str | None = "q") -> None:
    at = coordinator(folder)
    check_start(at.checkpoint, at.last, query_id)


def run(folder: Path, epoch: int, query_id: str = "q") -> None:
    last = Checkpoint(str(folder)).last_epoch()
    tasks = quiet if last is None or epoch > last else never
    coordinator(folder).run_epoch(epoch, query_id, tasks)


def test_another_query_may_not_go_on_from_this_state(tmp_path: Path) -> None:
    run(tmp_path, 0)

    for epoch in (0, 1):
        with pytest.raises(ForeignCheckpoint):
            coordinator(tmp_path).run_epoch(epoch, "other", never)


def test_an_epoch_may_not_be_skipped(tmp_path: Path) -> None:
    at = coordinator(tmp_path)
    with pytest.raises(ForeignCheckpoint):
        at.run_epoch(1, "q", never)
    at.run_epoch(0, "q", quiet)

    with pytest.raises(ForeignCheckpoint):
        at.run_epoch(2, "q", never)


def test_a_vanished_checkpoint_of_the_engine_is_noticed_once_there_is_state(tmp_path: Path) -> None:
    start(tmp_path, None)
    run(tmp_path, 0)

    start(tmp_path)
    with pytest.raises(ForeignCheckpoint):
        start(tmp_path, None)


def test_only_the_last_epoch_may_be_replayed(tmp_path: Path) -> None:
    """Spark asks again for one that is older only if its checkpoint is an old copy."""
    for epoch in range(3):
        run(tmp_path, epoch)
    run(tmp_path, 2)

    with pytest.raises(ForeignCheckpoint, match="older than this flow's state"):
        run(tmp_path, 1)


def test_a_replayed_epoch_must_be_the_one_that_was_committed(tmp_path: Path) -> None:
    plans(tmp_path, 0)
    run(tmp_path, 0)
    run(tmp_path, 0)
    start(tmp_path)
    plans(tmp_path, 0, "other rows")

    with pytest.raises(ForeignCheckpoint, match="planned other rows for batch 0"):
        run(tmp_path, 0)
    with pytest.raises(ForeignCheckpoint, match="planned other rows for batch 0"):
        start(tmp_path)


def test_an_old_copy_of_sparks_checkpoint_is_noticed_at_start(tmp_path: Path) -> None:
    plans(tmp_path, 0)
    run(tmp_path, 0)
    shutil.copytree(tmp_path / "spark", tmp_path / "copy")
    plans(tmp_path, 1)
    run(tmp_path, 1)
    shutil.rmtree(tmp_path / "spark")
    shutil.copytree(tmp_path / "copy", tmp_path / "spark")

    with pytest.raises(ForeignCheckpoint, match="has no plan of batch 1"):
        start(tmp_path)


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"id"'])
def test_a_query_id_that_cannot_be_read_is_a_clear_error(tmp_path: Path, content: str) -> None:
    (tmp_path / "spark").mkdir()
    (tmp_path / "spark" / "metadata").write_text(content)

    with pytest.raises(ForeignCheckpoint, match="spark/metadata"):
        spark_query_id(Storage.at(str(tmp_path)))


def test_ticks_are_epochs_that_spark_knows_nothing_of(tmp_path: Path) -> None:
    plans(tmp_path, 0)
    run(tmp_path, 0)
    coordinator(tmp_path).tick(quiet, silent=True)
    coordinator(tmp_path).tick(quiet, silent=True)

    start(tmp_path)
    coordinator(tmp_path).run_epoch(0, "q", never)  # Spark had not noted the end of its batch
    plans(tmp_path, 1)
    assert coordinator(tmp_path).run_epoch(1, "q", quiet).epoch == 3
    with pytest.raises(ForeignCheckpoint, match="it runs batch 0 again"):
        coordinator(tmp_path).run_epoch(0, "q", never)
    with pytest.raises(ForeignCheckpoint, match="last batch 1"):
        coordinator(tmp_path).run_epoch(3, "q", never)


@pytest.mark.parametrize("folder", ["offsets", "commits", "sources/0"])
@pytest.mark.parametrize("content", [b"", b"v1", b"v1\n{", b"v\xff\n{}", b"w1\n{}", b"{}"])
def test_a_file_that_spark_could_not_read_is_named_before_spark_reads_it(
    tmp_path: Path, folder: str, content: bytes
) -> None:
    for number in (8, 9, 10):
        path = tmp_path / "spark" / folder / str(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b'v1\n{"nextBatchWatermarkMs":0}\n-\n{"path":"x"}')
    start(tmp_path)
    path.write_bytes(content)

    if content == b"v1":
        start(tmp_path)  # nothing is missing in it
        return
    with pytest.raises(ForeignCheckpoint, match="Bring it back") as caught:
        start(tmp_path)

    assert caught.value.file == f"spark/{folder}/10"


def test_what_spark_does_not_read_and_what_sources_write_is_not_judged(tmp_path: Path) -> None:
    for name, content in {
        "offsets/1": b"?",
        "offsets/8": b"v1\n{}",
        "offsets/10": b"v1\n{}",
        "offsets/.10.crc": b"crc",
        "sources/0/0": b"\0v1\n{}",  # Kafka
        "sources/1/0": b"\xff\xfe",
        "sources/2/8": b"?",
        "sources/2/9.compact": b"v1\n{}",
        "sources/2/10": b"v1\n{}",
    }.items():
        path = tmp_path / "spark" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    start(tmp_path)


# --- sources ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("after", "told"),
    [
        (["a", "b", "c"], ["source 'c' is new"]),
        (["b"], ["source 'a' is gone"]),
        (["b", "a"], ["sources were a, b, and are b, a"]),
        (["b", "c"], ["sources were a, b, and are b, c"]),
        (["a", "b"], []),
        (["a", "renamed"], []),
    ],
)
def test_changes_of_sources_that_offsets_cannot_follow_are_told(
    after: list[str], told: list[str]
) -> None:
    assert source_changes(["a", "b"], after) == told


def test_sources_are_kept_from_the_first_epoch_that_spark_plans(tmp_path: Path) -> None:
    place = coordinator(tmp_path).checkpoint
    check_sources(place, ["in"])
    check_sources(place, ["in", "other"])  # Spark has planned nothing with the first ones
    plans(tmp_path, 0)
    coordinator(tmp_path)

    with pytest.raises(IncompatibleFlow, match="by their position: source 'other' is gone"):
        check_sources(place, ["in"])
    check_sources(place, ["in", "other"])


@pytest.mark.parametrize(
    ("names", "known", "renamed", "before", "found"),
    [
        ("a b", {}, {}, "", {"a": "a", "b": "b"}),
        ("b", {"a": "a"}, {"a": "b"}, "a", {"b": "a"}),
        ("b", {"a": "a", "b": "a"}, {"a": "b"}, "b", {"b": "a"}),  # the same start again
        ("a", {"a": "a", "b": "a"}, {}, "b", {"a": "a"}),  # back, as it never committed
        ("a b", {"a": "a", "b": "a"}, {"a": "b"}, "b", {"a": "a_1", "b": "a"}),  # a new a
        ("a b", {"a": "a_1", "b": "a"}, {"a": "b"}, "a b", {"a": "a_1", "b": "a"}),
        ("c a", {"a": "a", "b": "a"}, {"b": "c"}, "b", {"c": "a", "a": "a_1"}),
        ("b", {"a": "a", "b": "b"}, {"a": "b"}, "a", {"b": "a"}),  # a takes the name of one gone
        ("a b", {"a": "a"}, {"a": "b"}, "a", {"a": "a", "b": "b"}),
    ],
)
def test_a_source_finds_its_offsets_whatever_it_is_called(
    names: str, known: dict[str, str], renamed: dict[str, str], before: str, found: dict[str, str]
) -> None:
    made = spark_names(names.split(), known, renamed, before.split())

    assert {name: made[name] for name in names.split()} == found


def test_a_source_that_was_gone_is_not_excused_by_a_rename_of_long_ago(tmp_path: Path) -> None:
    place, renamed = coordinator(tmp_path).checkpoint, {"a": "b"}
    offsets = tmp_path / "spark" / "offsets" / "0"
    offsets.parent.mkdir(parents=True)
    for name in "abc":
        check_sources(place, [name], renamed)
        offsets.write_text("v2\n")

    with pytest.raises(IncompatibleFlow, match="'b' was gone for a while"):
        check_sources(place, ["b"], renamed)
    check_sources(place, ["b"], renamed, come_back=["b"])
