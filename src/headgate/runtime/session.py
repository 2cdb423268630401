"""What Headgate sets up around a SparkSession: a quiet local one, its Hadoop client, its logs.

Only what a local session needs is chosen here; `conf` overrides everything, and HEADGATE_MASTER
(or spark.master in `conf`) sends the same command to a cluster.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from headgate.errors import EngineError, HeadgateError
from headgate.state import storage

LOOPBACK = "127.0.0.1"
MASTER_VARIABLE = "HEADGATE_MASTER"
LOCAL_FILES: Mapping[str, str] = {
    # Spark writes three checkpoint files per epoch. Hadoop's local file system runs `chmod` as a
    # process for each and again for its checksum file, 20 ms each on a small machine; the raw one
    # writes no checksum files.
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
}
_LOG_TAIL_CHARS = 1500  # of Spark's log, shown when it did not start
STOPPED_WITHIN_MS = 60_000  # a stop interrupts an epoch long before
LOGGED = "headgate"  # what a thread's log context says once we have logged its error


def local_session(
    app_name: str,
    *,
    cores: int | None = None,
    conf: Mapping[str, str] | None = None,
    log_file: Path | None = None,
) -> SparkSession:
    """The running session, or a new one on this machine (or where HEADGATE_MASTER says).

    `log_file` takes all that the JVM, its Python workers and Py4J write to standard error,
    warnings included; without it only errors are written, to this process's own.
    """
    if SparkContext._active_spark_context is not None:
        return SparkSession.builder.getOrCreate()
    settings = session_conf(app_name, cores=cores, conf=conf, quiet=log_file is None)
    _environment(is_local(settings["spark.master"]))
    spark_conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    try:
        if log_file is not None and SparkContext._gateway is None:
            log_file.parent.mkdir(parents=True, exist_ok=True)
            _log_py4j(log_file)
            with log_file.open("ab") as log:
                # Spark's own hook for this; it starts the JVM that the builder then finds.
                launch: Any = launch_gateway
                gateway = launch(spark_conf, {"stderr": log})
                SparkContext._ensure_initialized(gateway=gateway)
        spark = SparkSession.builder.config(conf=spark_conf).getOrCreate()
    except (PySparkException, OSError) as problem:
        raise EngineError(_why_not(problem, log_file)) from problem
    spark.sparkContext.setLogLevel(settings["spark.log.level"])
    return spark


def session_conf(
    app_name: str,
    *,
    cores: int | None = None,
    conf: Mapping[str, str] | None = None,
    quiet: bool = True,
) -> dict[str, str]:
    """The settings of `local_session`, weakest first: ours, HEADGATE_MASTER, then `conf`."""
    given = dict(conf or {})
    workers = "*" if cores is None else str(cores)
    master = given.get("spark.master") or os.environ.get(MASTER_VARIABLE) or f"local[{workers}]"
    chosen = {
        "spark.app.name": app_name,
        "spark.master": master,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR" if quiet else "WARN",
        "spark.sql.shuffle.partitions": str(cores or len(os.sched_getaffinity(0))),
        "spark.sql.catalogImplementation": "in-memory",
        # File sockets to the workers: a small three-stage job took 0.46-0.49 s instead of 0.61-0.62
        # over loopback TCP (medians of ten, two runs each, busy machine; the cause is not known).
        "spark.python.unix.domain.socket.enabled": "true",
    }
    if is_local(master):
        chosen |= {
            **LOCAL_FILES,
            "spark.driver.host": LOOPBACK,
            "spark.driver.bindAddress": LOOPBACK,
            "spark.driver.memory": "2g",
        }
    return chosen | given


def is_local(master: str) -> bool:
    return master.startswith("local")


def _environment(local: bool) -> None:
    """What the JVM inherits: this interpreter for Python workers, and a loopback address."""
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if local:
        os.environ["PYSPARK_PYTHON"] = sys.executable
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def _log_py4j(log_file: Path) -> None:
    """Py4J logs the trace of every error that crosses it, which its caller gets anyway."""
    logger = logging.getLogger("py4j")
    logger.addHandler(logging.FileHandler(log_file, delay=True))
    logger.propagate = False


def _why_not(problem: Exception, log_file: Path | None) -> str:
    text = "Spark did not start. It needs Java 17 or newer, on the PATH or as JAVA_HOME"
    if log_file is None or not log_file.exists():
        return f"{text}: {problem}"
    said = log_file.read_text(errors="replace")[-_LOG_TAIL_CHARS:].strip()
    return f"{text}. Its log ({log_file}) ends with:\n{said}" if said else f"{text}: {problem}"


def lend_hadoop_client(spark: SparkSession) -> None:
    """Let `Storage.create` use this session's client where pyarrow cannot create if absent.

    `FileContext.rename` without `OVERWRITE` is one request to the name node, which does it or says
    that the target exists. Spark's own checkpoints rely on the same call.
    """
    jvm: Any = spark.sparkContext._jvm
    conf = spark._jsc.hadoopConfiguration()
    hadoop = jvm.org.apache.hadoop.fs
    gateway: Any = spark.sparkContext._gateway
    no_options = gateway.new_array(getattr(hadoop, "Options$Rename"), 0)

    def rename_if_absent(old: str, new: str) -> bool:
        source, target = hadoop.Path(old), hadoop.Path(new)
        try:
            context = hadoop.FileContext.getFileContext(target.toUri(), conf)
            context.rename(source, target, no_options)
        except Py4JJavaError as problem:
            if problem.java_exception.getClass().getSimpleName() == "FileAlreadyExistsException":
                return False
            raise OSError(f"{new}: {problem.java_exception.toString()}") from problem
        return True

    storage.rename_if_absent = rename_if_absent


# --- the error that ends a flow is logged once ----------------------------------------------
# Spark and Py4J each log what an epoch's function raises, with the stacks of all they did to call
# it, some seventy lines, before the caller sees it. Both leave our own errors out, and only these:
# other queries, and a user's settings of logging, stay as they are.
class Interrupted(Exception):
    """What Spark hears of an epoch that a stop has interrupted, in the words it looks for.

    It finds them by a regular expression that recurses with every letter behind them: given Java's
    whole stack, its own overflows, and it prints a thousand lines.
    """

    def __str__(self) -> str:
        return (
            "py4j.protocol.Py4JJavaError: An error occurred while calling an epoch's function: "
            "java.lang.InterruptedException"
        )


def wait_for_interrupt(context: SparkContext) -> None:
    """Wait in Spark's own thread, where a stop interrupts it: Spark takes it for what it is."""
    jvm: Any = context._jvm
    try:
        jvm.java.lang.Thread.sleep(STOPPED_WITHIN_MS)
    except Py4JJavaError:
        raise Interrupted from None


