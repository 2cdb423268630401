"""`headgate analyze` refuses what it can before Spark starts."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from headgate.cli.main import app


@pytest.fixture
def posts(tmp_path: Path) -> Path:
    path = tmp_path / "posts.parquet"
    pq.write_table(pa.table({"a": [1], "b": [2]}), path)
    return path


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--key", "a"], "at least twice"),
        (["--key", "a", "--key", "b", "--quality", "best"], "choose metis or mt-kahypar"),
        (["--key", "a", "--key", "b", "--edge", "a:c"], "operators of a, b"),
        (["--key", "a", "--key", "b", "--conf", "x"], "KEY=VALUE"),
        (["--key", "a", "--key", "b", "--source-slot", "b"], "say whose, with --source"),
    ],
)
def test_options_that_make_no_sense_are_told(posts: Path, more: list[str], told: str) -> None:
    result = CliRunner().invoke(app, ["analyze", str(posts), *more])

    assert result.exit_code == 1
    assert told in " ".join(result.output.replace("│", " ").split())


def test_tables_are_not_written_among_data(posts: Path) -> None:
    asked = ["analyze", str(posts), "--key", "a", "--key", "b", "--out", str(posts.parent)]

    result = CliRunner().invoke(app, asked)

    assert result.exit_code == 1
    assert "not a routing table" in " ".join(result.output.replace("│", " ").split())
