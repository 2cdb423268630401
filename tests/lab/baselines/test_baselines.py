from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.demo import EpochFiles, write_epochs
from headgate_lab.baselines import bytewax_count, numpy_limit, pathway_count, tws
from headgate_lab.baselines.result import RivalUnavailable, oracle, timed_rows
from headgate_lab.streams import correlated_pairs

int64 = st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3)


@pytest.fixture
def epochs(tmp_path: Path) -> EpochFiles:
    tables = (correlated_pairs(2_000, seed=9, epoch=epoch, k1=50, k2=300) for epoch in range(3))
    return write_epochs(tables, tmp_path / "in", files_per_epoch=2)


@given(batches=st.lists(st.lists(int64, max_size=30), max_size=6))
def test_running_counts_equal_a_counter_for_any_int64_keys(batches):
    count, truth = numpy_limit.RunningCount(), Counter()
    for batch in batches:
        count.add(np.array(batch, dtype=np.int64))
        truth.update(batch)

    table = count.table()
    assert dict(zip(table["key"].to_pylist(), table["count"].to_pylist(), strict=True)) == truth
    assert table["key"].to_pylist() == sorted(truth)


def test_numpy_limit_agrees_with_a_counter_and_with_the_oracle(epochs, tmp_path):
    result = numpy_limit.run(epochs, slots=2, work_dir=tmp_path)

    rows = pa.concat_tables(epochs.read(epoch) for epoch in range(3))
    for key, counts in (("k1", result.counts_k1), ("k2", result.counts_k2)):
        truth = sorted(Counter(rows[key].to_pylist()).items())
        assert list(zip(*counts.to_pydict().values(), strict=True)) == truth
    assert result.agrees_with(oracle(epochs))
    assert result.agrees_with(result)


def test_warm_up_epochs_are_counted_but_not_timed(epochs, tmp_path):
    result = numpy_limit.run(epochs, slots=2, work_dir=tmp_path, warmup=1)
    assert (result.rows, len(result.seconds_per_epoch)) == (4_000, 2)
    assert sum(result.counts_k1["count"].to_pylist()) == 6_000
    assert result.rows_per_second == pytest.approx(4_000 / result.seconds)


def test_a_run_without_a_timed_epoch_is_refused(epochs):
    with pytest.raises(ValueError, match="leave nothing"):
        timed_rows(epochs, warmup=3)


def test_disagreement_is_noticed(epochs, tmp_path):
    result = numpy_limit.run(epochs, slots=2, work_dir=tmp_path)
    k1, k2 = oracle(epochs)
    assert not result.agrees_with((k1, k2.slice(1)))


@pytest.mark.parametrize("run", [bytewax_count.run, pathway_count.run, pathway_count.run_csv])
def test_a_rival_that_is_not_installed_says_so(run, epochs, tmp_path):
    with pytest.raises(RivalUnavailable, match="call setup"):
        run(epochs, slots=2, work_dir=tmp_path, venv_dir=tmp_path / "absent")


def test_tws_without_protobuf_says_what_to_install(epochs, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "google.protobuf", None)
    with pytest.raises(RivalUnavailable, match="pip install"):
        tws.run(epochs, slots=2, work_dir=tmp_path)
