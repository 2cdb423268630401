"""What is analysed: the operators that a user names, the data, and the partitions of its source.

Every error says what to do: which columns there are, which option is missing, or what Spark said
about a damaged file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.arrays import I32, I64, U64
from headgate.errors import (
    CyclicFlow,
    DeclarationError,
    HeadgateError,
    NameClash,
    SchemaMismatch,
    UnknownColumn,
    UnknownSlot,
)
from headgate.offline.pairs import Shape, hashes_of
from headgate.routing.hashing import is_hashable
from headgate.routing.table import RoutingTable, hash_table
from headgate.slot.statistics import key_text
from headgate.topology.schema import from_spark_json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MOST_PARTITIONS = 10_000  # beyond any real source: more means that a row id was given
_FORMATS = {kind: kind for kind in ("parquet", "csv", "json", "orc")}
_FORMATS |= {"pq": "parquet", "jsonl": "json", "ndjson": "json"}
_COMPRESSED = {"gz", "bz2", "zst", "zstd", "xz", "lz4", "snappy", "deflate"}


# --- operators --------------------------------------------------------------------------------
def shape_of(
    keys: Sequence[str],
    operators: Sequence[str] = (),
    edges: Sequence[str] = (),
    source: str | None = None,
) -> Shape:
    """What to analyse: `keys` as "column" or "column,column", one per operator.

    Operators are named as given, or after their columns. `edges` are "producer:consumer"; without
    any, each operator feeds the next. `source` names the source's partitions, as a key does.
    """
    columns = tuple(_columns(key, "a --key") for key in keys)
    if len(columns) < 2:
        raise DeclarationError("an analysis places pairs: give --key at least twice")
    if operators and len(operators) != len(keys):
        raise DeclarationError(
            f"{len(operators)} operators for {len(keys)} keys: give --operator once per --key, or "
            "not at all"
        )
    made_up = (re.sub(r"[^A-Za-z0-9._-]", "_", "_".join(key)) for key in columns)
    names = tuple(operators) or tuple(made_up)
    if len(set(names)) < len(names):
        raise NameClash(
            f"two operators have the same name ({', '.join(names)}); name them with --operator, as "
            "the flow does"
        )
    for name in names:
        if not re.fullmatch(r"[A-Za-z0-9._-]+", name):
            raise DeclarationError(
                f"operator name {name!r}: use letters, digits, '.', '_' and '-', as in the flow"
            )
    partition = () if source is None else _columns(source, "--source")
    return Shape(names, columns, _edges(names, edges), partition)


def _columns(text: str, option: str) -> tuple[str, ...]:
    columns = tuple(part.strip() for part in text.split(","))
    if not all(columns):
        raise DeclarationError(f"{option} is empty; write 'column' or 'column,column'")
    return columns


def _edges(names: tuple[str, ...], given: Sequence[str]) -> tuple[tuple[int, int], ...]:
    if not given:
        return tuple((i, i + 1) for i in range(len(names) - 1))
    edges: dict[tuple[int, int], None] = {}
    order: TopologicalSorter[str] = TopologicalSorter()
    for text in given:
        ends = text.split(":")
        if len(ends) != 2 or not set(ends) <= set(names):
            raise DeclarationError(
                f"--edge {text!r}: write PRODUCER:CONSUMER with operators of {', '.join(names)}"
            )
        edges[names.index(ends[0]), names.index(ends[1])] = None
        order.add(ends[1], ends[0])
    try:
        order.prepare()
    except CycleError as problem:
        round_trip = " -> ".join(reversed(problem.args[1]))
        raise CyclicFlow(f"the edges feed back into themselves: {round_trip}") from None
    lonely = [name for i, name in enumerate(names) if not any(i in edge for edge in edges)]
    if lonely:
        raise DeclarationError(f"{', '.join(lonely)}: on no --edge; give all edges or none")
    return tuple(edges)


# --- data -------------------------------------------------------------------------------------
def format_of(data: str) -> str:
    """The format by file name; that of a folder is the format of its first file."""
    place = Path(data)
    if "://" not in data and not re.search(r"[*?\[{]", data):
        if not place.exists():
            raise HeadgateError(f"there is no {data} (from {Path.cwd()})", data=data)
        if place.is_dir():
            place = _first_file(place)
    suffixes = place.name.lower().split(".")[1:]
    while suffixes and suffixes[-1] in _COMPRESSED:
        suffixes.pop()
    found = _FORMATS.get(suffixes[-1]) if suffixes else None
    if found is None:
        raise HeadgateError(
            f"the name of {place} does not tell its format; give --format parquet, csv, json or "
            "another that Spark reads",
            data=data,
        )
    return found


def _first_file(folder: Path) -> Path:
    for path in sorted(folder.rglob("*")):
        hidden = any(part[0] in "._" for part in path.relative_to(folder).parts)
        if path.is_file() and not hidden:
            return path
    raise HeadgateError(f"there is no file in {folder}", data=str(folder))


def read_data(spark: SparkSession, data: str, form: str, schema: str | None) -> DataFrame:
    """The data as a batch DataFrame; `schema` is a DDL string, as a source declares it."""
    reader = spark.read.format(form)
    if schema is not None:
        reader = reader.schema(schema)
    if form == "csv":
        reader = reader.option("header", True).option("inferSchema", schema is None)
    return reader.load(data)


def check_columns(frame: DataFrame, shape: Shape, data: str) -> dict[str, str]:
    """Refuse key columns that are missing or cannot be keys; returns their types."""
    missing = [column for column in shape.columns if column not in frame.columns]
    if missing:
        raise UnknownColumn(
            f"{data} has no column {', '.join(map(repr, missing))}; its columns are "
            f"{', '.join(frame.columns)}",
            column=missing[0],
        )
    fields = {field.name: field for field in frame.schema.fields}
    types = {}
    for column in shape.columns:
        struct = {"type": "struct", "fields": [fields[column].jsonValue()]}
        kind = from_spark_json(struct).field(0).type
        if not is_hashable(kind):
            raise SchemaMismatch(
                f"column {column!r} is {kind}, which cannot be a key; key by its parts",
                column=column,
            )
        types[column] = fields[column].dataType.simpleString()
    return types


@contextmanager
def spark_errors(data: str, form: str) -> Iterator[None]:
    """Turn Spark's errors into one sentence: the last cause, or else the first line."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as problem:
        text = str(problem).strip()  # those of Spark's parser begin with an empty line
        causes = re.findall(r"Caused by: [\w.$]+: (.+)", text)[-1:]
        reason = (*causes, *text.splitlines(), "no reason given")[0].strip()
        raise HeadgateError(f"Spark cannot read {data} as {form}: {reason[:400]}", data=data) from (
            problem
        )


