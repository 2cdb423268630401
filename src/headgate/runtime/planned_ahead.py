"""The coming epoch's job, planned by Spark while this epoch is committed.

Where tasks read files, the frame that an epoch's job runs over is the same every time, and only a
new plan of it is needed, so that its shuffles are not those of the last epoch. Nothing in that plan
knows of the epoch: what is to be done travels as a property of the job. So it can be made ahead.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from pyspark.sql import DataFrame


class PlannedAhead:
    """One frame at most, planned in a thread of its own."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "headgate-ahead")
        self._next: tuple[DataFrame, Future[DataFrame]] | None = None

    def begin(self, declared: DataFrame) -> None:
        """Plan this frame once more."""
        self._next = declared, self._thread.submit(_planned, declared)

    def take(self, declared: DataFrame) -> DataFrame:
        """The frame as it was planned ahead, or as Spark will plan it now."""
        ahead, self._next = self._next, None
        if ahead is not None and ahead[0] is declared and ahead[1].exception() is None:
            return ahead[1].result()
        return again(declared)

    def close(self) -> None:
        self._next = None
        self._thread.shutdown(wait=False, cancel_futures=True)


def again(declared: DataFrame) -> DataFrame:
    """The same rows by a new plan."""
    return declared.alias("epoch")


def _planned(declared: DataFrame) -> DataFrame:
    frame = again(declared)
    java_frame: Any = frame._jdf
    java_frame.queryExecution().executedPlan()
    return frame
