"""The text bench: rows follow from the seed, and the sums that are checked against are right."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

from headgate.demo import write_epochs
from headgate_lab.bench.text import QUICK, _duckdb, _oracle, figures, text_rows


def test_a_limit_that_sums_epoch_by_epoch_agrees_with_the_oracle(tmp_path: Path) -> None:
    options = replace(QUICK, rows_per_epoch=300, epochs=2)
    tables = [text_rows(options, epoch) for epoch in range(2)]
    epochs = write_epochs(tables, tmp_path / "in")

    cost, sums = _duckdb(epochs, options, tmp_path)

    plain: Counter[str] = Counter()
    for row in (row for table in tables for row in table.to_pylist()):
        plain[row["user"]] += row["amount"]
        assert row["page"].startswith("/p/") and row["user"].startswith("user-")
    assert sums == _oracle(epochs) and sums["user"] == dict(plain)
    assert cost > 0
    assert text_rows(options, 1) == tables[1] != text_rows(options, 0)


def test_ratios_are_of_medians_against_the_better_store() -> None:
    raw = {"split": [1.0, 9.0, 2.0], "keyed": [4.0], "native_rocksdb": [10.0]}
    told = figures(raw | {"native_memory": [8.0], "flink": [12.0]})

    assert (told["split_over_native"], told["keyed_over_native"]) == (4.0, 2.0)
    assert told["split_over_flink"] == 6.0 and told["split_rows_per_s"] == 0.5
    assert figures(raw)["split_over_flink"] is None
