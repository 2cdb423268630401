"""SQL text and Spark Columns mean in a task what they mean in Spark: Spark itself is the oracle."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.spark.feeding import ONCE

import headgate as hg
from headgate.errors import DeclarationError
from headgate.topology.expressions import chosen, condition_of
from headgate.topology.schema import to_schema

COLUMNS = {
    "n": "int",
    "m": "bigint",
    "x": "double",
    "f": "float",
    "p": "decimal(10,2)",
    "t": "string",
    "u": "string",
    "b": "boolean",
    "at": "timestamp",
    "d": "date",
    "s": "struct<k: bigint, v: string>",
}
AT = dt.datetime(2026, 2, 28, 23, 59, 59, 999_999, dt.UTC)
NAN = float("nan")
ROWS: list[tuple[Any, ...]] = [
    (3, 10, 1.5, 0.5, Decimal("1.25"), "abc", " 12 ", True, AT, dt.date(2026, 1, 1), (1, "a_c")),
    (-3, -7, NAN, 2.0, Decimal("-0.75"), "a%c", "7", False, AT.replace(year=1969), None, (2, "")),
    (0, 0, 0.0, 0.0, Decimal(0), "", "-1", None, None, dt.date(1969, 12, 31), (None, "é😀x")),
    (None,) * len(COLUMNS),
    (2147483647, 1 << 40, -2.5, NAN, Decimal("9.99"), "É\nz", "0", True, AT, dt.date(2024, 2, 29),
     None),
]  # fmt: skip
SAME = r"""
n > 1; n + 1L; n + m * 2; n - x; m / 4; n / 0.5D; -5 % 3; n % 2; m % 3; pmod(m, 3); m div 3; -m
abs(m); n + f; f > 0.3; f = n; x > 1; x >= 1; x < 1; x <= 1; x = x; x <> 1; 1 < x; x > f; x <= f
x between -1 and 2; m * 0.9; n * 1.50; p + n; p * 2; p > 1; p = 1.25; p > x; round(x); sqrt(m)
power(x, 2); pow(x, 0.5); greatest(n, m); least(m, 3, n); isnan(x); nullif(n, 3); ln(m); exp(f)
b; not b; b and n > 0; b or n > 0; b = true; b is true; b is not false; t is null; n is not null
n <=> null; n <=> 3; x <=> x; n is distinct from 3; n in (1, 3, 0); n not in (1, 3); n in (3, null)
n not in (3, null); m in (n, 10); x in (1.5, 0); t in ('abc'); t not in ('abc', '')
n between 0 and 3; n not between 0 and 3; not n between 0 and 3; not n = 3; not n = 3 and b
b or n = 3 and m = 10; n % 7 + 2 * 3 - 1; (n % 7 + 2) * 3; - n + 1; n == 3; n != 3; not not b
case when n > 0 then 'a' when n < 0 then 'b' end; case n when 3 then 1 else 2L end
case when m <> 0 then 10 / m else -1D end; if(n > 2000, null, n + 1); n < 2000 and n + 1 > 0
m = 0 or 1 / m > 0; coalesce(n, 7); coalesce(null, m, 1); ifnull(t, 'none'); nvl(d, d)
coalesce(if(m = 0, 0D, null), 1 / m); case when x > 0 then cast(t is null as int) end
t like 'a%'; t like 'a\\%c'; t like 'a\%c'; t like '_b_'; t ilike 'A%'; t not like 'a%'
s.v like 'a\_c'; t like 'a%z'; t like '%z'; t rlike '^a'; upper(t); lower(t); length(s.v); length(t)
trim(u); ltrim(u); rtrim(u); t || '-' || u; concat(t, n); substring(t, 2); substr(s.v, 1, 2)
substr(t, 0, 1); left(t, 2); replace(t, 'b', 'xx'); startswith(t, 'a'); endswith(t, 'c')
contains(t, 'b'); t > 'ab'; t = "abc"; 'it\'s'; 'it''s'; 'a\tb'; "a 'b'"; t = u; s.k; s['v']; S.K
N + 1L; `n`; at > '2026-02-01'; at = '2026-02-28 23:59:59.999999'; at is null
at >= timestamp '2026-01-01 00:00:00Z'; d = '2026-01-01'; d > date '2000-01-01'
at + interval 1 hour; at - interval '1 day'; at + interval 90 seconds; year(at); quarter(d)
month(at); day(d); dayofmonth(at); dayofyear(d); dayofweek(d); weekofyear(d); hour(at); minute(at)
second(at); date(at); to_date(at); date_trunc('hour', at); date_trunc('week', at)
date_trunc('month', at); unix_seconds(at); unix_millis(at); unix_micros(at)
timestamp_seconds(m % 99); timestamp_millis(m % 99); timestamp_micros(m)
cast(n as bigint); cast(m as double); cast(u as int)
cast(u as double); cast(n as string); cast(b as int); cast(b as string); cast(d as string)
cast(at as date); cast(at as bigint); cast(p as double); cast(n as decimal(12, 2))
cast(1.7D as int); cast(null as bigint); cast(n as float); 1; 3000000000; 1.5; 1e3; 2L; -2147483648
true; 7Y + n % 3
ceil(cast(n as double)); floor(cast(n as double) / 2); cast('2026-01-01' as date)
"""
TEXTS = [text.strip() for line in SAME.strip().splitlines() for text in line.split(";")]


@pytest.fixture(scope="module")
def table(spark: SparkSession) -> DataFrame:
    ddl = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
    return spark.createDataFrame(ROWS, schema=ddl).coalesce(1)


def ours(table: DataFrame, expressions: Sequence[Any]) -> pa.Table:
    """The same expressions, run as a task runs them."""
    rows = table.toArrow().combine_chunks().to_batches()[0]
    named = {f"c{i}": expression for i, expression in enumerate(expressions)}
    schema = to_schema(table.schema)
    made = chosen(schema, (), named, "select")
    return pa.Table.from_batches([made(rows.cast(schema))])


def differences(table: DataFrame, given: list[Any], in_spark: list[Column]) -> list[str]:
    """Of which expressions a task makes other values, or another type, than Spark."""
    wanted = table.select(*(column.alias(f"c{i}") for i, column in enumerate(in_spark))).toArrow()
    return [
        f"{text}: {f.type} {f.to_pylist()}, in Spark {w.type} {w.to_pylist()}"
        for text, f, w in zip(given, ours(table, given).columns, wanted.columns, strict=True)
        if repr(f.to_pylist()) != repr(w.to_pylist()) or f.type != w.type
    ]


def test_sql_text_means_what_it_means_in_spark(table: DataFrame) -> None:
    assert differences(table, TEXTS, [F.expr(text) for text in TEXTS]) == []


def test_a_spark_column_means_what_it_means_in_spark(table: DataFrame) -> None:
    col = F.col
    columns = [
        (col("m") + 1 > 2) & col("t").isNotNull() | ~col("b"),
        F.when(col("n") > 1, "x").when(col("m") < 0, "y'z\\").otherwise(col("t")),
        F.when(col("n") > 1, 10**12),
        col("m").cast("double") / 3,
        col("n").isin(1, 3),
        col("at") >= dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC),
        col("d") == dt.date(2026, 1, 1),
        col("at") + F.expr("interval 1 hour"),
        col("s.k") - col("s")["k"],
        ~col("n").between(-3, 1),
        col("t").like("a%") | col("t").startswith("É"),
        F.substring("t", 1, 2),
        -col("n") % 7,
        F.coalesce("n", F.lit(0)),
        F.upper(col("t")),
        F.date_trunc("hour", "at"),
        col("x").eqNullSafe(1.5),
        F.expr("m * 2 + n"),
        col("p") * 2,
        F.lit(None).cast("bigint"),
        F.concat("t", F.lit("-"), "u"),
    ]

    assert differences(table, columns, columns) == []


@pytest.mark.parametrize("which", ["rand", "window", "udf", "sum", "array"])
def test_a_spark_column_that_only_spark_can_run_is_refused(table: DataFrame, which: str) -> None:
    column = {
        "rand": lambda: F.rand() > 0.5,
        "window": lambda: F.window("at", "1 hour").isNotNull(),
        "udf": lambda: F.udf(lambda n: n > 1, "boolean")("n"),
        "sum": lambda: F.sum("n") > 1,
        "array": lambda: F.array("n")[0] > 1,
    }[which]()

    with pytest.raises(DeclarationError, match=r"^cheap: Column.*apply it to the DataFrame before"):
        condition_of(column, to_schema(table.schema), "cheap")


def test_a_column_that_goes_by_another_time_zone_is_refused(
    spark: SparkSession, table: DataFrame
) -> None:
    spark.conf.set("spark.sql.session.timeZone", "Europe/Vienna")
    try:
        with pytest.raises(DeclarationError, match=r"session's time zone, Europe/Vienna"):
            condition_of(F.hour("at") > 3, to_schema(table.schema), "late")
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


def test_expressions_run_in_a_flow_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    source = tmp_path / "in"
    spark.range(100).selectExpr("id", "id % 3 as k", "'unread' as t").write.parquet(str(source))
    flow = hg.Flow("expressions")
    rows = flow.source(hg.Files(str(source)), name="rows")
    kept = rows.filter(F.col("id") >= 10).with_columns(twice="id * 2").filter("k <> 0")
    kept.key_by("k").process(hg.Sum("twice"), name="total").to_memory("out")

    query = flow.start(spark, checkpoint=tmp_path / "checkpoint", slots=2, trigger=ONCE)
    query.awaitTermination()

    wanted = {k: sum(2 * i for i in range(10, 100) if i % 3 == k) for k in (1, 2)}
    assert {row["k"]: row["sum"] for row in query.rows("out")} == wanted
