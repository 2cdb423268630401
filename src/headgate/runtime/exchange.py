"""Python stages on a DataFrame, built once and applied every epoch.

`DataFrame.mapInArrow` pickles its function and makes a new JVM function on every call: some 50
py4j round trips a level, and 14 more for every column. What it makes of the function does not
depend on the frame, so it is made once here and applied with one call. That uses two names that
PySpark keeps to itself (`_jdf.mapInArrow`, the eval type of `pandas_udf`), as it uses them there.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql.pandas.functions import pandas_udf
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType
from pyspark.util import PythonEvalType

from headgate.runtime.worker import Stage
from headgate.slot.batch_tuple import TUPLE_SCHEMA

TUPLE_TYPE: StructType = from_arrow_schema(TUPLE_SCHEMA)


def arrow_stage(function: Stage) -> Column:
    """A stage that turns rows of any frame into batch tuples.

    Spark sends a stage all columns of its frame, not those that it names, so it names none: to
    resolve 2,001 names took longer than the rest of the planning.
    """
    make: Any = pandas_udf
    udf = make(function, returnType=TUPLE_TYPE, functionType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    stage: Column = udf()
    return stage


def apply_stage(frame: DataFrame, stage: Column) -> DataFrame:
    """Run the stage on every partition of the frame."""
    java_frame: Any = frame._jdf
    java_stage: Any = stage._jc
    return DataFrame(java_frame.mapInArrow(java_stage, False, None), frame.sparkSession)
