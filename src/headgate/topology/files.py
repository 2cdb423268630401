"""Files as a source: Spark decides which files an epoch has, tasks read them as Arrow.

Rows never pass through the JVM. Spark's own file source keeps the offsets, the log of files it has
seen and the limits; headgate gets paths from it and cuts them into *pieces*, as many as there are
cores, so that one file is enough to keep all of them busy. A piece is a range of a file's bytes;
what that means in rows, its format says (`slot/file_rows.py`). Every row is in exactly one piece.

A piece names its file's size and time of change. A task that finds another file there fails, so
that all tasks of an epoch, and all their attempts, see the same bytes.
"""

from __future__ import annotations

import fnmatch
import logging
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Any, Literal, NamedTuple, get_args
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs, ipc

from headgate.errors import DeclarationError
from headgate.topology.arguments import absolute, check_choice, check_count, scheme_of, spark_uri
from headgate.topology.schema import SchemaLike, read_by_spark, to_schema

log = logging.getLogger("headgate")

Format = Literal["parquet", "csv", "json", "arrow", "orc"]
TEXT = ("csv", "json")
COMPRESSED = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
PIECE_BYTES_MIN = 64 << 10  # a task costs some milliseconds: less is not worth another one
PIECE_BYTES_MAX = 128 << 20  # what is read of a text file at once
SAMPLED_FILES = 8  # whose footers tell how many rows a Parquet file has
DESCRIPTION = "path string, modificationTime timestamp, length bigint"
_BINARY_FILE = f"{DESCRIPTION}, content binary"  # which Spark never reads: the column is pruned
_GLOB = re.compile(r"[*?\[{]")


class InputFile(NamedTuple):
    """A file as Spark listed it; the place is an absolute path, or a URI."""

    source: int
    place: str
    size: int
    modified_ms: int


class Piece(NamedTuple):
    """Part of a file: what begins in bytes `start` to `end` of it, as its format understands it.

    `number`: its place among those of the epoch, where tasks do not have them in order.
    """

    file: InputFile
    start: int
    end: int
    number: int | None = None


