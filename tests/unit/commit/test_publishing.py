"""Publishing: once, whole in the end, and where the epoch was committed to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.commit.parts import Calls, coordinator, program, quiet

from headgate import Count, Flow
from headgate.commit import faults
from headgate.commit.checkpoint import Checkpoint
from headgate.commit.coordinator import Coordinator, EpochResult
from headgate.commit.published import published_files
from headgate.commit.publishing import (
    STAGING,
    STAGING_GRACE_EPOCHS,
    publish,
    published_prefix,
    staging_uri,
)
from headgate.commit.settings import Settings
from headgate.errors import IncompatibleFlow, StateFileError, UnsafeName
from headgate.slot.compile import compile_flow
from headgate.slot.plan import EpochPlan
from headgate.slot.program import Program
from headgate.state.digest import digest_of
from headgate.state.storage import Storage
from headgate.testing import ManualClock


class Killed(BaseException):
    """The driver is dead."""


def stage(folder: Path, epoch: int, *labels: str, flow: str = "f") -> list[dict[str, Any]]:
    names = [f"e{epoch:09d}-{label}-{digest_of(label.encode())}.parquet" for label in labels]
    for name, label in zip(names, labels, strict=True):
        Storage.at(staging_uri(str(folder), flow, "out")).write(name, label.encode())
    return [{"name": name, "rows": 1, "bytes": 1} for name in names]


def published(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.parquet"))


def staged(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("_headgate/**/*.parquet"))


def test_a_driver_killed_between_two_renames_is_followed_by_one_that_ends_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = stage(tmp_path, 3, "a", "b", "c")
    uri = staging_uri(str(tmp_path), "f", "out")

    def die(point: str, epoch: int) -> None:
        raise Killed

    for left in (2, 1, 0):
        with monkeypatch.context() as patch:
            patch.setattr(faults, "reach", die)
            with pytest.raises(Killed):
                publish("f", "out", 3, files, uri)
        assert (len(published(tmp_path)), len(staged(tmp_path))) == (3 - left, left)
    for _ in range(2):
        publish("f", "out", 3, files, uri)

    assert published(tmp_path) == [f"part-f-out-{file['name']}" for file in files]


def test_a_destination_is_opened_once_however_many_files_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On an object store each time is a client with connections of its own."""
    files, opened, open_ = stage(tmp_path, 3, *"abcdefgh"), list[str](), Storage._open

    def count(self: Storage) -> Any:
        opened.append(self.uri)
        return open_(self)

    monkeypatch.setattr(Storage, "_open", count)
    publish("f", "out", 3, files, staging_uri(str(tmp_path), "f", "out"))

    assert len(published(tmp_path)) == 8
    assert sorted(opened) == sorted({*opened})


PAIRS = [("a", "b-c"), ("a-b", "c"), ("a-b", "b-c"), ("a", "c"), ("a", "b"), ("a", "b-b-c")]
HYPHENS = st.from_regex(r"[ab][ab-]{0,4}", fullmatch=True)


@given(st.lists(st.tuples(HYPHENS, HYPHENS), min_size=2, max_size=2, unique=True))
def test_names_of_two_flows_or_sinks_differ(pairs: list[tuple[str, str]]) -> None:
    first, second = (published_prefix(flow, sink) + "e000000003-x.parquet" for flow, sink in pairs)

    assert first != second


def test_of_many_sinks_in_a_folder_each_knows_its_files(tmp_path: Path) -> None:
    names: dict[tuple[str, str], str] = {}
    for flow, sink in PAIRS:
        uri = staging_uri(str(tmp_path), flow, sink)
        files = [{"name": "e000000003-x.parquet", "rows": 1, "bytes": 1}]
        Storage.at(uri).write("e000000003-x.parquet", b"")
        before = set(published(tmp_path))
        publish(flow, sink, 3, files, uri)
        (names[flow, sink],) = set(published(tmp_path)) - before

    for (flow, sink), name in names.items():
        others = [other for other in names.values() if other != name]
        assert published_files([name], flow, sink)
        assert not published_files([f"{STAGING}/{flow}/{sink}/{name}", *others], flow, sink)
    assert names["a", "b"] == "part-a-b-e000000003-x.parquet"


def test_a_file_that_is_neither_staged_nor_published_is_named(tmp_path: Path) -> None:
    files = stage(tmp_path, 3, "a")
    (tmp_path / "_headgate" / "f" / "out" / files[0]["name"]).unlink()

    with pytest.raises(StateFileError) as caught:
        publish("f", "out", 3, files, staging_uri(str(tmp_path), "f", "out"))

    assert caught.value.file == files[0]["name"]


def test_files_that_nobody_committed_go_after_a_grace_and_those_of_other_flows_stay(
    tmp_path: Path,
) -> None:
    stage(tmp_path, 1, "mine")
    stage(tmp_path, 1, "theirs", flow="g")

    for epoch in (1 + STAGING_GRACE_EPOCHS, 2 + STAGING_GRACE_EPOCHS):
        files = stage(tmp_path, epoch, "a")
        publish("f", "out", epoch, files, staging_uri(str(tmp_path), "f", "out"))

    (left,) = staged(tmp_path)
    assert left.startswith("e000000001-theirs-")


