"""Checkpoints: whose they are, what they accept, and the one point at which an epoch commits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.commit.parts import coordinator, program, quiet

from headgate import Count, Flow, StateFields, StatefulOperator, Sum
from headgate.commit.changed_state import Changes
from headgate.commit.checkpoint import IDENTITY, Checkpoint
from headgate.commit.evolution import evolve
from headgate.commit.manifest import Manifest
from headgate.errors import (
    DamagedManifest,
    ForeignCheckpoint,
    IncompatibleFlow,
    UnsupportedVersion,
)
from headgate.routing.identity import Identity
from headgate.slot.compile import compile_flow
from headgate.slot.program import Program
from headgate.state.digest import seal, unseal


def at(folder: Path) -> Checkpoint:
    return Checkpoint(str(folder))


def change_identity(folder: Path, **facts: Any) -> dict[str, Any]:
    """Write it with other facts and a digest that fits; returns what it said."""
    told = unseal((folder / IDENTITY).read_bytes())
    (folder / IDENTITY).write_bytes(seal(told | facts))
    return told


def declared(*operators: tuple[str, str, Any], name: str = "f") -> Program:
    flow = Flow(name)
    rows = flow.source(lambda: None, schema="k bigint, j bigint, v bigint")
    for operator, key, spec in operators:
        rows.key_by(key).process(spec, name=operator)
    if not operators:
        rows.to_memory("out")
    return compile_flow(flow.graph())


# --- identity ---------------------------------------------------------------------------------


def test_a_new_folder_takes_the_flow_and_its_buckets(tmp_path: Path) -> None:
    assert at(tmp_path).identity() is None
    assert at(tmp_path).adopt(program(), 64) == 64

    told = at(tmp_path).identity()
    assert told is not None
    assert told["describe"] == program().describe()


def test_the_number_of_buckets_never_changes(tmp_path: Path) -> None:
    at(tmp_path).adopt(program(), 64)

    assert at(tmp_path).adopt(program(), 1024) == 64


def test_a_checkpoint_belongs_to_one_flow(tmp_path: Path) -> None:
    at(tmp_path).adopt(program("mine"), 64)

    with pytest.raises(ForeignCheckpoint) as caught:
        at(tmp_path).adopt(program("yours"), 64)

    assert (caught.value.found, caught.value.wanted) == ("mine", "yours")


def test_a_checkpoint_keeps_the_secret_of_its_keys(tmp_path: Path) -> None:
    at(tmp_path / "a").adopt(program(), 64)
    at(tmp_path / "b").adopt(program(), 64)
    secret = at(tmp_path / "a").keys()
    at(tmp_path / "a").adopt(program(), 64, identity=Identity(bytes(16)))

    assert at(tmp_path / "a").keys() == secret
    assert secret.secret is not None and secret != at(tmp_path / "b").keys()


def test_of_two_that_start_at_once_one_chooses_the_secret(tmp_path: Path) -> None:
    class Late(Checkpoint):
        """Finds no identity, and then another start's."""

        def identity(self) -> dict[str, Any] | None:
            told = super().identity()
            at(tmp_path).adopt(program(), 64, identity=Identity(bytes(16)))
            return told

    Late(str(tmp_path)).adopt(program(), 64)

    assert at(tmp_path).keys() == Identity(bytes(16))


@pytest.mark.parametrize("secret", [None, "", "00", "no hex", 7])
def test_a_checkpoint_that_lost_the_secret_of_its_keys_is_refused(
    tmp_path: Path, secret: Any
) -> None:
    at(tmp_path).adopt(program(), 64)
    change_identity(tmp_path, secret=secret)

    with pytest.raises(ForeignCheckpoint, match="damaged"):
        at(tmp_path).keys()


def test_the_identity_of_another_checkpoint_is_not_taken(tmp_path: Path) -> None:
    at(tmp_path).adopt(program(), 64)
    keys = at(tmp_path).keys().fingerprint
    at(tmp_path).commit(Manifest(0, "q", 1, {}, {}, {}, describe=program().describe(), keys=keys))
    change_identity(tmp_path, **Identity.new().to_json())

    with pytest.raises(ForeignCheckpoint, match="another checkpoint's"):
        at(tmp_path).adopt(program(), 64)


@pytest.mark.parametrize("change", [{"format": 99}, {"format": 3}])
def test_a_checkpoint_of_another_version_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    at(tmp_path).adopt(program(), 64)
    change_identity(tmp_path, **change)

    with pytest.raises(UnsupportedVersion):
        at(tmp_path).adopt(program(), 64)


