"""What the benchmark takes for a fold, and what it compares with what."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

BENCHES = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.syspath_prepend(str(BENCHES))
    return runpy.run_path(str(BENCHES / "bench_folds.py"))


def test_an_epoch_is_compared_with_neighbours_that_do_not_fold(bench: dict[str, Any]) -> None:
    took = [1.0] * 30 + [2.0] * 30
    folds = [at in (3, 4, 50) for at in range(60)]
    took[3], took[4], took[50] = 1.5, 1.25, 3.0

    found = bench["against_neighbours"](took, folds)

    assert found["ratios"][3] == 1.5 and found["ratios"][50] == 1.5
    assert found["folding"] == {"largest": 1.5, "median": 1.5}
    assert found["others"]["median"] == 1.0


def test_a_slot_that_wrote_more_than_its_delta_is_seen(
    bench: dict[str, Any], tmp_path: Path
) -> None:
    known: set[Path] = set()
    for slot, epoch, digests in ((0, 7, "a"), (1, 7, "bc"), (0, 8, "d"), (1, 8, "e")):
        for digest in digests:
            file = tmp_path / f"state/sum/{slot:05d}/e{epoch:09d}-L01-{digest * 32}.arrow"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(b"x" * epoch)
        if (slot, epoch) == (1, 7):
            assert bench["written"](tmp_path, known) == [[7], [7, 7]]
    assert bench["written"](tmp_path, known) == [[8], [8]]
