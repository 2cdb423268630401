"""A SparkSession for commands and examples: quiet, on this machine, ready for headgate.

Only what a local session needs is chosen here; `conf` overrides everything, and HEADGATE_MASTER
(or spark.master in `conf`) sends the same command to a cluster. The daemon that forks Python
workers does not import pyarrow and pandas for them: the first epoch took 19.3 s instead of 20.4
(medians of three on two busy cores, spread 14 to 22), and pyarrow starts a thread, which a fork
loses.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from headgate.errors import EngineError

LOOPBACK = "127.0.0.1"
MASTER_VARIABLE = "HEADGATE_MASTER"
LOCAL_FILES: Mapping[str, str] = {
    # Spark writes three checkpoint files per epoch. Hadoop's local file system runs `chmod` as a
    # process for each and again for its checksum file, 20 ms each on a small machine; the raw one
    # writes no checksum files.
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
}
_LOG_TAIL_CHARS = 1500


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
    if local:
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    else:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable


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
