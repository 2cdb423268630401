"""What a bench has found: as tables on the console, and as a JSON file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from headgate.cli.console import STDOUT, write_json


def show(console: Console, title: str, values: Mapping[str, Any], form: str) -> None:
    table = Table(title=title, title_justify="left")
    table.add_column("")
    table.add_column("value", justify="right")
    for name, value in values.items():
        table.add_row(name, form.format(value))
    console.print(table)


def show_grid(
    console: Console, title: str, rows: Mapping[str, Mapping[str, Any]], form: str
) -> None:
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for column in next(iter(rows.values())):
        table.add_column(column, justify="right")
    for name, values in rows.items():
        table.add_row(name, *(form.format(value) for value in values.values()))
    console.print(table)


def save(found: dict[str, Any], json_file: Path | None, console: Console) -> None:
    if json_file is None:
        return
    write_json(json_file, found)
    if json_file != STDOUT:
        console.print(f"raw numbers in {json_file}")
