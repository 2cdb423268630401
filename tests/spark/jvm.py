"""JVMs of tests start cheaply: a quick compiler and collector, Spark's classes from an archive.

`python tests/spark/jvm.py` makes the archive (class data sharing) once for a .venv, from what a
small session loads. It more than halves what a JVM costs to start, and the tests start dozens. A
JVM that cannot use it, because Java or Spark has changed, goes on without.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
ARCHIVE = Path(sys.prefix) / f"spark-{version('pyspark')}.jsa"
SILENT = "-Xlog:cds=off -Xlog:cds+dynamic=off"  # else it tells on stdout that it goes without
QUICK_JVM = f"{QUICK} -XX:SharedArchiveFile={ARCHIVE} {SILENT}" if ARCHIVE.exists() else QUICK
DAEMONS = {"SPARK_DAEMON_JAVA_OPTS": QUICK_JVM}  # environment of a cluster: masters and workers

SESSION = """
import sys
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
spark = builder.config("spark.driver.extraJavaOptions", sys.argv[1]).getOrCreate()
spark.sparkContext.setLogLevel("OFF")
stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
stream = stream.repartition(2, "value").mapInArrow(lambda batches: batches, stream.schema)
query = stream.writeStream.foreachBatch(lambda frame, _: frame.toArrow())
query = query.option("checkpointLocation", sys.argv[2]).start()
while query.lastProgress is None or query.lastProgress["batchId"] < 1:
    query.awaitTermination(0.1)
query.stop()
spark.range(9).groupBy("id").count().write.parquet(sys.argv[2] + "/out")
jvm = spark.sparkContext._gateway.proc
spark.stop()
jvm.stdin.close()  # which ends it
jvm.wait()
"""


def make_archive() -> None:
    with tempfile.TemporaryDirectory(dir=ARCHIVE.parent) as folder:
        made = Path(folder) / "made.jsa"
        options = f"{QUICK} -XX:ArchiveClassesAtExit={made} {SILENT}"
        told = subprocess.run(
            [sys.executable, "-c", SESSION, options, folder],
            check=False,
            capture_output=True,
            text=True,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        )
        if made.exists():
            made.rename(ARCHIVE)
        else:
            print(f"no archive of Spark's classes: {told.stderr[-500:]}", file=sys.stderr)


if __name__ == "__main__" and not ARCHIVE.exists():
    make_archive()
