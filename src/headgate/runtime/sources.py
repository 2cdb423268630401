"""Turn a flow's sources into the one DataFrame that Spark streams.

One source is passed as it is, cut to the columns that are needed. Several are tagged and unioned,
each in a struct column of its own, so they may differ in every column. Checkpoints of formats 2 and
3 may have one source more, a slow rate source as a tick; it has to stay in its place.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from headgate.errors import DeclarationError
from headgate.runtime.worker import SOURCE_TAG
from headgate.slot.program import Program
from headgate.topology.graph import FlowGraph, Node
from headgate.topology.reader import Reader
from headgate.topology.schema import from_spark_json

TICK = -1  # the tag of rows that only made time pass


@dataclass(frozen=True)
class Input:
    """What the engine reads: a frame, whether it streams, whether rows carry a source tag."""

    frame: DataFrame
    streaming: bool
    tagged: bool
    old_tick: bool = False


def read_sources(
    spark: SparkSession,
    graph: FlowGraph,
    program: Program,
    *,
    old_tick: bool = False,
    rows_per_epoch: int | None = None,
) -> Input:
    """The frame of all sources; checks that each is what the declaration says.

    Sources that are functions of two arguments (without defaults) are told how many rows an epoch
    should have, in all sources together, or None.
    """
    frames = [_frame(spark, node, rows_per_epoch) for node in graph.of_kind("source")]
    kinds = {frame.isStreaming for frame in frames}
    if len(kinds) > 1:
        raise DeclarationError("a flow's sources must be all streaming or all batch DataFrames")
    streaming = kinds.pop()
    chosen = [
        _cut(frame, program.node_schema[node.id].names)
        for frame, node in zip(frames, program.sources, strict=True)
    ]
    ticking = old_tick and streaming
    if len(chosen) == 1 and not ticking:
        return Input(chosen[0], streaming, tagged=False)
    tagged = [_tag(frame, number, chosen) for number, frame in enumerate(chosen)]
    if ticking:
        beat = spark.readStream.format("rate").option("rowsPerSecond", 1).load()
        tagged.append(beat.select(*_columns(TICK, chosen)))
    return Input(reduce(DataFrame.union, tagged), streaming, tagged=True, old_tick=ticking)


def takes_rows(graph: FlowGraph) -> bool:
    """Can any source be told how many rows an epoch should have?

    A function of two arguments can, whatever it makes of it. A `Reader` knows.
    """
    given = [node.spec.frame for node in graph.of_kind("source")]
    return any(g.takes_rows if isinstance(g, Reader) else _is_told_rows(g) for g in given)


def _is_told_rows(given: Any) -> bool:
    """Is it called with a number of rows?"""
    if not callable(given) or hasattr(given, "isStreaming"):
        return False
    asked = [
        parameter
        for parameter in inspect.signature(given).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    return len(asked) > 1


def _cut(frame: DataFrame, columns: list[str]) -> DataFrame:
    """The frame with these columns alone: a few calls to the JVM, however many they are."""
    if frame.columns == columns:
        return frame
    fields = {field.name: field for field in frame.schema.fields}
    return frame.to(StructType([fields[name] for name in columns]))


def _tag(frame: DataFrame, number: int, frames: list[DataFrame]) -> DataFrame:
    return frame.select(*_columns(number, frames, F.struct("*")))


def _columns(number: int, frames: list[DataFrame], mine: Column | None = None) -> list[Column]:
    columns = [F.lit(number).cast("int").alias(SOURCE_TAG)]
    for i, frame in enumerate(frames):
        empty = F.lit(None).cast(frame.schema)
        columns.append((mine if i == number and mine is not None else empty).alias(f"source_{i}"))
    return columns


def _frame(spark: SparkSession, node: Node, rows_per_epoch: int | None) -> DataFrame:
    given = node.spec.frame
    if hasattr(given, "isStreaming"):
        frame: DataFrame = given
    elif _is_told_rows(given):
        frame = given(spark, rows_per_epoch)
    else:
        frame = given(spark)
    if not hasattr(frame, "isStreaming"):
        raise DeclarationError(
            f"source {node.name!r} gave a {type(frame).__name__}, not a DataFrame"
        )
    found = {field.name: field.type for field in from_spark_json(frame.schema.jsonValue())}
    for wanted in node.schema:
        if wanted.name not in found:
            raise DeclarationError(
                f"source {node.name!r} declares column {wanted.name!r}, but the DataFrame has "
                f"{', '.join(found)}",
                column=wanted.name,
            )
        if found[wanted.name] != wanted.type:
            raise DeclarationError(
                f"source {node.name!r}: column {wanted.name!r} is declared {wanted.type}, the "
                f"DataFrame has {found[wanted.name]}",
                column=wanted.name,
            )
    return frame
