"""A rival that stays warm answers again after it was late or fell over."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate_lab.baselines.answering import Answering
from headgate_lab.baselines.result import RivalUnavailable

RIVAL = """
import sys, threading
asked = 0
for line in sys.stdin:
    asked += 1
    if line == "wait\\n":
        threading.Event().wait()
    if line == "fall\\n":
        sys.exit(3)
    print("noise")
    print("TOLD", "ERROR no such query" if line == "err\\n" else asked, flush=True)
"""


@pytest.fixture
def rival(tmp_path: Path) -> Iterator[Answering]:
    command = [sys.executable, "-c", RIVAL]
    answering = Answering("it", command, tmp_path / "log", longest_s=1.5)
    yield answering
    answering.close()


def test_it_stays_warm(rival: Answering) -> None:
    assert [rival.ask("a"), rival.ask("b")] == ["1", "2"]


@pytest.mark.parametrize(
    ("line", "why"), [("wait", "not done in 2 s"), ("fall", "process ended"), ("err", "no such")]
)
def test_what_goes_wrong_is_told_and_the_next_question_is_answered(
    rival: Answering, line: str, why: str
) -> None:
    rival.ask("a")
    with pytest.raises(RivalUnavailable, match=why):
        rival.ask(line)
    assert rival.ask("b") == ("3" if line == "err" else "1")
