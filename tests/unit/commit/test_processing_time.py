"""Processing time: a wall clock that jumps neither ends TTLs early nor stops them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headgate as hg
from headgate.commit.manifest import Manifest
from headgate.commit.processing_time import (
    PATIENCE_EPOCHS,
    PATIENCE_MS,
    SLACK_MS,
    SteadyClock,
    epoch_time,
)
from headgate.testing import ListSource, ManualClock, run
from strategies import examples

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
START = 1_700_000_000_000


def told_at(now_ms: int, behind: int = 0) -> Manifest:
    return Manifest(0, "q", 1, {}, {}, {}, now_ms=now_ms, clock_behind=behind)


# --- within a run -----------------------------------------------------------------------------


@pytest.mark.parametrize("jump", [HOUR, -HOUR, 50 * 365 * DAY])
def test_a_reading_that_jumps_is_not_followed(jump: int) -> None:
    wall, monotonic = ManualClock(START), ManualClock(7)
    clock = SteadyClock(wall, monotonic)
    for _ in range(3):
        wall.advance(MINUTE)
        monotonic.advance(MINUTE)
        wall.advance(jump)
        assert clock() == wall.now_ms - jump
        wall.advance(-jump)
        assert clock() == wall.now_ms


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
def test_a_clock_that_goes_on_disagreeing_is_believed(jump: int) -> None:
    wall, monotonic = ManualClock(START + jump), ManualClock(0)
    clock = SteadyClock(lambda: wall.now_ms - (jump if not monotonic.now_ms else 0), monotonic)
    believed = []
    for minute in range(1, 15):
        wall.advance(MINUTE)
        monotonic.advance(MINUTE)
        if clock() == wall.now_ms:
            believed.append(minute)

    assert believed == list(range(1 + PATIENCE_MS // MINUTE, 15))


@examples(50)
@given(st.lists(st.integers(-SLACK_MS // 2, SLACK_MS // 2), max_size=10))
def test_a_clock_that_is_set_right_by_little_is_followed(corrections: list[int]) -> None:
    wall, monotonic = ManualClock(START), ManualClock(0)
    clock = SteadyClock(wall, monotonic)
    for correction in corrections:
        monotonic.advance(MINUTE)
        wall.advance(MINUTE + correction)
        assert clock() == wall.now_ms


# --- from epoch to epoch ----------------------------------------------------------------------


def test_time_does_not_go_back_until_the_clock_was_behind_for_many_epochs() -> None:
    last, times = told_at(START), []
    for minute in range(PATIENCE_EPOCHS + 2):
        now, behind = epoch_time(START - HOUR + minute * MINUTE, last)
        times.append(now)
        last = told_at(now, behind)

    held = PATIENCE_EPOCHS - 1
    assert times[:held] == [START] * held
    assert times[held:] == [START - HOUR + m * MINUTE for m in range(held, len(times))]


def test_a_clock_that_is_a_little_behind_never_takes_time_back() -> None:
    assert epoch_time(START - SLACK_MS, told_at(START, 1000))[0] == START


def test_a_clock_that_is_right_again_has_not_been_behind() -> None:
    _, behind = epoch_time(START + 1, told_at(START, PATIENCE_EPOCHS - 1))

    assert epoch_time(START - HOUR, told_at(START + 1, behind)) == (START + 1, 1)


# --- TTL --------------------------------------------------------------------------------------


def counted(keys: list[str], at: Callable[[int], int], steady: bool) -> list[tuple[str, int]]:
    """The counts that a TTL of ten minutes leaves, with one key and one reading per epoch."""
    wall, monotonic = ManualClock(START), ManualClock(0)

    def before(epoch: int) -> None:
        monotonic.now_ms = epoch * MINUTE
        wall.now_ms = at(epoch)

    flow = hg.Flow("ttl")
    rows = flow.source(ListSource("k string", [[{"k": k}] for k in keys]))
    rows.key_by("k").process(hg.Count(ttl="10 minutes"), name="count").to_memory("out")
    clock = SteadyClock(wall, monotonic) if steady else wall
    done = run(flow, slots=1, clock=clock, before_epoch=before, check_purity=False)
    return [(row["k"], row["count"]) for row in done.rows("out")]


def on_time(epoch: int) -> int:
    return START + epoch * MINUTE


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
def test_ttls_end_as_if_the_clock_had_not_jumped(jump: int) -> None:
    keys = list("abcabaaaaaaaabcaaaaaaaaaaaac")
    expected = counted(keys, on_time, steady=False)

    def jumping(epoch: int) -> int:
        return on_time(epoch) + (jump if epoch in (4, 13) else 0)

    assert counted(keys, jumping, steady=True) == expected
    assert ("b", 3) in expected and expected[-1] == ("c", 1)


def test_state_that_was_touched_ahead_of_time_ends_soon_after_the_clock_is_right() -> None:
    """A driver that starts with a clock that is a day ahead, and then is not."""
    keys = ["a"] + ["b"] * 60 + ["a"]
    found = counted(keys, lambda epoch: on_time(epoch) + (0 if epoch else DAY), steady=False)

    assert found[0] == ("a", 1)
    assert found[-1] == ("a", 1)
    assert found[-2] == ("b", 60)