@dataclass(frozen=True)
class Files:
    """Files that arrive in a folder, for `flow.source`; read as Arrow, without the JVM.

    Only the columns that some operator reads are read. Spark's file source lists the folder, keeps
    track and limits epochs, so files must appear whole (write them elsewhere, then rename them),
    and names that begin with `_` or `.` are passed over. A folder `name=value` gives its files a
    column `name`, if the schema has one.

    Args:
        path: A folder, a glob or a file, local or on S3, HDFS, GCS or Azure.
        format: "parquet" (default), "csv", "json" (an object per line), "arrow" or "orc".
        schema: As for `flow.source`. Parquet, Arrow and ORC need none if a file is there already.
        max_files: In an epoch, at most.
        max_bytes: In an epoch, about; at least one file.
        header: CSV files begin with a line of column names.
        sep: Between the columns of a CSV file.
        time_zone: Of times in CSV and JSON files that say none.
        options: Those of Spark's file source: `pathGlobFilter`, `latestFirst`, `cleanSource`, …
        rows_per_file: To limit epochs by rows (default for Parquet: what the first files say).

    Examples:
        >>> posts = Files("in", format="csv", schema="user string, likes bigint", max_files=10)
        >>> posts.schema.names, posts.spark_options()
        (['user', 'likes'], {'maxFilesPerTrigger': '10'})
    """

    path: str | os.PathLike[str]
    format: Format = "parquet"
    schema: SchemaLike | None = None
    max_files: int | None = None
    max_bytes: int | None = None
    header: bool = False
    sep: str = ","
    time_zone: str = "UTC"
    options: Mapping[str, str] = field(default_factory=dict)
    rows_per_file: int | None = None

    def __post_init__(self) -> None:
        check_choice(self.format, "format", get_args(Format))
        for name in ("max_files", "max_bytes", "rows_per_file"):
            if getattr(self, name) is not None:
                check_count(getattr(self, name), f"{name}= of Files")
        if self.max_files is not None and self.max_bytes is not None:
            raise DeclarationError("give max_files= or max_bytes= of Files: Spark takes one limit")
        if (self.header or self.sep != ",") and self.format != "csv":
            raise DeclarationError(f"header= and sep= are for CSV files, not {self.format}")
        if len(self.sep) != 1:
            raise DeclarationError(f"sep={self.sep!r} of Files: one character is between columns")
        object.__setattr__(self, "path", absolute(self.path))
        schema = self._schema_found() if self.schema is None else to_schema(self.schema)
        object.__setattr__(self, "schema", schema)

    def __call__(self, spark: Any, rows_per_epoch: int | None, name: str | None = None) -> Any:
        """A streaming DataFrame of the files: path, time of change, length.

        `name` is what Spark's checkpoint calls it.
        """
        given = self.spark_options()
        if rows_per_epoch is not None:
            given |= self.limit(rows_per_epoch)
        reader = spark.readStream.format("binaryFile").schema(_BINARY_FILE).options(**given)
        reader = reader if name is None else reader.name(name)
        return reader.load(spark_uri(self._to_spark())).select("path", "modificationTime", "length")

    def _to_spark(self) -> str:
        """Spark streams folders and patterns: a file is the pattern that only it fits."""
        place, path = file_system(self.place)
        plain = not _GLOB.search(self.place) and self.place[-1].isalnum()
        if plain and place.get_file_info(path.rstrip("/")).is_file:
            return f"{self.place[:-1]}[{self.place[-1]}]"
        return self.place

    @property
    def place(self) -> str:
        return str(self.path)

    @property
    def takes_rows(self) -> bool:
        """Can it limit epochs to a number of rows? Not if files or bytes are limited already."""
        limited = {name.lower() for name in self.spark_options()}
        countable = self.format == "parquet" or self.rows_per_file is not None
        return countable and not limited & {"maxfilespertrigger", "maxbytespertrigger"}

    def limit(self, rows: int) -> dict[str, str]:
        """The option that limits an epoch to about so many rows; none if that is not known."""
        each = self.rows_per_file or (self._rows_of_a_file() if self.takes_rows else None)
        if each is None or not self.takes_rows or rows < 1:
            return {}
        return {"maxFilesPerTrigger": str(max(1, round(rows / each)))}

    def spark_options(self) -> dict[str, str]:
        """What Spark's file source is told."""
        limits = {"maxFilesPerTrigger": self.max_files, "maxBytesPerTrigger": self.max_bytes}
        given = {name: str(limit) for name, limit in limits.items() if limit is not None}
        return {**self.options, **given}

    def list(self, source: int = 0) -> list[InputFile]:
        """The files that are there now, oldest first."""
        folder, pattern = _folder_and_pattern(self.place)
        place, root = file_system(folder)
        only = place.get_file_info(root.rstrip("/"))
        if only.is_file:
            return [InputFile(source, self.place, only.size, _modified_ms(only))]
        selector = fs.FileSelector(root, recursive=True, allow_not_found=True)
        found = []
        for info in place.get_file_info(selector):
            inside = info.path.lstrip("/")[len(root.strip("/")) :].lstrip("/")
            if info.is_file and not _is_hidden(inside) and _matches(inside, pattern):
                at = f"{folder.rstrip('/')}/{inside}"
                found.append(InputFile(source, at, info.size, _modified_ms(info)))
        return sorted(found, key=lambda file: (file.modified_ms, file.place))

    def partition_values(self, place: str) -> dict[str, str | None]:
        """Columns that the folders of a file name, as text."""
        folder, _ = _folder_and_pattern(self.place)
        parts = [part.partition("=") for part in place[len(folder) :].split("/")[:-1]]
        return {
            name: None if value == "__HIVE_DEFAULT_PARTITION__" else unquote(value)
            for name, equals, value in parts
            if equals and name
        }

    def _rows_of_a_file(self) -> int | None:
        """By the footers of some."""
        try:
            files = [file_system(file.place) for file in self.list()[:SAMPLED_FILES]]
            rows = [pq.read_metadata(path, filesystem=place).num_rows for place, path in files]
        except (OSError, pa.ArrowException):
            return None  # reading them will say what is wrong
        if not rows:
            log.warning(
                "no Parquet file of %s could be counted yet, so epochs are not limited in rows; "
                "Files(rows_per_file=...) says what a file has",
                self.place,
            )
        return max(1, round(sum(rows) / len(rows))) if rows else None

    def _schema_found(self) -> pa.Schema:
        """That of the first file, in the types in which Spark would read it."""
        files = [] if self.format in TEXT else self.list()
        if not files:
            why = "has no types" if self.format in TEXT else "is not there yet"
            raise DeclarationError(
                f"Files({self.place!r}, format={self.format!r}) {why}: give schema='k bigint, …'"
            )
        place, path = file_system(files[0].place)
        try:
            with place.open_input_file(path) as opened:
                found = _schema_of(opened, self.format)
        except (pa.ArrowException, OSError) as problem:
            raise DeclarationError(
                f"{files[0].place} cannot be read as {self.format}: {problem}", file=files[0].place
            ) from problem
        return read_by_spark(found)


