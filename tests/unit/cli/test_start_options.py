"""`headgate run`: what its options stand for, and what does not go together."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

import headgate as hg
from headgate.cli.main import app
from headgate.cli.start_options import manager_of, slots_of
from headgate.routing.table import save_tables


def test_slots_are_a_number_or_limits_or_left_open() -> None:
    assert slots_of(3, None, None) == 3
    assert slots_of(None, 2, 6) == hg.Scaling(min_slots=2, max_slots=6)
    assert slots_of(None, None, 6) == hg.Scaling(max_slots=6)
    assert slots_of(None, 2, None) == hg.Scaling(min_slots=2)
    assert slots_of(None, None, None) is None


def test_a_flow_is_managed_unless_it_is_said_otherwise() -> None:
    assert manager_of(True, None) == hg.Manager()
    assert manager_of(True, "hash") == hg.Manager("hash")
    assert manager_of(False, None) is None


@pytest.mark.parametrize(
    ("words", "way_out"),
    [
        (("--slots", "4", "--max-slots", "4"), "limits within which it is chosen: keep one"),
        (("--min-slots", "2", "--tables", "TABLES"), "their number is to be chosen: keep one"),
        (("--slots", "2", "--tables", "TABLES"), "run 6 slots, or analyse again with --slots 2"),
        (("--no-manager", "--planner", "hash"), "leave it out, or --planner hash"),
    ],
)
def test_options_that_do_not_go_together_say_what_does(
    tmp_path: Path, words: tuple[str, ...], way_out: str
) -> None:
    save_tables({"a": hg.hash_table(6)}, tmp_path)
    given = [str(tmp_path) if word == "TABLES" else word for word in words]

    told = CliRunner().invoke(app, ["run", "none.py", *given])

    assert told.exit_code == 1
    assert way_out in " ".join(told.output.replace("│", " ").split())


def test_rows_per_epoch_are_positive() -> None:
    assert CliRunner().invoke(app, ["run", "x.py", "--rows-per-epoch", "0"]).exit_code == 2
