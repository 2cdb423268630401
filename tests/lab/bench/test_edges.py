"""The paper's figure 12 without its data: the bench says so, and makes a stream of its own."""

from __future__ import annotations

from pathlib import Path

from headgate_lab.bench.edges import QUICK, run_edges


def test_the_edges_bench_runs_on_a_generated_stream(tmp_path: Path) -> None:
    said: list[str] = []

    found = run_edges(QUICK, said.append, tmp_path / "absent.parquet")

    assert "generated" in found["data"] and "HEADGATE_DATA" in said[0]
    for shares in found["locality"].values():
        assert len(shares) == len(found["edges"])
        assert shares[-1] > shares[0]