# --- the source -------------------------------------------------------------------------------
@dataclass(frozen=True)
class Source:
    """The partitions of a source, in order, and the slot that each is at."""

    texts: tuple[str, ...]
    h: U64
    slot: I32
    slots: int

    @property
    def table(self) -> RoutingTable:
        """Partitions as pinned keys, so that a first hop is counted as any other."""
        return hash_table(self.slots).pin_hashes(self.h, self.slot)

    @property
    def slot_by_text(self) -> list[tuple[str, int]]:
        return list(zip(self.texts, self.slot.tolist(), strict=True))


def find_partitions(
    frame: DataFrame, columns: tuple[str, ...], slot_column: str | None, data: str
) -> pa.Table:
    """The distinct partitions in the data, with their slots if a column has them; a Spark job."""
    if slot_column is not None and slot_column not in frame.columns:
        raise UnknownColumn(
            f"{data} has no column {slot_column!r} (--source-slot); its columns are "
            f"{', '.join(frame.columns)}",
            column=slot_column,
        )
    wanted = dict.fromkeys((*columns, *([slot_column] if slot_column is not None else [])))
    found = frame.select(*[f"`{column}`" for column in wanted]).distinct()
    return found.limit(MOST_PARTITIONS + 1).toArrow()


def source_of(
    columns: tuple[str, ...], slot_column: str | None, found: pa.Table, slots: int
) -> Source:
    """Partitions sorted by value; the i-th at slot i mod n, or where its column says."""
    if found.num_rows > MOST_PARTITIONS:
        raise HeadgateError(
            f"--source {','.join(columns)} has more than {MOST_PARTITIONS:,} distinct values; name "
            "a column that says which partition of the source a row comes from, not which row it is"
        )
    found = found.sort_by([(column, "ascending") for column in columns])
    (h,) = hashes_of(found, [columns])
    texts = tuple(key_text(list(row.values())) for row in found.select(columns).to_pylist())
    if slot_column is None:
        slot = np.arange(len(texts)) % slots
    else:
        slot = _given_slots(found[slot_column], texts, h, slot_column, slots)
    return Source(texts, h, slot.astype(np.int32), slots)


def _given_slots(
    column: pa.ChunkedArray, texts: tuple[str, ...], h: U64, name: str, slots: int
) -> I64:
    if not pa.types.is_integer(column.type):
        raise SchemaMismatch(
            f"--source-slot {name!r} is {column.type}; slots are whole numbers", column=name
        )
    if column.null_count:
        text = texts[pc.index(pc.is_null(column), True).as_py()]
        raise UnknownSlot(f"--source-slot {name!r} is null for partition {text}; give all a slot")
    slot: I64 = column.to_numpy().astype(np.int64)
    if (wrong := np.flatnonzero((slot < 0) | (slot >= slots))).size:
        raise UnknownSlot(
            f"--source-slot {name!r} is {slot[wrong[0]]} for partition {texts[wrong[0]]}, but "
            f"there are {slots} slots (0..{slots - 1})",
            slot=int(slot[wrong[0]]),
            slots=slots,
        )
    if (twice := np.flatnonzero(h[1:] == h[:-1])).size:
        raise UnknownSlot(
            f"--source-slot {name!r} names several slots for partition {texts[twice[0]]}; a "
            "partition is at one"
        )
    return slot
