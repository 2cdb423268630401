"""Hadoop's own client, from Spark's JVM, for the one thing that pyarrow cannot do on HDFS.

`FileContext.rename` without `OVERWRITE` is one request to the name node, which does it or says that
the target exists. Spark's own checkpoints rely on the same call.
"""

from __future__ import annotations

from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from headgate.state import hadoop_files

EXISTS = "org.apache.hadoop.fs.FileAlreadyExistsException"


def lend_hadoop_client(spark: SparkSession) -> None:
    """Let `Storage.create` use this session's client where pyarrow cannot create if absent."""
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
            if problem.java_exception.getClass().getName() == EXISTS:
                return False
            raise OSError(f"{new}: {problem.java_exception.toString()}") from problem
        return True

    hadoop_files.rename_if_absent = rename_if_absent
