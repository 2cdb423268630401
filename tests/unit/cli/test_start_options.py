"""`headgate run --auto`: what it stands for, and what it does not go with."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

import headgate as hg
from headgate.cli.main import app
from headgate.cli.start_options import check_without_auto, chosen
from headgate.routing.table import save_tables


def test_auto_is_parallelism_and_batch() -> None:
    assert chosen(None, False, False, 3, 1_500.0) == {
        "parallelism": "auto",
        "batch": "auto",
        "slots_max": 3,
        "latency_s": 1.5,
    }
    check_without_auto(None, None)


@pytest.mark.parametrize(
    ("words", "way_out"),
    [
        (("--auto", "--slots", "4"), "--slots-max N limits --auto"),
        (("--auto", "--max-slots", "4"), "The limit of --auto is --slots-max N"),
        (("--auto", "--min-slots", "2"), "would both change the number of slots"),
        (("--auto", "--tables", "TABLES"), "--tables are for a number of slots"),
        (("--slots-max", "4"), "--max-slots N lets the load decide"),
        (("--latency-ms", "100"), "--rows-per-epoch gives them"),
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
