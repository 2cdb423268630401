"""Checkpoints of 0.1 are refused, in one sentence that says what to do, and left as they are."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
from tests.scenario.kept_flow import EPOCHS, run_to

from headgate.commit.inspection import Inspection
from headgate.errors import UnsupportedVersion

KEPT = Path(__file__).parent / "data" / "checkpoint-0.1.0.tar.xz"


def test_a_checkpoint_of_0_1_is_refused_with_a_way_out(tmp_path: Path) -> None:
    with tarfile.open(KEPT) as archive:
        archive.extractall(tmp_path, filter="data")
    place = tmp_path / "checkpoint"
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}

    with pytest.raises(UnsupportedVersion, match=r"written by headgate 0\.1 ") as caught:
        run_to(EPOCHS, place, slots=2)
    with pytest.raises(UnsupportedVersion):
        Inspection(str(place))

    assert "headgate 0.2 reads format 4 only" in str(caught.value)
    assert str(caught.value).endswith(
        "Finish the flow with headgate 0.1, or start with a new checkpoint folder"
    )
    assert before == {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
