"""Following a query: every epoch shown once, also when it ends in an error."""

from __future__ import annotations

import io
import signal
from typing import Any

import pytest
from rich.console import Console

from headgate.cli.console import follow
from headgate.errors import OperatorFailed


class FakeQuery:
    """Each wait reveals one more step: an epoch, or an error that ends the flow."""

    def __init__(self, *steps: Any) -> None:
        self._steps = list(steps)
        self.recentProgress: list[dict[str, Any]] = []

    def awaitTermination(self, timeout: float | None = None) -> bool:
        if not self._steps:
            return True
        step = self._steps.pop(0)
        if isinstance(step, Exception):
            raise step
        self.recentProgress = [*self.recentProgress, {"headgate": step}][-2:]
        return not self._steps


def epoch(number: int) -> dict[str, Any]:
    return {"epoch": number, "rows": 1000, "plan_ms": 100.0, "job_ms": 400.0, "locality": 0.25}


@pytest.mark.parametrize("terminal", [True, False])
def test_every_epoch_is_seen_once(terminal: bool) -> None:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=100)

    views = follow(FakeQuery(epoch(0), epoch(1), epoch(2)), console)

    assert [view.epoch for view in views] == [0, 1, 2]
    assert views[0].rows_per_second == 2000
    assert "25.0%" in console.file.getvalue()  # type: ignore[attr-defined]


def test_epochs_before_an_error_are_kept_and_the_error_is_raised() -> None:
    console = Console(file=io.StringIO(), width=100)
    seen: list[Any] = []

    with pytest.raises(OperatorFailed):
        follow(FakeQuery(epoch(0), OperatorFailed("no")), console, seen=seen)

    assert [view.epoch for view in seen] == [0]


def test_it_can_stop_after_some_epochs() -> None:
    console = Console(file=io.StringIO(), width=100)

    assert len(follow(FakeQuery(*map(epoch, range(9))), console, stop_after=2)) == 2


def test_ctrl_c_waits_for_the_call_it_meets() -> None:
    class Interrupted(FakeQuery):
        def awaitTermination(self, timeout: float | None = None) -> bool:
            signal.raise_signal(signal.SIGINT)
            return super().awaitTermination(timeout)

    seen: list[Any] = []
    before = signal.getsignal(signal.SIGINT)

    query = Interrupted(epoch(0), epoch(1), epoch(2))
    with pytest.raises(KeyboardInterrupt):
        follow(query, Console(file=io.StringIO(), width=100), seen=seen)

    assert [view.epoch for view in seen] == [0]  # the call ended, its epoch is shown
    assert signal.getsignal(signal.SIGINT) is before


def test_a_replayed_epoch_has_no_figures() -> None:
    console = Console(file=io.StringIO(), width=100)

    views = follow(FakeQuery({"epoch": 3, "replayed": True, "rows": 0}), console)

    assert views[0].rows_per_second is None
