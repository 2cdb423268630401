"""Named points of the commit path at which a test can kill the driver, or pause it.

`reach` costs two dictionary look-ups and does nothing unless the environment names the point, as
HEADGATE_CRASH_AT="manifest-written@3" or HEADGATE_PAUSE_AT="manifest-written@3". Tests step
through all of `CRASH_POINTS`.
"""

from __future__ import annotations

import os
import signal
import threading

CRASH_POINTS = (
    "epoch-begun",
    "tables-saved",
    "planned",
    "tasks-done",
    "custody-checked",
    "manifest-written",
    "file-published",
    "sink-called",
    "sink-marked",
    "sinks-done",
    "journal-written",
    "files-collected",
)
VARIABLE = "HEADGATE_CRASH_AT"
PAUSE_VARIABLE = "HEADGATE_PAUSE_AT"


def reach(point: str, epoch: int) -> None:
    """Die here, by SIGKILL, or stop once until SIGCONT, if the environment says so."""
    for variable, number in ((VARIABLE, signal.SIGKILL), (PAUSE_VARIABLE, signal.SIGSTOP)):
        if os.environ.get(variable) == f"{point}@{epoch}":
            del os.environ[variable]
            # To this thread: if another one took it, this one would run on for a while.
            signal.pthread_kill(threading.get_ident(), number)