def test_no_flipped_bit_cut_or_edit_of_the_identity_goes_unseen(tmp_path: Path) -> None:
    at(tmp_path).adopt(program(), 64)
    path = tmp_path / IDENTITY
    whole = path.read_bytes()
    damaged = [whole[:at] + bytes([whole[at] ^ 2]) + whole[at + 1 :] for at in range(len(whole))]
    damaged += [whole[:length] for length in range(len(whole))]
    damaged += [whole.replace(b": 64", b": 32"), b"[]", b"\xff", b'{"buckets": 64}']
    for data in damaged:
        path.write_bytes(data)
        with pytest.raises((ForeignCheckpoint, UnsupportedVersion), match="new checkpoint folder"):
            at(tmp_path).adopt(program(), 64)
    path.write_bytes(whole)
    at(tmp_path).adopt(program(), 64)


def test_buckets_that_were_edited_do_not_fit_the_routing_tables(tmp_path: Path) -> None:
    """State would be looked for, and found, in the wrong places."""
    coordinator(tmp_path).run_epoch(0, "q", quiet)
    change_identity(tmp_path, buckets=512)

    with pytest.raises(
        ForeignCheckpoint, match="512 buckets, but its state was made with"
    ) as caught:
        coordinator(tmp_path)
    assert caught.value.buckets == 1024


@pytest.mark.parametrize(
    "remains",
    [
        "manifests/e000000003-g000000001.json",
        "spark/metadata",
        "routing/of_mine.txt",
        "state/e000000000-a",
    ],
)
def test_a_folder_that_lost_its_identity_or_is_no_checkpoint_is_refused(
    tmp_path: Path, remains: str
) -> None:
    path = tmp_path / remains
    path.parent.mkdir()
    path.write_text("{}")

    with pytest.raises(ForeignCheckpoint):
        at(tmp_path).adopt(program(), 64)
    assert not (tmp_path / IDENTITY).exists()


def test_the_checkpoint_of_a_plain_spark_query_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "metadata").write_text('{"id":"1"}')
    for folder in ("offsets", "commits"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "0").write_text("v1")
    before = sorted(tmp_path.rglob("*"))

    with pytest.raises(ForeignCheckpoint, match=r"a plain Spark query.*choose a new folder"):
        coordinator(tmp_path)

    assert sorted(tmp_path.rglob("*")) == before


