"""`headgate-lab simulate`: figures for people and programs, and a way to replay what fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from headgate_lab.cli.simulate import simulate


@pytest.fixture
def app() -> typer.Typer:
    made = typer.Typer()
    made.command()(simulate)
    return made


def test_it_counts_what_happened(app: typer.Typer, tmp_path: Path) -> None:
    file = tmp_path / "figures.json"

    shown = CliRunner().invoke(app, ["--seeds", "20", "--topology", "chain", "--json", str(file)])

    assert shown.exit_code == 0, shown.output
    assert "20 seeds, no violation" in shown.output
    told = json.loads(file.read_text())
    assert told["figures"]["runs"] == 20
    assert told["violations"] == []
    assert told["options"]["topology"] == "chain"


def test_a_violation_ends_with_the_command_that_replays_it(app: typer.Typer) -> None:
    given = ["--seeds", "20", "--broken", "no-buffering"]
    shown = CliRunner().invoke(app, given)

    assert shown.exit_code == 1
    line = next(line for line in shown.output.splitlines() if line.startswith("replay with"))
    words = line.partition("headgate-lab simulate ")[2].split()
    again = CliRunner().invoke(app, words)
    assert again.exit_code == 1
    assert "--trace" in words and "SEND_RECONF" in again.output


def test_one_seed_can_be_traced_to_its_good_end(app: typer.Typer) -> None:
    shown = CliRunner().invoke(app, ["--seed", "2", "--trace"])

    assert shown.exit_code == 0
    assert "every invariant holds" in shown.output


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["--trace"], "--seed"),
        (["--topology", "ring"], "diamond"),
        (["--broken", "everything"], "no-buffering"),
    ],
)
def test_what_cannot_be_done_is_said_with_a_way_out(
    app: typer.Typer, arguments: list[str], hint: str
) -> None:
    shown = CliRunner().invoke(app, arguments)

    assert shown.exit_code == 1
    assert hint in shown.output


def test_the_mistakes_are_listed(app: typer.Typer) -> None:
    assert "not-durable" in CliRunner().invoke(app, ["--broken", "list"]).output
