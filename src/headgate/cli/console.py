"""How commands speak: people read the console, programs read --json, errors are one panel."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.text import Text

from headgate.errors import HeadgateError
from headgate.topology.json_text import json_text
from headgate.topology.plain_text import plain_text

STDOUT = Path("-")
INTERRUPTED = 130

err = Console(stderr=True, highlight=False, emoji=False)


def speaker(json_file: Path | None = None) -> Console:
    """The console to talk to people on; standard error when standard output carries JSON."""
    return Console(stderr=json_file == STDOUT, highlight=False, emoji=False)


def safe(value: object) -> str:
    """A key, a value or a name for the console: no markup, no link, no control character."""
    return escape(plain_text(value))


def write_json(path: Path, data: Any) -> None:
    """To a file, or to standard output for "-"."""
    text = json_text(data, indent=2, default=plain) + "\n"
    if path == STDOUT:
        sys.stdout.write(text)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def plain(value: Any) -> Any:
    """What JSON cannot say: bytes as hex, the rest as text."""
    return value.hex() if isinstance(value, bytes) else str(value)


@contextmanager
def told_plainly() -> Iterator[None]:
    """Show an error of headgate as one panel and exit 1; its traceback helps nobody."""
    try:
        yield
    except HeadgateError as problem:
        fail(str(problem), title=_words(type(problem).__name__))
    except KeyboardInterrupt:
        err.print("[yellow]Stopped.[/]")
        raise typer.Exit(INTERRUPTED) from None


def fail(message: str, *, title: str = "Error") -> None:
    """Show why a command cannot go on, and leave with exit code 1."""
    shown = "\n".join(plain_text(line) for line in message.split("\n"))
    err.print(Panel(Text(shown), title=title, title_align="left", border_style="red"))
    raise typer.Exit(1) from None


def first_lines(text: str, count: int = 12) -> str:
    """The beginning of what Spark has to say; the rest is a trace."""
    lines = [line for line in text.splitlines() if line.strip()]
    return "\n".join(lines[:count])


def _words(name: str) -> str:
    """CamelCase as words: "Incompatible flow".

    Examples:
        >>> _words("IncompatibleFlow")
        'Incompatible flow'
    """
    spaced = "".join(f" {c.lower()}" if c.isupper() else c for c in name).strip()
    return spaced[:1].upper() + spaced[1:]
