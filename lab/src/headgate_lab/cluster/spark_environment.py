"""The environment that makes a Spark process belong to a host with an address and a folder."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import headgate
from headgate_lab.cluster.namespaces import ClusterError

_LAB = Path(__file__).parent


def spark_home() -> Path:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ClusterError("pyspark is not installed")
    return Path(spec.origin).parent


def environment_on(folder: Path, address: str) -> dict[str, str]:
    """Our own environment without Spark's, plus what is true on that host alone."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("SPARK_", "PYSPARK"))}
    return inherited | {
        "SPARK_HOME": str(spark_home()),
        # It opens the class path. Where it is not there, that is the path of any JVM of this Spark,
        # and they can share an archive of its classes.
        "SPARK_CONF_DIR": str(folder / "no-settings"),
        "SPARK_LOCAL_IP": address,
        "SPARK_LOCAL_HOSTNAME": address,  # register with it: nobody resolves names here
        "SPARK_LOCAL_DIRS": str(folder),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        "TMPDIR": str(folder),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(_source_path()),
    }


def _source_path() -> list[str]:
    """Where workers find both packages when not installed, then the caller's own path."""
    sources = [str(Path(home).resolve().parents[1]) for home in (_LAB, headgate.__file__)]
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return [*sources, *(entry for entry in inherited if entry and entry not in sources)]
