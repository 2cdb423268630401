"""How commands speak: people read the console, programs read --json, errors are one panel.

`follow` shows a running flow: a line per epoch, the newest at the bottom. In a pipe or a log file
the same lines are printed once each, without cursor movement.
"""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from headgate.commit.facts import EpochFacts
from headgate.errors import HeadgateError
from headgate.offline.views import EPOCH_COLUMNS, EpochView, RunView
from headgate.topology.text import json_text, plain_text

if TYPE_CHECKING:
    from headgate.runtime.query import FlowQuery

STDOUT = Path("-")
INTERRUPTED = 130  # the exit code of shells for Ctrl-C
POLL_SECONDS = 0.2
SHOWN = 12  # epochs on a terminal, the newest

err = Console(stderr=True, highlight=False, emoji=False)


def speaker(json_file: Path | None = None) -> Console:
    """The console to talk to people on; standard error when standard output carries JSON."""
    return Console(stderr=json_file == STDOUT, highlight=False, emoji=False)


def safe(value: object) -> str:
    """A key, a value or a name for the console: no markup, no link, no control character."""
    return escape(plain_text(value))


def table(head: Sequence[str], rows: Sequence[Sequence[object]], *, words: int = 1) -> Table:
    """A table without lines, whose first `words` columns are text and the others numbers.

    Cells are shown as they are, without markup; a `Text` keeps its style.
    """
    found = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    found.show_header = any(head)
    for number, name in enumerate(head):
        is_text = number < words
        found.add_column(safe(name), justify="left" if is_text else "right", no_wrap=is_text)
    for row in rows:
        found.add_row(*(v if isinstance(v, Text) else Text(plain_text(v)) for v in row))
    return found


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


# --- a running flow ---------------------------------------------------------------------------
def follow(
    query: FlowQuery,
    console: Console,
    *,
    epochs: int | None = None,
    stop_after: int | None = None,
    seen: list[EpochView] | None = None,
) -> list[EpochView]:
    """Show epochs until the flow ends; raises what ended it.

    `epochs`: how many will come, if that is known. `stop_after`: return after so many. `seen` is
    filled on the way, for callers that are interrupted.
    """
    board = Board(epochs or stop_after, [] if seen is None else seen)
    if not console.is_terminal:
        console.print(board.lines([], header=True))
        _watch(query, board, console, stop_after)
    else:
        with Live(board, console=console, refresh_per_second=8):
            _watch(query, board, None, stop_after)
            board.done = True
    return board.views


def _watch(query: FlowQuery, board: Board, log: Console | None, stop_after: int | None) -> None:
    ended = False
    with _patient_interrupt() as interrupted:
        while not ended and (stop_after is None or len(board.views) < stop_after):
            try:
                ended = bool(query.awaitTermination(POLL_SECONDS))
            finally:
                new = board.take(query.recentProgress)
                if log is not None and new:
                    log.print(board.lines(new))
            if interrupted.is_set() and not ended:
                raise KeyboardInterrupt


@contextmanager
def _patient_interrupt() -> Iterator[Event]:
    """Let Ctrl-C wait for the end of the current call; the second one does not wait.

    Spark's own handler cancels the jobs of the running epoch from inside whatever call it meets,
    which breaks that call's connection and makes the epoch look like one to be run again.
    """
    asked = Event()

    def note(*_: object) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    before = signal.signal(signal.SIGINT, note)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)


class Board:
    """The epochs seen so far, and how they look."""

    def __init__(self, expected: int | None, views: list[EpochView]) -> None:
        self.views, self.done = views, False
        self._of = f"{expected} epochs expected; " if expected else ""
        self._spinner = Spinner("dots", style="cyan")

    def take(self, progress: list[dict[str, Any]]) -> list[EpochView]:
        """Take in a query's recent progress; returns the epochs that are new."""
        last = self.views[-1].epoch if self.views else -1
        views = [EpochView.of(EpochFacts.from_json(entry["headgate"])) for entry in progress]
        new = [view for view in views if view.epoch > last]
        self.views += new
        return new

    def lines(self, views: Sequence[EpochView], *, header: bool = False) -> Table:
        found = Table(box=None, padding=0, show_header=header, header_style="dim", pad_edge=False)
        for name, width in EPOCH_COLUMNS.items():
            found.add_column(name, justify="right", width=width, no_wrap=True)
        for view in views:
            found.add_row(*view.cells)
        return found

    def __rich__(self) -> RenderableType:
        shown = self.lines(self.views[-SHOWN:], header=True)
        if self.done:
            return shown
        sentence = RunView.of(self.views).sentence
        said = self._of + sentence if self.views else "first epoch: Python workers start"
        self._spinner.update(text=Text(said, style="dim"))
        return Group(shown, self._spinner)
