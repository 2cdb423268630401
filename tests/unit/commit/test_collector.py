"""The collector deletes what no retained manifest names: all of that, and nothing else."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import Count, Flow
from headgate.commit.checkpoint import SWEEP_EVERY, Checkpoint, Collector
from headgate.commit.manifest import Manifest
from headgate.routing.table import hash_table
from headgate.state.state_file import StateFile
from headgate.state.storage import Storage
from headgate.testing import ListSource, run
from strategies import examples, quick_folder


def state_file(checkpoint: Checkpoint, epoch: int, label: str) -> StateFile:
    name = f"count/0/e{epoch:09d}-{label}.delta"
    checkpoint.state.write(name, b"state")
    return StateFile(name, "delta", epoch, 1, 5, label)


def sink_file(checkpoint: Checkpoint, epoch: int, label: str) -> dict[str, Any]:
    name = f"e{epoch:09d}-{label}.parquet"
    checkpoint.sinks.child("out").write(name, b"rows")
    return {"name": name, "rows": 1, "bytes": 4}


def names(storage: Storage) -> set[str]:
    return set(storage.list())


# An epoch adds a delta, and may fold the chain into one file (which remembers what it replaced);
# it writes sink files; and a lost attempt leaves an orphan of each kind behind.
histories = st.lists(
    st.tuples(st.sampled_from(["delta", "fold"]), st.booleans()), min_size=1, max_size=12
)


@examples(40)
@given(history=histories, keep=st.integers(2, 4))
def test_exactly_what_the_retained_manifests_name_survives(
    history: list[tuple[str, bool]], keep: int
) -> None:
    with quick_folder() as folder:
        checkpoint = Checkpoint(str(folder))
        collector = Collector(checkpoint, keep)
        chain: tuple[StateFile, ...] = ()
        made: list[Manifest] = []
        for epoch, (step, orphan) in enumerate(history):
            chain = (*chain, state_file(checkpoint, epoch, "d"))
            if step == "fold":
                bare = tuple(replace(f, replaces=()) for f in chain)
                folded = state_file(checkpoint, epoch, "s")
                chain = (StateFile(folded.name, "snapshot", epoch, 1, 5, "s", bare),)
            if orphan:
                state_file(checkpoint, epoch, "orphan")
                sink_file(checkpoint, epoch, "orphan")
            sinks = {"out": [sink_file(checkpoint, epoch, "a")]}
            manifest = Manifest(epoch, "q", 1, {}, {"count": {0: chain}}, sinks)
            checkpoint.commit(manifest)
            checkpoint.mark(epoch, "out")
            made.append(manifest)
            collector.after_commit(manifest)
        collector.sweep()

        retained = made[-keep:]
        horizon = retained[0].epoch
        assert checkpoint.epochs() == [m.epoch for m in retained]
        needed = {name for m in retained for name in m.state_files()}
        young = {n for n in names(checkpoint.state) if int(n.split("/e")[1][:9]) >= horizon}
        assert needed <= names(checkpoint.state)
        assert names(checkpoint.state) - needed == young - needed
        orphans = {n for n in names(checkpoint.state) if "orphan" in n}
        assert orphans == {
            f"count/0/e{e:09d}-orphan.delta"
            for e, (_, o) in enumerate(history)
            if o and e >= horizon
        }
        kept = {f"out/{f['name']}" for m in retained for f in m.sinks["out"]}
        assert {n for n in names(checkpoint.sinks) if "orphan" not in n} == kept
        assert all(checkpoint.is_marked(e, "out") == (e >= horizon) for e in range(len(made)))


def test_a_restarted_collector_goes_on_where_the_other_was(tmp_path: Path) -> None:
    checkpoint = Checkpoint(str(tmp_path))
    manifests = [
        Manifest(e, "q", 1, {}, {"count": {0: (state_file(checkpoint, e, "d"),)}}, {})
        for e in range(4)
    ]
    for manifest in manifests[:3]:
        checkpoint.commit(manifest)

    checkpoint.commit(manifests[3])
    Collector(checkpoint, keep=2).after_commit(manifests[3])

    assert checkpoint.epochs() == [2, 3]
    assert names(checkpoint.state) == {f"count/0/e{e:09d}-d.delta" for e in (2, 3)}


def test_telling_the_same_epoch_twice_deletes_nothing_more(tmp_path: Path) -> None:
    checkpoint = Checkpoint(str(tmp_path))
    collector = Collector(checkpoint, keep=2)
    for epoch in range(3):
        manifest = Manifest(epoch, "q", 1, {}, {}, {"out": [sink_file(checkpoint, epoch, "a")]})
        checkpoint.commit(manifest)
        collector.after_commit(manifest)

    before = names(checkpoint.sinks)
    collector.after_commit(manifest)
    assert names(checkpoint.sinks) == before
    assert checkpoint.epochs() == [1, 2]


def test_tables_that_no_manifest_names_are_swept(tmp_path: Path) -> None:
    checkpoint = Checkpoint(str(tmp_path))
    checkpoint.tables.save("op", hash_table(2))
    new = checkpoint.tables.save("op", hash_table(2).resized(3))
    collector = Collector(checkpoint, keep=2)

    collector.after_commit(Manifest(SWEEP_EVERY - 1, "q", 3, {"op": new}, {}, {}))

    assert checkpoint.tables.storage.list() == list(new)


def test_a_driver_that_starts_leaves_the_tables_of_a_running_one_alone(tmp_path: Path) -> None:
    """The running one has saved its table, and commits the epoch that uses it in a moment."""
    checkpoint = Checkpoint(str(tmp_path))
    last = Manifest(SWEEP_EVERY - 1, "q", 2, {}, {}, {})
    checkpoint.commit(last)
    names = checkpoint.tables.save("op", hash_table(2).resized(3))

    starting = Collector(Checkpoint(str(tmp_path)), keep=2)
    starting.sweep()
    starting.after_commit(last)  # it replays the last epoch

    assert checkpoint.tables.storage.list() == list(names)


def test_an_old_manifest_that_is_damaged_goes_first_and_takes_nothing_with_it(
    tmp_path: Path,
) -> None:
    checkpoint = Checkpoint(str(tmp_path))
    chain: tuple[StateFile, ...] = ()
    for epoch in range(3):
        chain = (*chain, state_file(checkpoint, epoch, "d"))
        checkpoint.commit(Manifest(epoch, "q", 1, {}, {"count": {0: chain}}, {}))
    (tmp_path / "manifests" / "e000000001-g000000000.json").write_bytes(b"")

    Collector(checkpoint).sweep()

    assert checkpoint.epochs() == [0, 2]
    assert names(checkpoint.state) == {f.name for f in chain}


def test_nothing_is_swept_from_a_checkpoint_without_a_manifest(tmp_path: Path) -> None:
    checkpoint = Checkpoint(str(tmp_path))
    state_file(checkpoint, 0, "d")

    Collector(checkpoint).sweep()

    assert len(names(checkpoint.state)) == 1


def test_files_of_an_unknown_name_are_left_alone(tmp_path: Path) -> None:
    checkpoint = Checkpoint(str(tmp_path))
    checkpoint.state.write("count/0/notes.txt", b"mine")
    manifest = Manifest(70, "q", 1, {}, {}, {})
    checkpoint.commit(manifest)

    Collector(checkpoint).sweep()

    assert names(checkpoint.state) == {"count/0/notes.txt"}


@pytest.mark.parametrize("keep", [2, 5])
def test_a_flow_that_runs_long_keeps_few_files_and_all_of_its_state(keep: int) -> None:
    def flow(epochs: int) -> Flow:
        made = Flow("f")
        rows = made.source(ListSource("k bigint", [[{"k": e % 4}] for e in range(epochs)]))
        rows.key_by("k").process(Count(), name="count").to_memory("out")
        return made

    with quick_folder() as folder:
        run(
            flow(40),
            slots=1,
            checkpoint=folder,
            keep_manifests=keep,
            check_purity=False,
            partitions=1,
        )
        done = run(flow(41), slots=1, checkpoint=folder, keep_manifests=keep, check_purity=False)

        assert sorted((r["k"], r["count"]) for r in done.state("count")) == [
            (0, 11), (1, 10), (2, 10), (3, 10),
        ]  # fmt: skip
        checkpoint = Checkpoint(str(folder))
        assert len(checkpoint.epochs()) == keep
        retained = [checkpoint.manifest(e) for e in checkpoint.epochs()]
        needed = {name for m in retained if m is not None for name in m.state_files()}
        assert names(checkpoint.state) == needed


def test_what_killed_writers_left_is_deleted_when_it_is_old(tmp_path: Path) -> None:
    old = ["state/count/0/.e1.7.ab.tmp", "manifests/.e2.7.cd.tmp", "tables/t/.part.7.ef.tmp"]
    young, sparks = "state/count/0/.e3.7.aa.tmp", "spark/offsets/.0.uuid.tmp"
    for name in (*old, young, sparks):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"half")
        if name != young:
            os.utime(path, (1e9, 1e9))

    Collector(Checkpoint(str(tmp_path))).sweep()

    left = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*.tmp")}
    assert left == {young, sparks}
