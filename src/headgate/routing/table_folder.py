"""Routing tables as a folder of Parquet files, one per operator, to hand from one program to
another: an analysis writes them, a flow starts with them, anything that reads Parquet can look.

`OPERATOR.parquet` holds what `RoutingTable.to_arrow` gives; slot count, buckets and version are in
the file's metadata, so a table cannot be taken for one of another flow shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from headgate.errors import HeadgateError
from headgate.routing.table import RoutingTable

_SUFFIX = ".parquet"
_FACTS = (b"slots", b"buckets", b"version")


def load_tables(folder: str | Path) -> dict[str, RoutingTable]:
    """The routing tables in a folder (path or URI), by operator: for `flow.start(tables=...)`.

    `headgate analyze` writes such folders. A file's name is the operator's name.
    """
    files, place = _open(folder)
    found = {
        Path(path).name.removesuffix(_SUFFIX): _read(files, path)
        for path in _parquet_files(files, place)
    }
    if not found:
        raise HeadgateError(
            f"there are no routing tables in {folder}: expected OPERATOR{_SUFFIX} files as "
            "written by `headgate analyze ... --out DIR`",
            folder=str(folder),
        )
    return found


def save_tables(tables: Mapping[str, RoutingTable], folder: str | Path) -> dict[str, str]:
    """Write a file per operator and return their paths; tables of other operators are removed.

    A folder that holds Parquet files of another kind is refused, before anything is written.
    """
    files, place = _open(folder)
    old = check_folder(folder)
    files.create_dir(place, recursive=True)
    written = {}
    for operator, table in tables.items():
        path = written[operator] = f"{place}/{operator}{_SUFFIX}"
        pq.write_table(table.to_arrow(), f"{path}.new", filesystem=files)
        files.move(f"{path}.new", path)
    for path in set(old) - set(written.values()):
        files.delete_file(path)
    return written


def check_folder(folder: str | Path) -> list[str]:
    """The tables that are in a folder now; an error if there is Parquet of another kind."""
    files, place = _open(folder)
    found = _parquet_files(files, place)
    for path in found:
        _check(files, path)
    return found


def _open(folder: str | Path) -> tuple[Any, str]:
    if "://" in str(folder):
        files, place = fs.FileSystem.from_uri(str(folder))
    else:
        files, place = fs.LocalFileSystem(), str(folder)
    return files, place.rstrip("/") or "/"


def _parquet_files(files: Any, place: str) -> list[str]:
    listed = files.get_file_info(fs.FileSelector(place, allow_not_found=True))
    return sorted(
        f"{place}/{info.base_name}"
        for info in listed
        if info.is_file and info.base_name.endswith(_SUFFIX) and info.base_name[0] not in "._"
    )


def _check(files: Any, path: str) -> None:
    try:
        schema = pq.read_schema(path, filesystem=files)
    except pa.ArrowException as problem:
        raise HeadgateError(f"{path} cannot be read as Parquet: {problem}", file=path) from problem
    if not set(_FACTS) <= set(schema.metadata or {}) or schema.names != ["h", "slot"]:
        raise HeadgateError(
            f"{path} is not a routing table (columns {', '.join(schema.names)}); keep routing "
            "tables in a folder of their own",
            file=path,
        )


def _read(files: Any, path: str) -> RoutingTable:
    _check(files, path)
    return RoutingTable.from_arrow(pq.read_table(path, filesystem=files))
