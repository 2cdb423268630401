"""Follow a running flow in the terminal: a line per epoch, the newest at the bottom.

In a pipe or a log file the same lines are printed once each, without cursor movement.
"""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import Event
from types import FrameType
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from headgate.commit.facts import EpochFacts
from headgate.offline.views import EPOCH_COLUMNS, EpochView, RunView, short

if TYPE_CHECKING:
    from headgate.runtime.query import FlowQuery

POLL_SECONDS = 0.2
SHOWN = 12  # epochs on a terminal, the newest


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
    filled on the way, for who is interrupted.
    """
    board = Board(epochs or stop_after, seen)
    if console.is_terminal:
        with Live(board, console=console, refresh_per_second=8):
            _watch(query, board, None, stop_after)
            board.done = True
    else:
        console.print(board.table([], header=True))
        _watch(query, board, console, stop_after)
    return board.views


def _watch(query: FlowQuery, board: Board, log: Console | None, stop_after: int | None) -> None:
    ended = False
    with _patient_interrupt() as interrupted:
        while not ended and (stop_after is None or len(board.views) < stop_after):
            try:
                ended = bool(query.awaitTermination(POLL_SECONDS))
            finally:
                for view in board.take(query.recentProgress):
                    if log is not None:
                        log.print(board.table([view]))
            if interrupted.is_set() and not ended:
                raise KeyboardInterrupt


@contextmanager
def _patient_interrupt() -> Iterator[Event]:
    """Let Ctrl-C wait for the end of the current call; the second one does not wait.

    Spark's own handler cancels the jobs of the running epoch from inside whatever call it meets,
    which breaks that call's connection and makes the epoch look like one to be run again.
    """
    asked = Event()

    def note(number: int, frame: FrameType | None) -> None:
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

    def __init__(self, epochs: int | None = None, seen: list[EpochView] | None = None) -> None:
        self.views: list[EpochView] = [] if seen is None else seen
        self.done = False
        self._expected = epochs
        self._shown: deque[EpochView] = deque(maxlen=SHOWN)
        self._spinner = Spinner("dots", style="cyan")

    def take(self, progress: list[dict[str, Any]]) -> list[EpochView]:
        """Take in a query's recent progress; returns the epochs that are new."""
        last = self.views[-1].epoch if self.views else -1
        views = [EpochView.of(EpochFacts.from_json(entry["headgate"])) for entry in progress]
        new = [view for view in views if view.epoch > last]
        self.views += new
        self._shown.extend(new)
        return new

    def table(self, views: Iterable[EpochView], *, header: bool = False) -> Table:
        table = Table(box=None, padding=0, show_header=header, header_style="dim", pad_edge=False)
        for name, width in EPOCH_COLUMNS.items():
            table.add_column(name, justify="right", width=width, no_wrap=True)
        for view in views:
            table.add_row(*view.cells)
        return table

    def __rich__(self) -> RenderableType:
        table = self.table(self._shown, header=True)
        return table if self.done else Group(table, self._status())

    def _status(self) -> RenderableType:
        if not self.views:
            said = "first epoch: Python workers start"
        else:
            run = RunView.of(self.views)
            of = f" of {self._expected}" if self._expected else ""
            said = f"{run.epochs}{of} epochs, {short(run.rows)} rows"
            if run.rows_per_second_median is not None:
                said += f", median {short(run.rows_per_second_median)} rows/s"
        self._spinner.update(text=Text(said, style="dim"))
        return self._spinner
