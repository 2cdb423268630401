"""With a key, nothing that was not written with it is believed: forged state is never unpickled."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.scenario.oracle import bag

import headgate as hg
from headgate.commit.checkpoint import Checkpoint
from headgate.commit.inspection import Inspection
from headgate.commit.ownership import IDENTITY, VARIABLE, signer_of
from headgate.errors import DeclarationError, HeadgateError, UntrustedCheckpoint
from headgate.state.digest import digest_of, is_strong, seal, unseal
from headgate.testing import ListSource, LocalRun, run

KEY, OTHER = "a key of sixteen bytes or more", "another key of more than sixteen"
EPOCHS = [[{"k": f"key {n % 3}", "v": n} for n in range(8 * e, 8 * e + 8)] for e in range(4)]


def add(key: str, rows: list[dict[str, Any]], state: Any) -> tuple[Any, list[dict[str, Any]]]:
    total = (state or 0) + sum(row["v"] for row in rows)
    return total, [{"k": key, "total": total}]


def flow(epochs: int) -> hg.Flow:
    made = hg.Flow("signed")
    rows = made.source(ListSource("k string, v bigint", EPOCHS[:epochs]), name="rows")
    update = hg.Update(add, "k string, total bigint", rows_as="dicts")
    rows.key_by("k").process(update, name="totals").to_memory("out")
    return made


def go(place: Path, epochs: int, **options: Any) -> LocalRun:
    return run(flow(epochs), checkpoint=place, **options)


def totals(epochs: int) -> Any:
    found: dict[str, int] = {}
    for row in (row for rows in EPOCHS[:epochs] for row in rows):
        found[row["k"]] = found.get(row["k"], 0) + row["v"]
    return bag({"k": k, "total": v} for k, v in found.items())


def shown(done: LocalRun) -> Any:
    """The last row of each key."""
    return bag({row["k"]: row for row in done.rows("out")}.values())


def manifests(place: Path) -> list[Path]:
    return sorted((place / "manifests").iterdir())


def test_a_signed_flow_runs_restarts_and_rescales(tmp_path: Path) -> None:
    go(tmp_path / "c", 2, key=KEY)
    done = go(tmp_path / "c", 4, key=KEY, slots=3)

    assert shown(done) == totals(4)
    last = Checkpoint(str(tmp_path / "c"), signer_of(KEY)).last_manifest()
    assert last is not None
    assert all(is_strong(name) for name in last.state_files())
    assert all(is_strong(name) for names in last.tables.values() for name in names)


def test_the_key_may_come_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, KEY)
    go(tmp_path / "c", 2)
    monkeypatch.delenv(VARIABLE)

    with pytest.raises(UntrustedCheckpoint, match="this start has no key"):
        go(tmp_path / "c", 3)
    assert shown(go(tmp_path / "c", 3, key=KEY)) == totals(3)


@pytest.mark.parametrize("key", ["", "short", b"fifteen bytes .."[:15]])
def test_a_key_that_can_be_guessed_is_refused(tmp_path: Path, key: str | bytes) -> None:
    with pytest.raises(DeclarationError, match="at least 16"):
        go(tmp_path / "c", 1, key=key)


def test_another_key_is_refused(tmp_path: Path) -> None:
    go(tmp_path / "c", 2, key=KEY)

    with pytest.raises(UntrustedCheckpoint, match="not of this key"):
        go(tmp_path / "c", 3, key=OTHER)


def test_a_checkpoint_without_a_key_is_taken_over_only_if_that_is_meant(tmp_path: Path) -> None:
    go(tmp_path / "c", 2)
    with pytest.raises(UntrustedCheckpoint, match="trust_unsigned=True"):
        go(tmp_path / "c", 3, key=KEY)

    go(tmp_path / "c", 3, key=KEY, trust_unsigned=True)

    done = go(tmp_path / "c", 4, key=KEY)
    assert shown(done) == totals(4)
    last = Checkpoint(str(tmp_path / "c"), signer_of(KEY)).last_manifest()
    assert last is not None
    assert all(is_strong(name) for name in last.state_files()), "none of before may stay"
    assert all(is_strong(name) for names in last.tables.values() for name in names)


def test_trust_without_a_key_means_nothing(tmp_path: Path) -> None:
    with pytest.raises(DeclarationError, match="HEADGATE_KEY"):
        go(tmp_path / "c", 1, trust_unsigned=True)


class Bomb:
    def __reduce__(self) -> Any:
        return _explode, ()


def _explode() -> None:
    raise AssertionError("a forged pickle was opened")


def forge_state(place: Path) -> None:
    """Another state file under the old one's name, and all digests that need no key made to fit."""
    manifest = manifests(place)[-1]
    told = unseal(manifest.read_bytes())
    for files in told["chains"]["totals"].values():
        for file in files:
            path = place / "state" / file["name"]
            data = bytearray(path.read_bytes())
            at = data.find(pickle.dumps(0, protocol=5)[:2])
            data[at : at + 2] = b"\x80\xff"
            path.write_bytes(bytes(data))
            file["digest"] = digest_of(bytes(data))
    manifest.write_bytes(seal(told))


