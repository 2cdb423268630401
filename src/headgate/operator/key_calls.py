"""The calls of a per-key function: one key at a time, its rows and timers in order.

Without timers, or without `order_by=`, a function gets all rows of its key at once, and timers fire
after them. With both, time passes between rows as it did when they came into being: rows are handed
over one by one, and a timer fires before the first row that is not earlier than it. So what
a function makes of a key does not depend on how rows were cut into epochs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from headgate.errors import DeclarationError
from headgate.operator.rows import EpochClock
from headgate.operator.timers import CLOCKS, TimerClock
from headgate.topology.arguments import check_choice

START = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
FIRED_MAX = 10_000  # timers of one key and epoch that set each other


@dataclass(frozen=True)
class Timer:
    """A timer that fired: `at` is the time it was set to, which may be long past."""

    at: datetime
    name: str = ""
    clock: TimerClock = "event"


@dataclass
class KeyContext:
    """What a per-key function may ask and do besides: the time, and its key's timers.

    `now` is the epoch's processing time, `watermark` the event time up to which the input is
    complete (None: not known yet); both are the same in every attempt. A key has one timer of each
    name: setting it again moves it.

    Examples:
        >>> context = KeyContext(datetime(2026, 1, 1, tzinfo=UTC), None, 0)
        >>> context.set_timer(context.now + timedelta(minutes=5), clock="processing")
        >>> context.cancel_timer()
    """

    now: datetime
    watermark: datetime | None
    epoch: int
    changes: dict[str, tuple[TimerClock, int] | None] = field(default_factory=dict, repr=False)
    may_set: bool = field(default=True, repr=False)

    def set_timer(self, at: datetime, *, name: str = "", clock: TimerClock = "event") -> None:
        """Have `on_timer` called when the watermark, or the processing time, has reached `at`.

        A time without a zone counts as UTC.
        """
        self._check_timers()
        if not isinstance(at, datetime):
            raise TypeError(f"set_timer(at=...) takes a datetime, not {at!r}")
        check_choice(clock, "clock= of set_timer", CLOCKS)
        self.changes[str(name)] = clock, to_us(at)

    def cancel_timer(self, name: str = "") -> None:
        """Forget the key's timer of that name, if it has one."""
        self._check_timers()
        self.changes[str(name)] = None

    def _check_timers(self) -> None:
        if not self.may_set:
            raise DeclarationError("timers need somebody to call: give Update(..., on_timer=...)")


def to_us(at: datetime) -> int:
    return ((at if at.tzinfo else at.replace(tzinfo=UTC)) - START) // MICROSECOND


def to_datetime(at_us: int) -> datetime:
    return START + at_us * MICROSECOND


@dataclass
class KeyCalls:
    """Runs the functions of one operator for one key after the other."""

    fn: Callable[..., Any]
    on_timer: Callable[..., Any] | None
    takes_context: bool
    clock: EpochClock
    fires_processing: bool  # else those wait until all rows of the epoch are in

    def context(self) -> KeyContext:
        watermark = self.clock.watermark_us
        return KeyContext(
            to_datetime(self.clock.now_ms * 1000),
            None if watermark is None else to_datetime(watermark),
            self.clock.epoch,
            may_set=self.on_timer is not None,
        )

    def run(
        self,
        key: Any,
        pieces: list[tuple[int | None, Any]],
        state: Any,
        due: dict[str, tuple[TimerClock, int]],
    ) -> tuple[Any, list[Any], dict[str, tuple[TimerClock, int] | None]]:
        """The new state, all answers, and what becomes of timers, after these pieces of rows.

        Each piece is (event time of its row or None, rows); `due` are timers of the key that are
        due, of which those that fire are among the changes.
        """
        context, made = self.context(), []
        pending, changes = dict(due), dict[str, tuple[TimerClock, int] | None]()

        def take(answer: Any) -> None:
            nonlocal state
            if not isinstance(answer, tuple | list) or len(answer) != 2:
                wrong = f"it must return (new_state, output_rows), not {answer!r}"
                raise TypeError(wrong[:200])
            state = answer[0]
            made.append(answer[1])
            for name, timer in context.changes.items():
                changes[name] = timer
                pending.pop(name, None)
                if timer is not None and self._is_due(*timer):
                    pending[name] = timer
            context.changes.clear()

        for time_us, rows in pieces:
            if time_us is not None:
                for timer in self._firing(pending, changes, time_us):
                    take(self._fire(key, timer, state, context))
            more = (context,) if self.takes_context else ()
            take(self.fn(key, rows, state, *more))
        if not pieces or pieces[-1][0] is not None:
            for timer in self._firing(pending, changes, None):
                take(self._fire(key, timer, state, context))
        return state, made, changes

    def _fire(self, key: Any, timer: Timer, state: Any, context: KeyContext) -> Any:
        assert self.on_timer is not None
        return self.on_timer(key, timer, state, context)

    def _firing(
        self,
        pending: dict[str, tuple[TimerClock, int]],
        changes: dict[str, tuple[TimerClock, int] | None],
        until_us: int | None,
    ) -> Iterator[Timer]:
        """Timers that are due up to here, in order; each is gone before it fires."""
        for _ in range(FIRED_MAX):
            found = [
                (at, name, clock)
                for name, (clock, at) in pending.items()
                if until_us is None or (clock == "event" and at <= until_us)
            ]
            if not found:
                return
            at, name, clock = min(found)
            del pending[name]
            changes[name] = None
            yield Timer(to_datetime(at), name, clock)
        raise RuntimeError(
            f"on_timer set a timer that was due at once, {FIRED_MAX} times in a row; set it to a "
            "later time"
        )

    def _is_due(self, clock: TimerClock, at: int) -> bool:
        if clock == "processing":
            return self.fires_processing and at <= self.clock.now_ms * 1000
        watermark = self.clock.watermark_us
        return self.clock.input_ends or (watermark is not None and at <= watermark)
