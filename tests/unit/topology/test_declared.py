"""What a declaration refuses, and that the error says what to write instead."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import headgate as hg
from headgate.errors import DeclarationError, EngineError, NameClash, SchemaMismatch, UnknownColumn
from headgate.testing import ListSource, run
from headgate.topology.stream import Stream


def rows(schema: Any = "k bigint, v string, t timestamp", **options: Any) -> Stream:
    return hg.Flow("f").source(ListSource(schema, []), **options)


class Nothing(hg.StatefulOperator):
    """Declares nothing."""


class PlainSchema(Nothing):
    def state_fields(self, rows: pa.Schema, key: Any) -> Any:
        return pa.schema({"a": pa.int64()})


class Nested(Nothing):
    def state_fields(self, rows: pa.Schema, key: Any) -> hg.StateFields:
        return hg.StateFields(pa.schema({"a": pa.list_(pa.struct({"q": pa.int64()}))}))

    def output_schema(self, rows: pa.Schema, key: Any) -> pa.Schema:
        return rows


class TextSchema(Nothing):
    def state_fields(self, rows: pa.Schema, key: Any) -> hg.StateFields:
        return hg.StateFields(pa.schema({"a": pa.int64()}))

    def output_schema(self, rows: pa.Schema, key: Any) -> Any:
        return "k bigint"


class SparkColumn:
    """Prints as a column of PySpark does."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return f"Column<'{self.text}'>"

    def __bool__(self) -> bool:
        raise ValueError("CANNOT_CONVERT_COLUMN_INTO_BOOL")

    def __eq__(self, _: object) -> Any:
        return self

    __hash__ = object.__hash__


def keyed(operator: Any) -> Stream:
    return rows().key_by("k").process(operator)


def window_without_times() -> object:
    counted = keyed(hg.Count(window=hg.Tumbling("1 minute", time="t")))
    return counted.flow.graph()


