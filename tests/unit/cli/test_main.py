"""The command itself: help that teaches, a version, and where commands went."""

from __future__ import annotations

from importlib import metadata

import pytest
from typer.testing import CliRunner

import headgate
from headgate.cli.main import app


def test_help_shows_every_command_and_an_example() -> None:
    shown = CliRunner().invoke(app, ["--help"]).output

    for word in ("demo", "run", "inspect", "report", "headgate inspect artifacts"):
        assert word in shown


def test_version_is_the_package_version() -> None:
    assert headgate.__version__ == metadata.version("headgate")
    assert metadata.version("headgate") in CliRunner().invoke(app, ["--version"]).output


@pytest.mark.parametrize("call", ["bench", "bench chain --quick --json -", "simulate --help"])
def test_a_command_that_went_to_the_laboratory_says_so_in_one_line(call: str) -> None:
    said = CliRunner().invoke(app, call.split())

    assert said.exit_code == 2
    assert said.stdout == ""
    [line] = said.stderr.splitlines()
    assert f"`headgate-lab {call.split(maxsplit=1)[0]}`" in line
    assert "pip install headgate-lab" in line
