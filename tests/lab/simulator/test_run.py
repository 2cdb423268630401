"""A run is a function of its seed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from headgate.errors import DeclarationError
from headgate_lab.simulator.broken import BROKEN, VARIANTS
from headgate_lab.simulator.faults import Crash, Faults
from headgate_lab.simulator.message import Data, Emit, Propagate, SendMetrics
from headgate_lab.simulator.run import SOUND, simulate
from headgate_lab.simulator.shape import MANAGER, Address
from headgate_lab.simulator.trace import Event, told


def test_the_same_seed_gives_the_same_run() -> None:
    one, other = (simulate(11, whole_trace=True) for _ in range(2))

    assert one.figures == other.figures
    assert list(map(str, one.trace)) == list(map(str, other.trace))


def test_a_run_does_not_depend_on_the_order_of_sets() -> None:
    """Another process salts its hashes otherwise, and must come to the same figures."""
    seeds = range(12)
    code = (
        "from headgate_lab.simulator.run import simulate\n"
        f"print([sorted(simulate(seed).figures.items()) for seed in {seeds}])"
    )
    elsewhere = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": "1"},
        check=True,
        capture_output=True,
        text=True,
    ).stdout

    assert elsewhere == f"{[sorted(simulate(seed).figures.items()) for seed in seeds]}\n"


def test_without_faults_nothing_is_lost_repeated_in_vain_or_crashed() -> None:
    figures = simulate(3, faults="none", topology="diamond").figures

    assert not any(
        figures[name] for name in ("frames_lost", "frames_doubled", "recoveries", "frames_fenced")
    )
    assert figures["tuples"] == 40


def test_a_short_trace_is_the_end_of_the_whole_one() -> None:
    short, whole = simulate(5), simulate(5, whole_trace=True)

    assert list(map(str, short.trace)) == list(map(str, whole.trace))[-40:]


def test_a_violation_is_told_with_its_place_and_story() -> None:
    reports = (simulate(s, parts=BROKEN["no-buffering"], whole_trace=True) for s in range(50))
    report = next(r for r in reports if r.tuple_id is not None)

    assert not report.ok
    assert f"tuple {report.tuple_id} met {report.operator}" in str(report.violation)
    story = report.story()
    assert {e.message.id for e in story if isinstance(e.message, Data)} == {report.tuple_id}
    assert len(story) < len(report.trace)


def test_an_unknown_topology_or_fault_profile_is_refused() -> None:
    with pytest.raises(DeclarationError, match="chain"):
        simulate(1, topology="ring")
    with pytest.raises(DeclarationError, match="network"):
        simulate(1, faults="plague")


def test_a_crash_strikes_at_its_message_and_only_once() -> None:
    faults = Faults(crashes=(Crash("Emit", 2, 0, 1.0),))
    strikes = [faults.strikes(kind, 1) is not None for kind in (Emit, Data, Emit, Emit)]

    assert strikes == [False, False, True, False]


def test_a_crash_may_wait_for_a_message_that_makes_its_process_act() -> None:
    faults = Faults(crashes=(Crash("Propagate", 1, 0, 1.0, acting=True),))
    strikes = [faults.strikes(Propagate, instructions) is not None for instructions in (0, 1, 7)]

    assert strikes == [False, False, True]


def test_every_mistake_says_what_it_is() -> None:
    assert all(parts.mistake for parts in {**BROKEN, **VARIANTS}.values())
    assert SOUND.mistake == ""


@pytest.mark.parametrize(
    ("message", "line"),
    [
        (Propagate(2), "PROPAGATE plan=2"),
        (SendMetrics(2, {}), "SEND_METRICS plan=2"),
        (Emit(), "EMIT"),
    ],
)
def test_events_are_told_in_the_papers_words(message: object, line: str) -> None:
    assert told(message) == line
    assert str(Event(1.5, MANAGER, Address("A", 1), message)).endswith(f"manager -> A1     {line}")


@pytest.mark.parametrize("planner", ["headgate", "online", "hash"])
def test_a_run_with_the_real_manager_is_repeated_by_its_seed(planner: str) -> None:
    first, again = (simulate(11, planner=planner, whole_trace=True) for _ in range(2))

    assert first.ok
    assert first.figures == again.figures
    assert [str(event) for event in first.trace] == [str(event) for event in again.trace]


def test_a_planner_nobody_knows_is_named() -> None:
    with pytest.raises(DeclarationError, match="there are headgate, hash"):
        simulate(1, planner="oracle")
