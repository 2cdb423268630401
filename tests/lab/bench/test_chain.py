"""The chain bench: limits count right, and ratios are against the better of Spark's stores."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.demo import write_epochs
from headgate_lab.baselines.result import oracle
from headgate_lab.bench.chain import _duckdb, figures
from headgate_lab.streams import correlated_pairs


def test_duckdb_counts_epoch_by_epoch_what_the_oracle_counts_at_once(tmp_path: Path) -> None:
    tables = (correlated_pairs(400, seed=3, epoch=epoch, k1=20, k2=60) for epoch in range(3))
    epochs = write_epochs(tables, tmp_path / "in", files_per_epoch=2)

    result = _duckdb(epochs, slots=1, work_dir=tmp_path, warmup=1)

    assert result.agrees_with(oracle(epochs))
    assert result.rows == 800 and len(result.seconds_per_epoch) == 2


def test_ratios_are_against_the_better_store_and_within_one_size_of_epochs() -> None:
    small = {"split": 8.0, "keyed": 6.0, "native_rocksdb": 2.0, "native_memory": 4.0, "numpy": 80.0}
    large = {"split_large": 30.0, "keyed_large": 20.0, "native_memory_large": 5.0}

    ratios = figures({**small, **large})["ratios"]

    assert ratios["split_over_native"] == pytest.approx(2.0)
    assert ratios["keyed_over_native"] == pytest.approx(1.5)
    assert ratios["split_over_native_large"] == pytest.approx(6.0)
    assert ratios["numpy_over_split"] == pytest.approx(10.0)
    assert "numpy_large_over_split" not in ratios
    assert not any("rocksdb" in name for name in ratios)
