"""The command `headgate-lab`: its help, its version, a place for benches."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

from rich.console import Console
from typer.testing import CliRunner

from headgate_lab.cli.bench import bench_app
from headgate_lab.cli.main import app


def test_help_shows_every_command_and_an_example() -> None:
    shown = CliRunner().invoke(app, ["--help"]).output

    for word in ("bench", "simulate", "headgate-lab bench chain"):
        assert word in shown


def test_version_is_the_package_version() -> None:
    assert metadata.version("headgate-lab") in CliRunner().invoke(app, ["--version"]).output


def test_a_bench_is_a_command_with_the_shared_options(tmp_path: Path) -> None:
    seen: list[tuple[Path | None, bool]] = []

    def still(json_file: Path | None, quick: bool, console: Console) -> None:
        """Measure nothing."""
        seen.append((json_file, quick))

    benches = bench_app({"still": still})
    result = CliRunner().invoke(benches, ["still", "--quick", "--json", str(tmp_path / "f.json")])

    assert result.exit_code == 0, result.output
    assert seen == [(tmp_path / "f.json", True)]
    assert "still" in CliRunner().invoke(benches, []).output
    assert "Measure nothing." in CliRunner().invoke(benches, ["--help"]).output
