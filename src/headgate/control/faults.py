"""Named points of the commit path at which a test can kill the driver.

`reach` costs a dictionary look-up and does nothing unless the environment names the point, as
HEADGATE_CRASH_AT="manifest-written@3". Tests step through all of `CRASH_POINTS`.
"""

from __future__ import annotations

import os
import signal

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


def reach(point: str, epoch: int) -> None:
    """Die here, by SIGKILL, if the environment says so."""
    if os.environ.get(VARIABLE) == f"{point}@{epoch}":
        os.kill(os.getpid(), signal.SIGKILL)