def pieces_of(
    files: Sequence[InputFile],
    sources: Mapping[int, Files],
    tasks: int,
    least_bytes: int = PIECE_BYTES_MIN,
) -> list[list[Piece]]:
    """The files cut into pieces: one list per task, of about as many bytes each.

    Files stay in order over the tasks, and only what a format can be cut in is cut.

    Examples:
        >>> file = InputFile(0, "/in/a.parquet", 1_000_000, 0)
        >>> [[(p.start, p.end) for p in task] for task in pieces_of([file], {0: Files("in",
        ...     schema="k bigint")}, 2)]
        [[(0, 500000)], [(500000, 1000000)]]
    """
    total = sum(file.size for file in files)
    wanted = max(min(tasks, total // least_bytes), -(-total // PIECE_BYTES_MAX), 1)
    dealt: list[list[Piece]] = [[] for _ in range(wanted)]
    before = 0
    for file in files:
        if not file.size:
            continue
        last = before + file.size - 1
        tasks_of = range(before * wanted // total, last * wanted // total + 1)
        if not _can_be_cut(file.place, sources[file.source]):
            dealt[tasks_of[0]].append(Piece(file, 0, file.size))
        else:
            cuts = [-(-task * total // wanted) - before for task in (*tasks_of, tasks_of[-1] + 1)]
            cuts[0], cuts[-1] = 0, file.size
            for task, (start, end) in zip(tasks_of, pairwise(cuts), strict=True):
                dealt[task].append(Piece(file, start, end))
        before += file.size
    return [pieces for pieces in dealt if pieces]


def _can_be_cut(place: str, files: Files) -> bool:
    return files.format not in TEXT or not place.endswith(tuple(COMPRESSED))


@lru_cache(maxsize=64)
def _opened(root: str) -> Any:
    if scheme_of(root) is None:
        return fs.LocalFileSystem()
    return fs.FileSystem.from_uri(root)[0]


def file_system(place: str) -> tuple[Any, str]:
    """A file system, opened once per process, and the path in it."""
    scheme = scheme_of(place)
    if scheme is None:
        return _opened("/"), place
    host, slash, path = place.partition("://")[2].partition("/")
    inside = f"{host}{slash}{path}" if scheme in ("s3", "gs", "abfs", "abfss") else f"/{path}"
    return _opened(f"{scheme}://{host}/"), inside


def from_spark(path: str, *, encoded: bool) -> str:
    """A path as Spark writes it, as headgate names it."""
    plain = unquote(path) if encoded else path
    local = re.fullmatch(r"file:(?://)?(/.*)", plain, re.DOTALL)
    return local[1] if local else absolute(plain)


def check_file(file: InputFile) -> str | None:
    """What is wrong with a file that was listed; None: it is the same."""
    place, path = file_system(file.place)
    info = place.get_file_info(path)
    if not info.is_file:
        return "is gone"
    if info.size != file.size:
        return f"has {info.size} bytes, and had {file.size}"
    # Object stores tell seconds to some clients and milliseconds to others.
    exact = 1 if scheme_of(file.place) is None else 1000
    if _modified_ms(info) // exact != file.modified_ms // exact:
        return "was written again"
    return None


def _modified_ms(info: Any) -> int:
    return int(info.mtime_ns or 0) // 1_000_000


def _folder_and_pattern(place: str) -> tuple[str, str | None]:
    found = _GLOB.search(place)
    if found is None:
        return place.rstrip("/") + "/", None
    cut = place.rfind("/", 0, found.start()) + 1
    return place[:cut], place[cut:]


def base_of(place: str) -> str:
    """The folder that all files of a source are in."""
    return _folder_and_pattern(place)[0]


def _matches(inside: str, pattern: str | None) -> bool:
    """As Spark: files of the folder itself and of its partitions, or of what a glob names."""
    if pattern is not None:
        return fnmatch.fnmatchcase(inside, pattern) or fnmatch.fnmatchcase(inside, f"{pattern}/*")
    return all("=" in part for part in inside.split("/")[:-1])


def _is_hidden(inside: str) -> bool:
    parts = inside.split("/")
    return any(part[:1] == "." or (part[:1] == "_" and "=" not in part) for part in parts)


def _schema_of(opened: pa.NativeFile, kind: str) -> pa.Schema:
    if kind == "parquet":
        file = pq.ParquetFile(opened)
        columns = [file.schema.column(i) for i in range(len(file.schema))]
        instants = {c.path for c in columns if c.physical_type == "INT96"}  # of older writers
        return pa.schema(
            [
                f.with_type(pa.timestamp("us", "UTC")) if f.name in instants else f
                for f in file.schema_arrow
            ]
        )
    if kind == "orc":
        from pyarrow import orc  # loads slowly, and few need it

        return orc.ORCFile(opened).schema
    try:
        return ipc.open_file(opened).schema
    except pa.ArrowInvalid:
        opened.seek(0)
        return ipc.open_stream(opened).schema
