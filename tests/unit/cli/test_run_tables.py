"""`headgate run`: tables, slots and managers are compared before Spark starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

import headgate as hg
from headgate.cli.main import app
from headgate.cli.start_options import manager_of, slot_count
from headgate.errors import DeclarationError, UnknownSlot
from headgate.routing.table import save_tables


def test_slots_come_from_the_tables() -> None:
    assert slot_count(None, {}) == 4
    assert slot_count(None, {"a": hg.hash_table(6)}) == 6
    assert slot_count(6, {"a": hg.hash_table(6)}) == 6


def test_another_slot_count_names_both(tmp_path: Path) -> None:
    with pytest.raises(UnknownSlot, match=r"'b' is for 6 slots, the flow is to run 4"):
        slot_count(4, {"b": hg.hash_table(6)})
    with pytest.raises(UnknownSlot, match="'b' is for 5 slots"):
        slot_count(None, {"a": hg.hash_table(6), "b": hg.hash_table(5)})

    save_tables({"a": hg.hash_table(6)}, tmp_path)
    told = CliRunner().invoke(app, ["run", "x.py", "--slots", "4", "--tables", str(tmp_path)])
    assert told.exit_code == 1


def test_a_folder_without_tables_is_an_error(tmp_path: Path) -> None:
    told = CliRunner().invoke(app, ["run", "x.py", "--tables", str(tmp_path)])

    assert told.exit_code == 1


def test_limits_of_slots_let_the_load_decide() -> None:
    made = manager_of(False, None, 2, 6)

    assert made is not None and made.planner == "allocation"
    assert made.scaling is not None
    assert (made.scaling.min_slots, made.scaling.max_slots) == (2, 6)
    assert manager_of(False, None, None, None) is None
    with pytest.raises(DeclarationError, match="planner of units"):
        manager_of(True, "headgate", None, 4)
