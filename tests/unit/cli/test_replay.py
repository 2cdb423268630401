"""`headgate replay` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from headgate.cli.main import app

ARGS = ["--key", "a", "--key", "b", "--window", "1000", "--period", "500", "--slots", "4"]


@pytest.fixture
def trace(tmp_path: Path) -> str:
    rng = np.random.default_rng(0)
    world = rng.integers(0, 4, 3_200)
    table = pa.table(
        {
            "t": rng.permutation(3_200),
            "a": [f"a{w}{n}" for w, n in zip(world, rng.integers(0, 5, 3_200), strict=True)],
            "b": world * 1_000 + rng.integers(0, 9, 3_200),
        }
    )
    pq.write_table(table, tmp_path / "trace.parquet")
    return str(tmp_path / "trace.parquet")


def run(*args: str):
    return CliRunner().invoke(app, ["replay", *args])


def test_figures_go_to_a_file_and_tables_to_people(trace: str, tmp_path: Path) -> None:
    result = run(trace, *ARGS, "--planner", "headgate", "--json", str(tmp_path / "out" / "x.json"))

    assert result.exit_code == 0, result.output
    assert "keys moved per period" in result.output and "per period" in result.output
    found = json.loads((tmp_path / "out" / "x.json").read_text())
    for field in (
        "locality imbalance imbalance_epoch imbalance_floor moves_per_period merge_rows_per_row "
        "plan_seconds_max adoptions_per_period per_period settings planner rows periods data"
    ).split():
        assert field in found
    assert found["locality"] > 0.8 and found["periods"] == 4
    assert "200 rows after the last full period" in result.output


@pytest.mark.parametrize("planner", ["hash", "offline", "online", "oracle", "worst-case"])
def test_every_planner_runs(trace: str, planner: str) -> None:
    result = run(trace, *ARGS, "--planner", planner, "--time", "t", "--strict", "--json", "-")

    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["planner"] == planner


def test_split_operators(trace: str) -> None:
    result = run(trace, *ARGS, "--split", "--json", "-")

    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["locality"] == 1.0 and found["anchor"] in ("a", "b")
    assert 0 <= found["remote_plus_merge_per_row"] == found["merge_rows_per_row"] < 1
    assert "Rows went by" in run(trace, *ARGS, "--split").output


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([*ARGS, "--planner", "best"], "there are hash, headgate, oracle"),
        (["--key", "a", "--key", "z", *ARGS[4:]], "has no column 'z'; it has t, a, b"),
        ([*ARGS[:4], "--window", "3000", "--period", "500"], "too few for a window"),
        (["--key", "a", *ARGS[4:]], "at least two keys"),
        ([*ARGS, "--planner", "online", "--split"], "--split is for --planner headgate"),
    ],
)
def test_mistakes_are_told_in_one_panel(trace: str, args: list[str], said: str) -> None:
    result = run(trace, *args)

    assert result.exit_code == 1
    assert said in " ".join(result.output.replace("│", " ").split())
    assert "Traceback" not in result.output
