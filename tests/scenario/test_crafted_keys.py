"""Two users whose keys were made to collide: their sums stay apart, in every way to run a flow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headgate as hg
from headgate.commit.inspection import Inspection
from headgate.testing import ListSource, LocalRun, run
from unit.routing.test_identity import TWINS

SCHEMA = pa.schema({"user": pa.binary(), "v": pa.int64()})
EPOCHS = [[{"user": TWINS[i % 2], "v": 10 ** (i % 2) * e} for i in range(6)] for e in (1, 2, 3)]
SUMS = [3 * (1 + 2 + 3), 30 * (1 + 2 + 3)]


def summed(checkpoint: Path, epochs: int, *, split: bool = False, **settings: Any) -> LocalRun:
    flow = hg.Flow("sums")
    rows = flow.source(ListSource(SCHEMA, EPOCHS[:epochs]))
    rows.key_by("user", grouping="partial" if split else "hash").process(
        hg.Sum("v"), name="sums"
    ).to_memory("out")
    return run(flow, checkpoint=checkpoint, **settings)


@pytest.mark.parametrize("split", [False, True])
def test_the_sums_of_crafted_keys_stay_apart(tmp_path: Path, split: bool) -> None:
    for epochs, slots in ((1, 2), (2, 3), (3, 1)):
        done = summed(tmp_path, epochs, split=split, slots=slots)

    assert {row["user"]: row["sum"] for row in done.state("sums")} == dict(
        zip(TWINS, SUMS, strict=True)
    )
    for user, total in zip(TWINS, SUMS, strict=True):
        found = Inspection(str(tmp_path)).find("sums", [user.hex()])
        assert found.rows.to_pylist() == [{"user": user, "sum": total}]