def swap_manifests(place: Path) -> None:
    """Both are signed, and each is the other's epoch."""
    first, second = manifests(place)[-2:]
    first_data, second_data = first.read_bytes(), second.read_bytes()
    first.write_bytes(second_data)
    second.write_bytes(first_data)


def unsigned_manifest(place: Path) -> None:
    manifest = manifests(place)[-1]
    manifest.write_bytes(seal(unseal(manifest.read_bytes())))


def unsigned_identity(place: Path) -> None:
    told = unseal((place / IDENTITY).read_bytes())
    (place / IDENTITY).write_bytes(seal(told | {"signed": False}))


def foreign_manifests(place: Path) -> None:
    """Of another checkpoint with the same key."""
    other = place.parent / "other"
    go(other, 3, key=KEY)
    for folder in ("manifests", "state", "routing"):
        shutil.rmtree(place / folder)
        shutil.copytree(other / folder, place / folder)


@pytest.mark.parametrize(
    "forge",
    [forge_state, swap_manifests, unsigned_manifest, unsigned_identity, foreign_manifests],
)
def test_what_somebody_without_the_key_has_changed_is_refused(forge: Any, tmp_path: Path) -> None:
    go(tmp_path / "c", 3, key=KEY)
    forge(tmp_path / "c")

    with pytest.raises(UntrustedCheckpoint):
        go(tmp_path / "c", 4, key=KEY)


def test_a_state_file_that_was_replaced_is_refused(tmp_path: Path) -> None:
    go(tmp_path / "c", 3, key=KEY)
    for path in (tmp_path / "c" / "state").rglob("*.arrow"):
        path.write_bytes(pickle.dumps(Bomb()))

    with pytest.raises(HeadgateError, match="cannot be used"):
        go(tmp_path / "c", 4, key=KEY)


def test_a_forged_mark_does_not_keep_rows_from_a_sink(tmp_path: Path) -> None:
    go(tmp_path / "d", 1, key=KEY)
    signed = Checkpoint(str(tmp_path / "d"), signer_of(KEY))
    assert signed.is_marked(0, "out")
    (tmp_path / "d" / "marks" / "e000000001-out").write_bytes(
        (tmp_path / "d" / "marks" / "e000000000-out").read_bytes()
    )
    (tmp_path / "d" / "marks" / "e000000002-out").write_text("done\n")
    assert not signed.is_marked(1, "out") and not signed.is_marked(2, "out")


def test_inspection_without_the_key_reads_and_with_it_checks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go(tmp_path / "c", 2, key=KEY)
    assert Inspection(str(tmp_path / "c")).to_json()["epoch"] == 1
    monkeypatch.setenv(VARIABLE, OTHER)
    with pytest.raises(UntrustedCheckpoint):
        Inspection(str(tmp_path / "c"))
    assert json.loads((tmp_path / "c" / IDENTITY).read_text())["signed"] is True