@pytest.mark.parametrize(
    "forged",
    [
        {"name": "../../../precious.parquet"},
        {"at": "elsewhere"},
        {"at": "elsewhere/_headgate/f/other"},
    ],
)
def test_a_forged_entry_publishes_nothing_and_overwrites_nothing(
    forged: dict[str, str], tmp_path: Path
) -> None:
    files = stage(tmp_path / "out", 3, "a")
    (tmp_path / "precious.parquet").write_text("precious")
    (tmp_path / "elsewhere").mkdir()
    if "at" in forged:
        forged = {"at": str(tmp_path / forged["at"])}
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    uri = staging_uri(str(tmp_path / "out"), "f", "out")
    with pytest.raises(UnsafeName):
        publish("f", "out", 3, [files[0] | forged], uri)

    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


# --- sinks that change while rows wait for them -------------------------------------------------


def to_parquet(folder: Path, name: str = "out") -> Program:
    flow = Flow("f")
    rows = flow.source(lambda: None, schema="k bigint", name="in")
    rows.key_by("k").process(Count(), name="count").to_parquet(str(folder), name=name)
    return compile_flow(flow.graph())


def parquet_flow(folder: Path, out: Path, deliver: Any = None, **settings: Any) -> Coordinator:
    uris = {"out": staging_uri(str(out), "f", "out")}

    def renaming(sink: Any, epoch: int, files: Any) -> None:
        publish("f", sink.name, epoch, files, uris[sink.name])

    return Coordinator(
        to_parquet(out),
        Checkpoint(str(folder)),
        Settings(slots=2, **settings),
        deliver or renaming,
        clock_ms=ManualClock(),
        sink_uris=uris,
    )


def dies(sink: Any, epoch: int, files: Any) -> None:
    raise Killed


def test_an_epoch_is_published_where_it_was_committed_to_though_the_path_has_changed(
    tmp_path: Path,
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"

    def engine(out: Path) -> Any:
        def run(plan: EpochPlan) -> EpochResult:
            return quiet(plan, sinks={"out": stage(out, plan.epoch, "a")})

        return run

    with pytest.raises(Killed):
        parquet_flow(tmp_path / "ck", old, dies).run_epoch(0, "q", engine(old))

    moved = parquet_flow(tmp_path / "ck", new)
    moved.run_epoch(0, "q", engine(new))
    moved.run_epoch(1, "q", engine(new))

    assert [name[:24] for name in published(old)] == ["part-f-out-e000000000-a-"]
    assert [name[:24] for name in published(new)] == ["part-f-out-e000000001-a-"]


def test_of_an_epoch_with_a_damaged_file_nothing_is_published(tmp_path: Path) -> None:
    """Wherever the file is: still staged, or published by a driver that then died."""
    out = tmp_path / "out"
    files = stage(out, 0, "a", "b")
    folder = out / "_headgate" / "f" / "out"
    with pytest.raises(Killed):
        parquet_flow(tmp_path / "ck", out, dies).run_epoch(
            0, "q", lambda plan: quiet(plan, sinks={"out": files})
        )

    for path in (folder / files[1]["name"], out / f"part-f-out-{files[1]['name']}"):
        path.write_bytes(b"B")
        with pytest.raises(StateFileError, match="sink 'out'") as caught:
            parquet_flow(tmp_path / "ck", out).run_epoch(0, "q", quiet)
        assert caught.value.file == files[1]["name"]
        assert not (out / f"part-f-out-{files[0]['name']}").exists()
        (folder / files[1]["name"]).unlink(missing_ok=True)

    path.write_bytes(b"b")
    parquet_flow(tmp_path / "ck", out).run_epoch(0, "q", quiet)
    assert published(out) == [f"part-f-out-{file['name']}" for file in files]


def undelivered(folder: Path) -> None:
    calls = Calls()
    calls.fail = "out"
    rows = {"out": [{"name": "a file", "rows": 7, "bytes": 1}]}
    with pytest.raises(Exception, match="out is down"):
        coordinator(folder, deliver=calls).run_epoch(0, "q", lambda plan: quiet(plan, sinks=rows))


def test_a_sink_that_is_renamed_while_rows_wait_for_it_is_an_error_with_a_way_out(
    tmp_path: Path,
) -> None:
    undelivered(tmp_path)
    renamed = program(sinks=("other",))

    with pytest.raises(IncompatibleFlow, match=r"'out' is gone, and 7 rows of epoch 0") as caught:
        coordinator(tmp_path, of=renamed)

    assert "drop_state=['out']" in caught.value.changes[0]
    coordinator(tmp_path, of=renamed, drop_state=["out"])
    coordinator(tmp_path).run_epoch(0, "q", quiet)  # it is called, and then it may go
    coordinator(tmp_path, of=renamed).run_epoch(1, "q", quiet)


def test_a_sink_may_not_become_another_kind_while_rows_wait_for_it(tmp_path: Path) -> None:
    undelivered(tmp_path)

    with pytest.raises(IncompatibleFlow, match="is a parquet now"):
        coordinator(tmp_path, of=to_parquet(tmp_path / "out"))
    coordinator(tmp_path).run_epoch(0, "q", quiet)
    coordinator(tmp_path, of=to_parquet(tmp_path / "out"))


def test_a_sink_without_rows_to_deliver_may_go(tmp_path: Path) -> None:
    calls = Calls()
    calls.fail = "out"
    with pytest.raises(Exception, match="out is down"):
        coordinator(tmp_path, deliver=calls).run_epoch(0, "q", quiet)

    coordinator(tmp_path, of=program(sinks=("other",))).run_epoch(0, "q", quiet)
