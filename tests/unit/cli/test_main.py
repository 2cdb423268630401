"""The command itself: help that teaches, a version, and where commands went."""

from __future__ import annotations

import shlex
from importlib import metadata

import pytest
import typer
from typer.testing import CliRunner

import headgate
from headgate.cli.examples import EXAMPLES, START
from headgate.cli.main import app


def test_help_shows_every_command_and_an_example() -> None:
    shown = CliRunner().invoke(app, ["--help"]).output

    for word in ("demo", "run", "inspect", "report", "headgate inspect artifacts"):
        assert word in shown


def test_every_command_shows_examples_and_no_type_of_its_flags() -> None:
    assert {*EXAMPLES} == {c.name or c.callback.__name__ for c in app.registered_commands
                           if c.callback is not None and not c.hidden}  # fmt: skip
    for words in ([], *([name] for name in EXAMPLES)):
        shown = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "200"}).output
        assert "<bool>" not in shown
        for call, _ in EXAMPLES[words[0]] if words else START:
            assert call in " ".join(shown.split())


@pytest.mark.parametrize("call", [c for e in (START, *EXAMPLES.values()) for c, _ in e])
def test_an_example_is_a_call_that_the_command_takes(call: str) -> None:
    program, name, *words = shlex.split(call)
    command = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]

    with command.make_context(name, words) as context:  # raises what a mistake would show
        assert program == "headgate" and context.params


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
