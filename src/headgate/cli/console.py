"""How commands speak: people read the console, programs read --json, errors are one panel."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from headgate.errors import HeadgateError
from headgate.topology.text import json_text, plain_text

STDOUT = Path("-")
INTERRUPTED = 130  # the exit code of shells for Ctrl-C

err = Console(stderr=True, highlight=False, emoji=False)


def speaker(json_file: Path | None = None) -> Console:
    """The console to talk to people on; standard error when standard output carries JSON."""
    return Console(stderr=json_file == STDOUT, highlight=False, emoji=False)


def safe(value: object) -> str:
    """A key, a value or a name for the console: no markup, no link, no control character."""
    return escape(plain_text(value))


def columns(*words: str, numbers: Sequence[str] = ()) -> Table:
    """An empty table without lines: columns of words, then columns of numbers."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for name in words:
        table.add_column(name, no_wrap=True)
    for name in numbers:
        table.add_column(name, justify="right")
    return table


def counted(number: int, noun: str) -> str:
    """A number of things.

    Examples:
        >>> counted(1, "slot"), counted(2_000, "row")
        ('1 slot', '2,000 rows')
    """
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def write_json(path: Path | None, data: Any) -> None:
    """To a file, to standard output for "-", nowhere for None; bytes as hex."""
    if path is None:
        return
    text = json_text(data, indent=2, default=lambda v: v.hex() if isinstance(v, bytes) else str(v))
    if path == STDOUT:
        sys.stdout.write(text + "\n")
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n", encoding="utf-8")


@contextmanager
def plain_errors() -> Iterator[None]:
    """Show an error of headgate as one panel and exit 1; its traceback helps nobody."""
    try:
        yield
    except HeadgateError as problem:
        words = re.sub(r"(?<!^)([A-Z])", lambda c: f" {c[1].lower()}", type(problem).__name__)
        fail(str(problem), title=words)
    except KeyboardInterrupt:
        err.print("[yellow]Stopped.[/]")
        raise typer.Exit(INTERRUPTED) from None


def fail(message: str, *, title: str = "Error") -> None:
    """Show why a command cannot go on, and leave with exit code 1."""
    shown = "\n".join(plain_text(line) for line in message.split("\n"))
    err.print(Panel(Text(shown), title=title, title_align="left", border_style="red"))
    raise typer.Exit(1) from None
