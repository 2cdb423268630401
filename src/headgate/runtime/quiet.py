"""Tell the error that ends a flow once: as one line in Spark's log, and to whoever waits for it.

Spark and Py4J each log what comes out of an epoch's function with the stacks of all they did to
call it, some seventy lines, before the caller hears of it. Here both leave our own errors out, and
only these: other queries, and a user's settings of logging, stay as they are.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any

from pyspark import SparkContext

from headgate.errors import HeadgateError

TOLD = "headgate"  # what a thread's log context says once we have told its error


class _NotOurs(logging.Filter):
    def __init__(self, ours: tuple[type[Exception], ...]) -> None:
        super().__init__()
        self.ours = ours

    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], self.ours))


def hush_py4j(*ours: type[Exception]) -> None:
    """Py4J logs what a callback raises; Spark hears it anyway."""
    logger = logging.getLogger("py4j.clientserver")
    if not any(isinstance(known, _NotOurs) for known in logger.filters):
        logger.addFilter(_NotOurs((HeadgateError, *ours)))


def tell_once(context: SparkContext, flow: str, problem: HeadgateError) -> None:
    """Log the error, and nothing more from the thread of Spark's query, which ends with it.

    To be called in that thread. Does nothing where Spark does not log with Log4j.
    """
    with suppress(Exception):
        jvm: Any = context._jvm
        log4j = jvm.org.apache.logging.log4j
        log4j.LogManager.getLogger("headgate").error(
            f"flow {flow!r} ended: {type(problem).__name__}: {problem}"
        )
        root = log4j.LogManager.getContext(False).getConfiguration().getRootLogger()
        if TOLD not in str(root.getFilter()):
            gateway: Any = context._gateway
            pairs = gateway.new_array(log4j.core.util.KeyValuePair, 1)
            pairs[0] = log4j.core.util.KeyValuePair(TOLD, TOLD)
            results = log4j.core.Filter.Result
            filters = log4j.core.filter.ThreadContextMapFilter
            root.addFilter(filters.createFilter(pairs, "and", results.DENY, results.NEUTRAL))
        log4j.ThreadContext.put(TOLD, TOLD)