@cache  # one filter, however many flows there are
def silence_py4j() -> None:
    """Keep Py4J from logging our errors that a callback raises; Spark gets them anyway."""
    ours = (HeadgateError, Interrupted)
    logging.getLogger("py4j.clientserver").addFilter(
        lambda record: not (record.exc_info and isinstance(record.exc_info[1], ours))
    )


def log_once(context: SparkContext, flow: str, problem: HeadgateError) -> None:
    """Log the error in one line, and nothing more from the thread of Spark's query.

    To be called in that thread, which ends with it. Does nothing where Spark does not use Log4j.
    """
    with suppress(Exception):
        jvm: Any = context._jvm
        log4j = jvm.org.apache.logging.log4j
        log4j.LogManager.getLogger("headgate").error(
            f"flow {flow!r} ended: {type(problem).__name__}: {problem}"
        )
        root = log4j.LogManager.getContext(False).getConfiguration().getRootLogger()
        if LOGGED not in str(root.getFilter()):
            gateway: Any = context._gateway
            pairs = gateway.new_array(log4j.core.util.KeyValuePair, 1)
            pairs[0] = log4j.core.util.KeyValuePair(LOGGED, LOGGED)
            results = log4j.core.Filter.Result
            filters = log4j.core.filter.ThreadContextMapFilter
            root.addFilter(filters.createFilter(pairs, "and", results.DENY, results.NEUTRAL))
        log4j.ThreadContext.put(LOGGED, LOGGED)
