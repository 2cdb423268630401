"""What reaches a user's terminal beside the error itself: no stacks of Java's."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from tests.spark.programs.quiet_driver import FAILURES, STOPS

PROGRAM = Path(__file__).parent / "programs" / "quiet_driver.py"
STACK = re.compile(r"^\s+at \S+\(|^Traceback|StackOverflow|^Caused by:|^\s+File \"", re.MULTILINE)


def test_flows_that_stop_or_fail_print_no_stack_of_sparks(tmp_path: Path) -> None:
    """A stop in the middle of an epoch printed a thousand lines, an error a hundred."""
    command = [sys.executable, str(PROGRAM), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr[-3000:]
    parts = re.split(r"^=== (.*)\n", done.stderr, flags=re.MULTILINE)[1:]
    told = dict(zip(parts[::2], parts[1::2], strict=True))
    assert list(told) == [*STOPS, *FAILURES]
    for name, text in told.items():
        assert not STACK.search(text), f"{name}: {text[:2000]}"
    for name in FAILURES:
        assert told[name].count("ERROR") == 1, "one line in Spark's log"
    update, sink = (json.loads(line) for line in done.stdout.splitlines())
    assert re.fullmatch(r"quiet_driver.py:\d+ in broken_update: return 1, .*0}\]", update["where"])
    assert re.fullmatch(r"quiet_driver.py:\d+ in broken_sink: frame.write.jdbc.*", sink["where"])
    for error in (update, sink):
        assert error["where"] in error["shown"]
        assert "py4j/" not in error["shown"] and not re.search(r"\tat ", error["shown"])
        assert error["shown"].count("Traceback") == 1
