"""What reaches a user's terminal beside the error itself: no stacks of Java's."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.spark.programs.quiet_driver import STOPS

PROGRAM = Path(__file__).parent / "programs" / "quiet_driver.py"
STACK = re.compile(r"^\s+at \S+\(|^Traceback|StackOverflow|^Caused by:|^\s+File \"", re.MULTILINE)


def test_no_stack_is_printed_when_flows_are_stopped(tmp_path: Path) -> None:
    """A stop in the middle of an epoch printed a thousand lines of a StackOverflowError."""
    command = [sys.executable, str(PROGRAM), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr[-3000:]
    parts = re.split(r"^=== (.*)\n", done.stderr, flags=re.MULTILINE)[1:]
    told = dict(zip(parts[::2], parts[1::2], strict=True))
    assert list(told) == list(STOPS)
    for name, text in told.items():
        assert not STACK.search(text), f"stopped {name}: {text[:2000]}"
