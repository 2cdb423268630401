"""Checkpoints of earlier versions open, with other slots too, and come to what one run comes to."""

from __future__ import annotations

import json
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.scenario.kept_flow import EPOCHS, WRITTEN, run_to

KEPT = sorted((Path(__file__).parent / "data").glob("checkpoint-*.tar.xz"))


def by_epoch(outputs: dict[str, list[Any]]) -> dict[tuple[str, int], Counter[str]]:
    """Rows of every sink and epoch, as text, whatever their order."""
    found: dict[tuple[str, int], Counter[str]] = {}
    for sink, rows in outputs.items():
        for epoch, row in rows:
            told = json.dumps(row, sort_keys=True, default=str)
            found.setdefault((sink, epoch), Counter())[told] += 1
    return found


@pytest.mark.parametrize("slots", [2, 3])
@pytest.mark.parametrize("kept", KEPT, ids=lambda path: path.name)
def test_a_checkpoint_of_an_earlier_version_goes_on(kept: Path, slots: int, tmp_path: Path) -> None:
    with tarfile.open(kept) as archive:
        archive.extractall(tmp_path, filter="data")
    before = by_epoch(json.loads((tmp_path / "outputs.json").read_text()))
    done = run_to(EPOCHS, tmp_path / "checkpoint", slots=slots)
    plain = run_to(EPOCHS, slots=1)

    after = {at: rows for at, rows in by_epoch(done.outputs).items() if at[1] >= WRITTEN}
    assert {at for at in before if at[1] >= WRITTEN} == set()
    assert before | after == by_epoch(plain.outputs)
    for operator, rows in plain.states.items():
        assert Counter(map(repr, done.states[operator])) == Counter(map(repr, rows)), operator


def test_there_is_one_of_every_format_that_is_read() -> None:
    assert [path.name for path in KEPT] == ["checkpoint-0.1.0.tar.xz"]
