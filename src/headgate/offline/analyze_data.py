"""The data of an analysis: find its format, read it with Spark, refuse what cannot be analysed.

Whatever goes wrong says what to do: the columns there are, the option that is missing, Spark's own
first line where a file is damaged.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import TYPE_CHECKING

from headgate.errors import (
    CyclicFlow,
    DeclarationError,
    HeadgateError,
    NameClash,
    SchemaMismatch,
    UnknownColumn,
)
from headgate.offline.analyze_pairs import Shape
from headgate.routing.hashing import is_hashable
from headgate.topology.schema import from_spark_json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FORMATS = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".orc": "orc",
}
_COMPRESSED = {".gz", ".bz2", ".zst", ".zstd", ".xz", ".lz4", ".snappy", ".deflate"}
_OPTIONS = {"csv": {"header": "true", "inferSchema": "true"}}
_ILLEGAL = re.compile(r"[^A-Za-z0-9._-]")
_NAME = re.compile(r"[A-Za-z0-9._-]+")


def shape_of(
    keys: Sequence[str],
    operators: Sequence[str] = (),
    edges: Sequence[str] = (),
    source: str | None = None,
) -> Shape:
    """What is to be analysed: `keys` as "column" or "column,column", one per operator.

    Operators are named as given, or after their columns. `edges` are "producer:consumer"; without
    any, each operator feeds the next. `source` names the source's partitions, as a key does.
    """
    columns = tuple(_columns(key) for key in keys)
    if len(columns) < 2:
        raise DeclarationError("an analysis places pairs: give --key at least twice")
    if not all(all(key) for key in columns):
        raise DeclarationError("a --key is empty; write 'column' or 'column,column'")
    partition = () if source is None else _columns(source)
    if not all(partition):
        raise DeclarationError("--source is empty; write 'column' or 'column,column'")
    if operators and len(operators) != len(keys):
        raise DeclarationError(
            f"{len(operators)} operators for {len(keys)} keys: give --operator once per --key, or "
            "not at all"
        )
    names = tuple(operators) or tuple(_ILLEGAL.sub("_", "_".join(key)) for key in columns)
    if len(set(names)) < len(names):
        raise NameClash(
            f"two operators have the same name ({', '.join(names)}); name them with --operator, as "
            "the flow does"
        )
    for name in names:
        if not _NAME.fullmatch(name):
            raise DeclarationError(
                f"operator name {name!r}: use letters, digits, '.', '_' and '-', as in the flow"
            )
    return Shape(names, columns, _edges(names, edges), partition)


def read_data(spark: SparkSession, data: str, form: str, schema: str | None) -> DataFrame:
    """The data as a batch DataFrame; `schema` is a DDL string, as a source declares it."""
    reader = spark.read.format(form)
    options = dict(_OPTIONS.get(form, {}))
    if schema is not None:
        reader = reader.schema(schema)
        options.pop("inferSchema", None)
    return reader.options(**options).load(data)


def format_of(data: str) -> str:
    """The format that file names tell; a folder is what its first file is."""
    place = Path(data)
    if "://" not in data and not re.search(r"[*?\[{]", data):
        if not place.exists():
            raise HeadgateError(f"there is no {data} (from {Path.cwd()})", data=data)
        if place.is_dir():
            place = _first_file(place)
    suffixes = [suffix.lower() for suffix in place.suffixes]
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


def check_columns(frame: DataFrame, shape: Shape, data: str) -> dict[str, str]:
    """Are all key columns there, of types that can be keys? Returns their types."""
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
    """Spark's errors as one sentence with the data's name."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as problem:
        raise HeadgateError(
            f"Spark cannot read {data} as {form}: {_reason(str(problem))}", data=data
        ) from problem


def _reason(text: str) -> str:
    """The line that says most: the last cause if there are several, else the first line."""
    causes = re.findall(r"Caused by: [\w.$]+: (.+)", text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (causes[-1] if causes else lines[0] if lines else "no reason given")[:400]


def _columns(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(","))


def _edges(names: tuple[str, ...], given: Sequence[str]) -> tuple[tuple[int, int], ...]:
    if not given:
        return tuple((i, i + 1) for i in range(len(names) - 1))
    edges: dict[tuple[int, int], None] = {}
    for text in given:
        ends = text.split(":")
        if len(ends) != 2 or not set(ends) <= set(names):
            raise DeclarationError(
                f"--edge {text!r}: write PRODUCER:CONSUMER with operators of {', '.join(names)}"
            )
        edges[names.index(ends[0]), names.index(ends[1])] = None
    before: dict[int, set[int]] = {}
    for a, b in edges:
        before.setdefault(b, set()).add(a)
    try:
        TopologicalSorter(before).prepare()
    except CycleError as problem:
        round_trip = " -> ".join(names[i] for i in reversed(problem.args[1]))
        raise CyclicFlow(f"the edges feed back into themselves: {round_trip}") from None
    lonely = [name for i, name in enumerate(names) if not any(i in edge for edge in edges)]
    if lonely:
        raise DeclarationError(f"{', '.join(lonely)}: on no --edge; give all edges or none")
    return tuple(edges)


def _first_file(folder: Path) -> Path:
    for path in sorted(folder.rglob("*")):
        hidden = any(part[0] in "._" for part in path.relative_to(folder).parts)
        if path.is_file() and not hidden:
            return path
    raise HeadgateError(f"there is no file in {folder}", data=str(folder))
