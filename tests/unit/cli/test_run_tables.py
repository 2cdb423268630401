"""`headgate run`: tables, slots and managers are compared before Spark starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

import headgate as hg
from headgate.cli.main import app
from headgate.control.settings import slots_for
from headgate.errors import UnknownSlot
from headgate.routing.table import save_tables


def test_slots_come_from_the_tables() -> None:
    assert slots_for(None, {}) == hg.Scaling()
    assert slots_for(None, {"a": hg.hash_table(6)}) == 6
    assert slots_for(6, {"a": hg.hash_table(6)}) == 6


def test_another_slots_for_names_both(tmp_path: Path) -> None:
    with pytest.raises(UnknownSlot, match=r"'b' is for 6 slots, the flow is to run 4"):
        slots_for(4, {"b": hg.hash_table(6)})
    with pytest.raises(UnknownSlot, match="'b' is for 5 slots"):
        slots_for(None, {"a": hg.hash_table(6), "b": hg.hash_table(5)})

    save_tables({"a": hg.hash_table(6)}, tmp_path)
    told = CliRunner().invoke(app, ["run", "x.py", "--slots", "4", "--tables", str(tmp_path)])
    assert told.exit_code == 1


def test_a_folder_without_tables_is_an_error(tmp_path: Path) -> None:
    told = CliRunner().invoke(app, ["run", "x.py", "--tables", str(tmp_path)])

    assert told.exit_code == 1
