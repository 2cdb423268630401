"""Sink files that are damaged between commit and delivery are never delivered."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.scenario.oracle import bag

import headgate as hg
from headgate.errors import SinkFailed, StateFileError
from headgate.testing import ListSource, LocalRun, run

EPOCHS = [[{"k": (7 * e + i) % 5, "v": i} for i in range(12)] for e in range(3)]


class Database:
    """A function sink that is down for a while."""

    def __init__(self) -> None:
        self.rows: dict[int, Any] = {}
        self.is_down = False

    def __call__(self, rows: Any, epoch: int) -> None:
        if self.is_down:
            raise RuntimeError("down")
        self.rows[epoch] = bag(rows)


def flow_to(database: Database, epochs: Any) -> hg.Flow:
    flow = hg.Flow("counting")
    rows = flow.source(ListSource("k bigint, v bigint", epochs), name="rows")
    rows.key_by("k").process(hg.Count(), name="counts").to(database, name="db")
    return flow


def expected(epoch: int) -> Counter[Any]:
    counts = Counter(row["k"] for rows in EPOCHS[: epoch + 1] for row in rows)
    touched = {row["k"] for row in EPOCHS[epoch]}
    return bag({"k": k, "count": counts[k]} for k in touched)


def go(place: Path, database: Database, epochs: Any = EPOCHS, **options: Any) -> LocalRun:
    return run(flow_to(database, epochs), slots=2, checkpoint=place, check_purity=False, **options)


@pytest.fixture
def undelivered(tmp_path: Path) -> tuple[Path, Database, list[Path]]:
    """Epoch 1 is committed, its sink has not been called; its files."""
    place, database = tmp_path / "checkpoint", Database()
    go(place, database, EPOCHS[:1])
    database.is_down = True
    with pytest.raises(SinkFailed):
        go(place, database, EPOCHS[:2])
    database.is_down = False
    return place, database, sorted((place / "sinks" / "db").glob("e000000001-*"))


@pytest.mark.parametrize("how", ["flipped", "cut", "empty", "missing"])
def test_nothing_of_the_epoch_is_delivered_and_the_file_is_named(
    undelivered: tuple[Path, Database, list[Path]], how: str
) -> None:
    place, database, files = undelivered
    victim, rng = files[-1], random.Random(how)
    whole = victim.read_bytes()
    for _ in range(30 if how in ("flipped", "cut") else 1):
        at = rng.randrange(len(whole))
        flipped = whole[:at] + bytes([whole[at] ^ (1 << rng.randrange(8))]) + whole[at + 1 :]
        victim.write_bytes({"flipped": flipped, "cut": whole[:at]}.get(how, b""))
        if how == "missing":
            victim.unlink()
        with pytest.raises(StateFileError, match=r"drop_state=\['db'\]") as caught:
            go(place, database)
        assert (caught.value.sink, caught.value.epoch) == ("db", 1)
        assert caught.value.file == victim.name

    assert list(database.rows) == [0]
    victim.write_bytes(whole)
    go(place, database)
    assert database.rows == {epoch: expected(epoch) for epoch in range(3)}


def test_rows_of_damaged_files_may_be_given_up_and_those_of_others_come(
    undelivered: tuple[Path, Database, list[Path]],
) -> None:
    """`drop_state` may stay: it loses nothing that is whole."""
    place, database, files = undelivered
    assert len(files) == 2
    whole = files[0].read_bytes()
    files[0].write_bytes(whole[:-1])

    done = go(place, database, drop_state=["db"])

    assert sorted(database.rows) == [0, 1, 2]
    assert database.rows[1] < expected(1) and database.rows[2] == expected(2)
    (noted,) = [record for record in done.journal if record["kind"] == "damage"]
    assert (noted["sink"], noted["epoch"], noted["file"]) == ("db", 1, files[0].name)
    again = go(place, database, drop_state=["db"])
    assert len([record for record in again.journal if record["kind"] == "damage"]) == 1
