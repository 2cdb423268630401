"""Cores are what the master says, and None where executors have to be asked."""

from __future__ import annotations

import pytest

from headgate.runtime.calibration import local_cores


@pytest.mark.parametrize(
    ("master", "cores"),
    [
        ("local", 1),
        ("local[3]", 3),
        ("local[*]", 8),
        ("local[2,4]", 2),
        ("local[*, 4]", 8),
        ("local-cluster[2,1,1024]", None),
        ("spark://here:7077", None),
        ("yarn", None),
    ],
)
def test_a_local_master_names_its_cores(master: str, cores: int | None) -> None:
    assert local_cores(master, machine=8) == cores