WRONG: dict[str, tuple[type[DeclarationError], str, Callable[[], object]]] = {
    "a class": (DeclarationError, r"Count\(\.\.\.\)", lambda: keyed(hg.Count)),
    "a function": (DeclarationError, r"hg\.Update", lambda: keyed(lambda key, rows, state: None)),
    "no operator": (DeclarationError, "stateful operator", lambda: keyed(17)),
    "a window as text": (
        DeclarationError,
        "time='ts'",
        lambda: hg.Count(window="1 minute"),  # type: ignore[arg-type]
    ),
    "TopK's window as text": (
        DeclarationError,
        "time='ts'",
        lambda: hg.TopK("v", 2, "1 minute"),  # type: ignore[arg-type]
    ),
    "no state_fields": (DeclarationError, "state_fields", lambda: keyed(Nothing())),
    "state_fields of a schema": (DeclarationError, "StateFields", lambda: keyed(PlainSchema())),
    "output_schema of text": (DeclarationError, "output_schema", lambda: keyed(TextSchema())),
    "state that cannot be held": (SchemaMismatch, "Nested.*'a'", lambda: keyed(Nested())),
    "no ttl": (DeclarationError, "ttl of Count", lambda: keyed(hg.Count(ttl=timedelta(0)))),
    "a negative ttl": (
        DeclarationError,
        "ttl of Count",
        lambda: keyed(hg.Count(ttl=-timedelta(seconds=5))),
    ),
    "a ttl that is no duration": (
        DeclarationError,
        "ttl of Last",
        lambda: keyed(hg.Last("v", ttl="soon")),
    ),
    "a window without event times": (DeclarationError, "event_time=", window_without_times),
    "a list of keys": (DeclarationError, "one by one", lambda: rows().key_by(["k", "v"])),
    "an expression as key": (
        DeclarationError,
        r"with_columns\(\.\.\.\)",
        lambda: rows().key_by(SparkColumn("(k + 1)")),
    ),
    "a key twice": (NameClash, "'k' twice", lambda: rows().key_by("k", "k")),
    "select twice": (NameClash, "'k' twice", lambda: rows().select("k", "k")),
    "select nothing": (DeclarationError, "at least one", lambda: rows().select()),
    "equal columns": (NameClash, "'a' and 'a'", lambda: rows(pa.schema([("a", pa.int8())] * 2))),
    "columns that differ in case": (NameClash, "'a' and 'A'", lambda: rows("a int, A int")),
    "a map to equal columns": (NameClash, "rename", lambda: rows().map(print, "a int, a int")),
    "a map to no column": (SchemaMismatch, "no columns", lambda: rows().map(print, "")),
    "a schema that is none": (SchemaMismatch, "no schema", lambda: rows().map(print, 17)),  # type: ignore[arg-type]
    "an unknown type": (SchemaMismatch, "column 'b'", lambda: rows("a int, b struct<q:int>")),
    "a filter on an unknown column": (
        UnknownColumn,
        "nope",
        lambda: rows().filter(pc.field("nope") > 1),
    ),
    "a filter that is no condition": (
        SchemaMismatch,
        "no condition",
        lambda: rows().filter(pc.field("k")),
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_it_is_refused_with_what_to_write(case: str) -> None:
    kind, says, declare = WRONG[case]

    with pytest.raises(kind, match=says):
        declare()


COUNTS: dict[str, Callable[[Any], object]] = {
    "k of TopK": lambda n: hg.TopK("v", n, hg.Tumbling("1 minute", time="t")),
    "n of MeanOfLast": lambda n: hg.MeanOfLast("k", n),
    "idle_after": lambda n: rows(idle_after=n),
    "batched": lambda n: rows().key_by("k").batched(n),
    "rows_per_file": lambda n: hg.Reader("json", rows_per_file=n),
    "partitions=": lambda n: run(rows().flow, partitions=n),
}


@pytest.mark.parametrize("given", ["3", 2.5, 0, -1, True, [1]])
@pytest.mark.parametrize("what", COUNTS)
def test_what_is_counted_is_a_whole_number(what: str, given: Any) -> None:
    with pytest.raises(DeclarationError, match=f"{what}.*whole number, at least 1"):
        COUNTS[what](given)


@pytest.mark.parametrize("name", ["slots", "buckets", "keep_manifests"])
@pytest.mark.parametrize("given", ["2", 0, 1.5])
def test_settings_that_count_are_whole_numbers(name: str, given: Any) -> None:
    counts = rows().key_by("k").process(hg.Count())
    counts.discard()
    flow = counts.flow
    with pytest.raises(EngineError, match=f"{name}=.*whole number"):
        run(flow, **{name: given})


def test_numbers_of_numpy_are_numbers() -> None:
    two: Any = np.int64(2)
    flow = hg.Flow("f")
    given = flow.source(ListSource("k bigint", [[{"k": 3}]]), idle_after=two).key_by("k")
    given.batched(two).process(hg.MeanOfLast("k", two), name="mean").to_memory("out")

    done = run(flow, slots=two, partitions=two, keep_manifests=two)

    assert done.rows("out") == [{"k": 3, "mean": 3.0}]


def test_a_spark_column_that_is_a_name_is_that_name() -> None:
    assert rows().key_by(SparkColumn("k")).grouping.key == ("k",)
    assert rows().select(SparkColumn("v"), "k").schema.names == ["v", "k"]


def test_a_spark_schema_is_read_without_a_session() -> None:
    types = pytest.importorskip("pyspark.sql.types")
    fields = [types.StructField("k", types.LongType()), types.StructField("s", types.StringType())]

    assert rows().map(print, types.StructType(fields)).schema == pa.schema(
        {"k": pa.int64(), "s": pa.string()}
    )


def test_output_of_update_may_be_ddl() -> None:
    update = hg.Update(lambda key, rows, state: (state, None), output="k bigint")

    assert update.output == pa.schema({"k": pa.int64()})


def test_a_ttl_may_be_text() -> None:
    flow = hg.Flow("f")
    source = flow.source(ListSource("k bigint", [[{"k": 1}], [{"k": 1}]]))
    source.key_by("k").process(hg.Count(ttl="1 hour"), name="count").to_memory("out")

    assert [row["count"] for row in run(flow).rows("out")] == [1, 2]
