"""A source by format and options that can be told how many rows an epoch should have.

Spark has no word for that which all sources understand: Kafka limits offsets, file sources limit
files, some limit rows under a name of their own. A `Reader` knows the well-known ones and sets the
option before it loads. An option that the user has set is a promise to him and stays.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from headgate.errors import DeclarationError
from headgate.topology.arguments import absolute, check_count

log = logging.getLogger("headgate")

FILES = frozenset({"parquet", "json", "csv", "orc", "text", "delta"})
FILE_OPTION = "maxFilesPerTrigger"
ROW_OPTIONS: Mapping[str, str] = {
    "kafka": "maxOffsetsPerTrigger",
    "rate-micro-batch": "rowsPerBatch",
    "iceberg": "streaming-max-rows-per-micro-batch",
}
SAMPLED_FILES = 8


@dataclass(frozen=True)
class Reader:
    """`spark.readStream.format(...)`, for `flow.source`; lets epochs be sized.

    Args:
        format: As for Spark's `DataStreamReader.format`.
        options: As for `DataStreamReader.options`.
        schema: Of the files; formats with a schema of their own need none.
        path: For file sources.
        rows_option: The option that takes a number of rows, for a source not known here.
        rows_per_file: For file sources (default for Parquet: what the first files say).

    Examples:
        >>> Reader("kafka", {"subscribe": "posts"}).limit(5_000)
        {'maxOffsetsPerTrigger': '5000'}
        >>> Reader("json", path="in", schema="post string", rows_per_file=200).limit(5_000)
        {'maxFilesPerTrigger': '25'}
        >>> Reader("kafka", {"maxOffsetsPerTrigger": "10"}).limit(5_000)
        {}
    """

    format: str
    options: Mapping[str, str] = field(default_factory=dict)
    schema: str | None = None
    path: str | None = None
    rows_option: str | None = None
    rows_per_file: int | None = None

    def __post_init__(self) -> None:
        if self.rows_per_file is not None:
            check_count(self.rows_per_file, "rows_per_file= of a Reader")
        if self.rows_option is not None and self.rows_per_file is not None:
            raise DeclarationError("give rows_option= or rows_per_file=: rows or files are limited")

    def __call__(self, spark: Any, rows_per_epoch: int | None) -> Any:
        """The streaming DataFrame."""
        given = dict(self.options)
        if rows_per_epoch is not None:
            given |= self.limit(rows_per_epoch)
        reader = spark.readStream.format(self.format).options(**given)
        if self.schema is not None:
            reader = reader.schema(self.schema)
        return reader.load() if self.path is None else reader.load(self.path)

    @property
    def takes_rows(self) -> bool:
        """Can it be told? Not if there is no option for it, or if the user has set that option.

        Parquet files need not be there yet: they can be counted when they are.
        """
        option = self._option
        if option is None or any(option.lower() == given.lower() for given in self.options):
            return False
        countable = self.format == "parquet" and self.path is not None
        return not self._limits_files or self.rows_per_file is not None or countable

    def limit(self, rows: int) -> dict[str, str]:
        """The option that limits an epoch to about so many rows; none if that is not known."""
        option = self._option
        if option is None or not self.takes_rows:
            return {}
        if self._limits_files:
            each = self.rows_per_file or self._measured()
            if each is None:
                log.warning(
                    "no Parquet file of %s could be counted yet, so epochs are not limited to %d "
                    "rows; Reader(rows_per_file=...) says what a file has",
                    self.path,
                    rows,
                )
                return {}
            rows = max(1, round(rows / each))
        return {option: str(rows)} if rows >= 1 else {}

    @property
    def _option(self) -> str | None:
        """The name under which the source takes rows, or files."""
        if self._limits_files:
            return FILE_OPTION
        return self.rows_option or ROW_OPTIONS.get(self.format)

    @property
    def _limits_files(self) -> bool:
        return self.rows_option is None and self.format in FILES

    def _measured(self) -> int | None:
        """Rows of a Parquet file, by the footers of some."""
        if self.format != "parquet" or self.path is None:
            return None
        try:
            place, path = fs.FileSystem.from_uri(absolute(self.path))
            found = place.get_file_info(fs.FileSelector(path, recursive=True))
            names = sorted(i.path for i in found if i.is_file and i.path.endswith(".parquet"))
            rows = [
                pq.read_metadata(name, filesystem=place).num_rows for name in names[:SAMPLED_FILES]
            ]
        except (OSError, pa.ArrowInvalid, DeclarationError):
            return None  # Spark will say what is wrong with the path, if anything is
        return max(1, round(sum(rows) / len(rows))) if rows else None
