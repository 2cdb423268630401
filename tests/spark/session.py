"""Small Spark sessions for tests: one JVM per process, whose context can be exchanged.

Python's side of Spark keeps its JVM when a context is stopped, so a module that wants another
master stops the context and starts one on the same JVM, which takes a second and not ten.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping

from pyspark.sql import SparkSession
from tests.spark.jvm import QUICK_JVM

from headgate.runtime.session import LOCAL_FILES

SMALL_CONF = {
    **LOCAL_FILES,
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "768m",
    "spark.driver.extraJavaOptions": QUICK_JVM,
    "spark.executor.extraJavaOptions": QUICK_JVM,
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
}
LOCAL = "local[2]"
_FOLDER = tempfile.TemporaryDirectory(prefix="headgate-spark-", ignore_cleanup_errors=True)


def session_on(master: str, conf: Mapping[str, str] | None = None) -> SparkSession:
    """The session on this master: the active one if it fits, else a new context."""
    wanted = {**SMALL_CONF, **(conf or {})}
    active = SparkSession.getActiveSession()
    if active is not None:
        now = active.sparkContext
        same = now.master == master and not now._jsc.sc().isStopped()
        if same and all(now.getConf().get(name) == value for name, value in wanted.items()):
            return active
        active.stop()
    builder = SparkSession.builder.master(master).appName("headgate-tests")
    for name, value in wanted.items():
        builder = builder.config(name, value)
    builder = builder.config("spark.local.dir", _FOLDER.name)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    return session
