"""Workers that cannot import what a flow needs: a way out instead of four attempts and a traceback.

Spark starts its Python workers with `PYSPARK_PYTHON`, or with whatever `python3` the path has: not
with the interpreter of the driver. A module that is missing there is missing in every attempt.
"""

from __future__ import annotations

import re
import sys

_MISSING = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")


def way_out(reason: str, worker_python: str, driver_python: str = sys.executable) -> str | None:
    """What to do about a job that failed for a missing module; None if the reason is another.

    Examples:
        >>> way_out("java.io.IOException: gone", "python3") is None
        True
    """
    found = _MISSING.findall(reason)
    if not found:
        return None
    module = found[-1]
    told = f"Spark's Python workers ({worker_python}) cannot import {module!r}. "
    if module.partition(".")[0] in ("headgate", "pyarrow", "numpy", "xxhash"):
        told += (
            "They must have headgate installed: set PYSPARK_PYTHON to an interpreter that has, "
            f"on this machine {driver_python}, before the session is made"
        )
    else:
        told += (
            "Install it for that interpreter (PYSPARK_PYTHON chooses another), or send your own "
            "modules along with spark.sparkContext.addPyFile(...)"
        )
    return told