def test_settings_that_json_writes_differently_are_still_the_same(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Pair(StatefulOperator):
        def state_fields(self, rows: pa.Schema, key: Sequence[str]) -> StateFields:
            return StateFields(pa.schema([]))

        def output_schema(self, rows: pa.Schema, key: Sequence[str]) -> pa.Schema:
            return rows

        def describe(self) -> dict[str, Any]:
            return {"pair": (1, 2), "by": {3: "three"}}

    adopted = []
    for _ in range(2):
        at(tmp_path).adopt(declared(("op", "k", Pair())), 64)
        adopted.append((tmp_path / IDENTITY).read_bytes())

    assert adopted[0] == adopted[1]


# --- compatibility ----------------------------------------------------------------------------

BEFORE = ("op", "k", Sum("v"))


@pytest.mark.parametrize(
    ("after", "told"),
    [
        (("op", "j", Sum("v")), "key of 'op'"),
        (("op", "k", Sum("j")), "settings of 'op'"),
        (("op", "k", Count()), "settings of 'op'"),
        (("op", "k", Sum("v", ttl=timedelta(hours=1))), "ttl_ms of 'op' was None, is now 3600000"),
        (("renamed", "k", Sum("v")), "drop_state=['op']"),
    ],
)
def test_a_change_that_state_cannot_follow_is_refused_and_explained(
    tmp_path: Path, after: tuple[str, str, Any], told: str
) -> None:
    at(tmp_path).adopt(declared(BEFORE), 64)

    with pytest.raises(IncompatibleFlow) as caught:
        at(tmp_path).adopt(declared(after), 64)

    assert told in str(caught.value)
    assert any(told in change for change in caught.value.changes)
    at(tmp_path).adopt(declared(BEFORE), 64)  # the refusal changed nothing


def test_all_changes_are_told_at_once() -> None:
    old = declared(BEFORE, ("other", "k", Count())).describe()
    new = declared(("op", "j", Sum("j"))).describe()

    with pytest.raises(IncompatibleFlow) as caught:
        evolve(old, new, "here")

    assert len(caught.value.changes) == 3  # key and settings; and one operator gone
    assert "here" in str(caught.value)


@pytest.mark.parametrize(
    "after",
    [
        [BEFORE, ("more", "j", Count())],
        [("op", "k", Sum("v", name="total"))],
        [("op", "k", Sum("v", emit="rows"))],
    ],
)
def test_a_change_that_leaves_the_state_alone_is_welcome(
    tmp_path: Path, after: list[tuple[str, str, Any]]
) -> None:
    at(tmp_path).adopt(declared(BEFORE), 64)

    at(tmp_path).adopt(declared(*after), 64)

    told = at(tmp_path).identity()
    assert told is not None
    assert told["describe"] == declared(*after).describe()


def test_state_can_be_dropped_by_name_only(tmp_path: Path) -> None:
    at(tmp_path).adopt(declared(BEFORE, ("other", "k", Count())), 64)

    with pytest.raises(IncompatibleFlow):
        at(tmp_path).adopt(declared(), 64, Changes(["op"]))
    at(tmp_path).adopt(declared(), 64, Changes(["op", "other"]))


def test_stored_state_belongs_to_the_flow_of_the_last_manifest_not_of_the_last_start(
    tmp_path: Path,
) -> None:
    """A start that dropped an operator and committed nothing has dropped nothing."""
    at(tmp_path).adopt(declared(BEFORE), 64)
    at(tmp_path).commit(replace(EMPTY, describe=declared(BEFORE).describe()))
    other = ("other", "k", Count())
    at(tmp_path).adopt(declared(other), 64, Changes(["op"]))

    with pytest.raises(IncompatibleFlow, match="settings of 'op'"):
        at(tmp_path).adopt(declared(("op", "k", Sum("j"))), 64, Changes(["other"]))
    with pytest.raises(IncompatibleFlow, match="drop_state"):
        at(tmp_path).adopt(declared(other), 64)
    at(tmp_path).adopt(declared(BEFORE), 64)

    at(tmp_path).commit(replace(EMPTY, epoch=4, describe=declared(other).describe()))
    at(tmp_path).adopt(declared(("op", "k", Sum("j"))), 64, Changes(["other"]))


# --- manifests and marks ----------------------------------------------------------------------

EMPTY = Manifest(3, "q", 2, {}, {}, {})


def test_of_two_manifests_of_an_epoch_the_higher_generation_counts(tmp_path: Path) -> None:
    for generation in (2, 10, 9):
        at(tmp_path).commit(replace(EMPTY, generation=generation, query_id=f"of {generation}"))

    kept = at(tmp_path).manifest(3)
    assert kept is not None
    assert kept.query_id == "of 10"
    assert at(tmp_path).epochs() == [3]


def test_a_manifest_is_never_written_over(tmp_path: Path) -> None:
    at(tmp_path).commit(EMPTY)
    at(tmp_path).commit(EMPTY)
    with pytest.raises(AssertionError, match="is another"):
        at(tmp_path).commit(replace(EMPTY, query_id="other"))

    kept = at(tmp_path).manifest(3)
    assert kept is not None and kept.query_id == "q"


def test_a_damaged_last_manifest_is_named_with_the_last_whole_one(tmp_path: Path) -> None:
    for epoch in range(4):
        at(tmp_path).commit(replace(EMPTY, epoch=epoch))
    for epoch, content in ((2, b""), (3, b'{"digest": "')):
        (tmp_path / "manifests" / f"e{epoch:09d}-g000000000.json").write_bytes(content)

    with pytest.raises(DamagedManifest) as caught:
        at(tmp_path).last_manifest()

    assert "manifests/e000000003-g000000000.json" in str(caught.value)
    assert "last whole one is of epoch 1" in str(caught.value)
    assert (caught.value.epoch, caught.value.whole) == (3, [0, 1])
    assert at(tmp_path).epochs() == [0, 1, 2, 3]


def test_epochs_are_counted_not_spelt(tmp_path: Path) -> None:
    for epoch in (9, 10, 2):
        at(tmp_path).commit(replace(EMPTY, epoch=epoch))

    assert at(tmp_path).epochs() == [2, 9, 10]
    assert at(tmp_path).last_epoch() == 10
    assert at(tmp_path).manifest(5) is None


def test_a_new_checkpoint_has_no_epoch(tmp_path: Path) -> None:
    assert at(tmp_path).last_epoch() is None
    assert at(tmp_path).manifest(0) is None


def test_marks_belong_to_one_epoch_and_one_sink(tmp_path: Path) -> None:
    checkpoint = at(tmp_path)
    checkpoint.mark(3, "out")

    assert at(tmp_path).is_marked(3, "out")
    assert not checkpoint.is_marked(3, "other")
    assert not checkpoint.is_marked(4, "out")


def test_forgetting_an_epoch_takes_its_marks_and_no_others(tmp_path: Path) -> None:
    checkpoint = at(tmp_path)
    for epoch in (3, 4):
        checkpoint.commit(replace(EMPTY, epoch=epoch))
        checkpoint.mark(epoch, "out")

    checkpoint.forget(3)

    assert checkpoint.epochs() == [4]
    assert not checkpoint.is_marked(3, "out")
    assert checkpoint.is_marked(4, "out")
