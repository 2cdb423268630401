"""`bench regression`: which tree it compares with, and that both run what is theirs."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from headgate.errors import EngineError
from headgate_lab.bench import regression_driver
from headgate_lab.bench.regression import BASE, QUICK, base_of, run_regression
from headgate_lab.cli.bench_regression import regression

ONLY_STATE = replace(QUICK, paths=("state",))


def test_each_tree_runs_its_own_code_in_turns_and_the_ratio_is_base_over_this(
    tmp_path: Path,
) -> None:
    root = _repository(tmp_path / "tree")
    _commit(root, "benchmarks/bench_state.py", _bench_that_takes(30), tag="v1")
    _commit(root, "benchmarks/bench_state.py", _bench_that_takes(10))
    said: list[str] = []

    found = run_regression(replace(ONLY_STATE, rounds=2), said.append, root)

    assert found["base"] == "v1" and found["left_out"] == {}
    assert found["ms_raw"] == {"state": {"base": [30.0, 30.0], "this": [10.0, 10.0]}}
    assert found["base_over_this"] == found["base_over_this_cpu"] == {"state": 3.0}
    assert any("by CPU time 3.00x" in line for line in said)
    assert not (root / ".git" / "worktrees").exists()


def test_this_tree_is_taken_with_what_is_not_committed_yet(tmp_path: Path) -> None:
    root = _repository(tmp_path / "tree")
    _commit(root, "benchmarks/bench_state.py", _bench_that_takes(30))
    (root / "benchmarks/bench_state.py").write_text(_bench_that_takes(60))

    found = run_regression(replace(ONLY_STATE, base="HEAD"), lambda line: None, root)

    assert found["base_over_this"] == {"state": 0.5}


def test_a_path_that_the_base_cannot_run_is_left_out_with_the_reason(tmp_path: Path) -> None:
    root = _repository(tmp_path / "tree")
    _commit(root, "README", "no bench yet", tag="v1")
    _commit(root, "benchmarks/bench_state.py", _bench_that_takes(10))

    found = run_regression(ONLY_STATE, lambda line: None, root)

    assert "state of base: FileNotFoundError" in found["left_out"]["state"]
    assert found["base_over_this"] == {}


def test_without_a_tag_the_base_is_one_commit_and_a_clone_without_it_says_what_to_do(
    tmp_path: Path,
) -> None:
    root = _repository(tmp_path / "tree")
    _commit(root, "README", "the first")

    assert base_of(root) == BASE
    with pytest.raises(EngineError, match="give another with --base"):
        run_regression(ONLY_STATE, lambda line: None, root)


def test_the_cpu_time_of_children_that_ended_counts() -> None:
    busy = "import time\nwhile time.process_time() < 0.2: pass"
    before = regression_driver.cpu_ms()

    subprocess.run([sys.executable, "-c", busy], check=True)

    assert regression_driver.cpu_ms() - before >= 180


def test_a_path_that_there_is_not_is_refused_with_those_that_are() -> None:
    app = typer.Typer()
    app.command()(regression)

    shown = CliRunner().invoke(app, ["--only", "wide_9kb"])

    assert shown.exit_code == 2
    assert "wide_9kb" in shown.output and "wide_4kb" in shown.output


def _bench_that_takes(ms: int) -> str:
    return f"""
class Driver:
    def __init__(self, folder, name, held, touched, strings): pass
    def batch(self): return None
    def run(self, keys): return {{"all": {ms}}}
"""


def _repository(root: Path) -> Path:
    root.mkdir()
    _git(root, "init", "-q")
    return root


def _commit(root: Path, file: str, content: str, tag: str | None = None) -> None:
    (root / file).parent.mkdir(exist_ok=True)
    (root / file).write_text(content)
    _git(root, "add", "-A")
    _git(root, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "x")
    if tag is not None:
        _git(root, "tag", tag)


def _git(root: Path, *arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True)
