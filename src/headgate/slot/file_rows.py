"""The rows of pieces of files, as Arrow batches of the columns that the flow wants.

Which rows a piece has follows from its file alone, so every attempt reads the same ones:

    parquet     the same share of the rows as of the bytes. A row group that is cut is decoded in
                both tasks: that costs much less than one task that does all that follows.
    arrow, orc  the same share of the record batches or stripes, which may be cut too
    csv, json   the lines that begin in its bytes

A file has the columns of the schema in any order, names in any case. One that a file lacks is that
of its folders, or null.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from operator import or_
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import ipc

from headgate.errors import SourceFileError
from headgate.slot.program import Program
from headgate.slot.rows import SourceRows
from headgate.topology.expressions import Condition
from headgate.topology.files import (
    COMPRESSED,
    Files,
    InputFile,
    Piece,
    check_file,
    file_system,
    from_spark,
)
from headgate.topology.graph import Node

AT_ONCE_BYTES = 64 << 20  # decoded at once; row groups of more are read batch by batch
BATCH_BYTES = 16 << 20
BLOCK_BYTES = 4 << 20
WIDE = pa.decimal256(76, 38)  # holds what is written of any decimal, before it is rounded
_ZONE = r"(Z|[+-]\d{2}(:?\d{2})?)$"


def files_of(program: Program) -> dict[int, Files]:
    """The sources of a program that are files, by their numbers."""
    found = {number: node.spec.frame for number, node in enumerate(program.sources)}
    return {number: frame for number, frame in found.items() if isinstance(frame, Files)}


def read_pieces(program: Program, pieces: Iterable[Piece]) -> Iterator[SourceRows]:
    """The rows of all pieces, in order."""
    for piece in pieces:
        node = program.sources[piece.file.source]
        reading = _Reading(node.spec.frame, program.node_schema[node.id], _skipping(program, node))
        _check(piece.file)
        try:
            for batch in reading.batches(piece):
                yield SourceRows(piece.file.source, batch, piece.number)
        except (pa.ArrowException, OSError, EOFError) as problem:
            _check(piece.file)  # that may be why
            raise SourceFileError(
                f"{piece.file.place} cannot be read as {reading.files.format}: {problem}. Nothing "
                "of this epoch was kept: put it right, or take it away, and start the flow again",
                file=piece.file.place,
            ) from problem
        _check(piece.file)


def read_whole(program: Program, source: int, listed: pa.RecordBatch) -> Iterator[SourceRows]:
    """The rows of files that Spark lists to a task: path, time of change, length."""
    files = [
        InputFile(source, from_spark(row["path"], encoded=False), row["length"], time // 1000)
        for row, time in zip(
            listed.to_pylist(), listed.column(1).cast(pa.int64()).to_pylist(), strict=True
        )
    ]
    return read_pieces(program, [Piece(file, 0, file.size) for file in files if file.size])


def _check(file: InputFile) -> None:
    problem = check_file(file)
    if problem is not None:
        raise SourceFileError(
            f"{file.place} {problem}, since Spark listed it for this epoch. Nothing of this epoch "
            "was kept. Files of a source must appear whole and stay as they are: write them "
            "elsewhere, then rename them",
            file=file.place,
        )


def _skipping(program: Program, source: Node) -> pc.Expression | None:
    """What rows must fulfil to be wanted by anybody; None: all are.

    The filters themselves run where they always do: with this, parts of a file that cannot have
    such rows, by its statistics, are not read. Event times are taken from all rows, so of a source
    that has some nothing is skipped.
    """
    consumers = [program.graph.nodes[edge.consumer] for edge in program.graph.outputs(source.id)]
    if source.spec.event_time is not None or source.spec.arrival is not None:
        return None
    filters = [n.spec.function for n in consumers if n.kind == "filter"]
    if len(filters) < len(consumers) or not all(isinstance(f, Condition) for f in filters):
        return None
    return reduce(or_, [f.expression for f in filters]) if filters else None


class _Reading:
    """How one source's files are read: `wanted` is what the flow reads of their columns."""

    def __init__(self, files: Files, wanted: pa.Schema, skip: pc.Expression | None) -> None:
        self.files, self.wanted, self._skip = files, wanted, skip

    def batches(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        place, path = file_system(piece.file.place)
        values = self.files.partition_values(piece.file.place)
        read = getattr(self, f"_{self.files.format}")
        # Not mapped: batches would change with the file, after it was checked.
        with place.open_input_file(path) as opened:
            for batch in read(opened, piece):
                if batch.num_rows:
                    yield self._complete(batch, values)

    def _complete(self, batch: pa.RecordBatch, values: dict[str, str | None]) -> pa.RecordBatch:
        """All wanted columns; their types are made right where all sources' are."""
        if batch.schema.names == self.wanted.names:
            return batch
        found = {name.lower(): i for i, name in reversed(list(enumerate(batch.schema.names)))}
        columns = []
        for field in self.wanted:
            at = found.get(field.name.lower())
            if at is not None:
                columns.append(batch.column(at))
            else:
                value = pa.scalar(values.get(field.name), pa.string()).cast(field.type)
                columns.append(pa.repeat(value, batch.num_rows))
        return pa.RecordBatch.from_arrays(columns, names=self.wanted.names)

    def _present(self, names: Sequence[str]) -> list[str]:
        """The columns to read, as the file spells them."""
        wanted = {name.lower() for name in self.wanted.names}
        return [name for name in names if name.lower() in wanted]

    def _parquet(self, opened: pa.NativeFile, piece: Piece) -> Iterator[pa.RecordBatch]:
        file = pq.ParquetFile(opened, coerce_int96_timestamp_unit="us")
        columns = self._present(file.schema_arrow.names)
        about, size = file.metadata, piece.file.size
        first, last = (about.num_rows * cut // size for cut in (piece.start, piece.end))
        kept = self._groups(piece.file, about.num_row_groups)
        begin = 0
        for number in range(about.num_row_groups):
            group = about.row_group(number)
            start, stop = max(first - begin, 0), min(last - begin, group.num_rows)
            begin += group.num_rows
            if start >= stop or number not in kept:
                continue
            if group.total_byte_size <= AT_ONCE_BYTES:
                table = file.read_row_group(number, columns, use_threads=False)
                yield from _with_rows(table.slice(start, stop - start), stop - start)
                continue
            rows = max(1, BATCH_BYTES * group.num_rows // group.total_byte_size)
            at = 0
            for batch in file.iter_batches(rows, [number], columns, use_threads=False):
                low, high = max(start - at, 0), min(stop - at, batch.num_rows)
                at += batch.num_rows
                if low < high:
                    yield batch.slice(low, high - low)
                if at >= stop:
                    break

    def _groups(self, file: InputFile, groups: int) -> Iterable[int]:
        """The row groups that may have wanted rows, by their statistics."""
        if self._skip is None:
            return range(groups)
        import pyarrow.dataset as ds  # none of these is loaded by workers that do not need it

        place, path = file_system(file.place)
        fragment = ds.ParquetFileFormat().make_fragment(path, place)
        try:
            return {group.id for group in fragment.subset(self._skip).row_groups}
        except (pa.ArrowException, ValueError):
            return range(groups)  # a column that the file lacks: the filter will see nulls

    def _arrow(self, opened: pa.NativeFile, piece: Piece) -> Iterator[pa.RecordBatch]:
        try:
            names = ipc.open_file(opened).schema.names
        except pa.ArrowInvalid:  # a stream, which must be read from its beginning
            opened.seek(0)
            if piece.start == 0:
                reader = ipc.open_stream(opened)
                yield from (b.select(self._present(b.schema.names)) for b in reader)
            return
        chosen = self._present(names)
        options = ipc.IpcReadOptions(included_fields=[names.index(name) for name in chosen])
        file = ipc.open_file(opened, options=options)
        for number, part in _shares(file.num_record_batches, piece):
            yield part(file.get_batch(number))

    def _orc(self, opened: pa.NativeFile, piece: Piece) -> Iterator[pa.RecordBatch]:
        from pyarrow import orc

        file = orc.ORCFile(opened)
        columns = self._present(file.schema.names)
        for number, part in _shares(file.nstripes, piece):
            yield part(file.read_stripe(number, columns))

    # --- lines of text -------------------------------------------------------------------------
    def _csv(self, opened: pa.NativeFile, piece: Piece) -> Iterator[pa.RecordBatch]:
        from pyarrow import csv

        files = self.files
        names = files.schema.names  # type: ignore[union-attr]
        skip = 0
        if files.header:
            head = _first_line(_plain(opened, piece))
            parsed = csv.read_csv(pa.BufferReader(head), parse_options=self._parsing)
            names, skip = parsed.schema.names, int(piece.start == 0)
        lines = _lines(opened, piece)
        if lines is None:
            return
        texts, types = self._text_types(decimals=pa.string())
        reader = csv.open_csv(
            lines,
            csv.ReadOptions(
                use_threads=False, block_size=BLOCK_BYTES, column_names=names, skip_rows=skip
            ),
            self._parsing,
            csv.ConvertOptions(
                column_types={name: types.get(name.lower(), pa.string()) for name in names},
                include_columns=self._present(names) or names[:1],
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
                true_values=["true", "True", "TRUE"],
                false_values=["false", "False", "FALSE"],
            ),
        )
        for batch in reader:
            yield self._parsed_times(batch, texts)

    @property
    def _parsing(self) -> Any:
        from pyarrow import csv

        return csv.ParseOptions(delimiter=self.files.sep, ignore_empty_lines=True)

    def _json(self, opened: pa.NativeFile, piece: Piece) -> Iterator[pa.RecordBatch]:
        from pyarrow import json

        lines = _lines(opened, piece)
        if lines is None:
            return
        texts, types = self._text_types(decimals=WIDE)  # of numbers and of texts
        schema = pa.schema([(f.name, types[f.name.lower()]) for f in self.wanted])
        table = json.read_json(
            lines,
            json.ReadOptions(use_threads=False, block_size=BLOCK_BYTES),
            json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
        )
        for batch in table.to_batches():
            yield self._parsed_times(batch, texts)

    def _text_types(
        self, decimals: pa.DataType
    ) -> tuple[dict[str, pa.DataType], dict[str, pa.DataType]]:
        """Times and decimals, which are read as something else first, and what to read."""
        chosen = {f.name.lower(): f.type for f in self.wanted}
        times = {name: kind for name, kind in chosen.items() if pa.types.is_temporal(kind)}
        exact = {name: kind for name, kind in chosen.items() if pa.types.is_decimal(kind)}
        first = dict.fromkeys(times, pa.string()) | dict.fromkeys(exact, decimals)
        return times | exact, chosen | first

    def _parsed_times(self, batch: pa.RecordBatch, texts: dict[str, pa.DataType]) -> pa.RecordBatch:
        columns = [
            _from_text(column, texts[name.lower()], self.files.time_zone)
            if name.lower() in texts
            else column
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _from_text(column: pa.Array, kind: pa.DataType, zone: str) -> pa.Array:
    """Times and decimals of a text: of a moment without a zone, that of the source."""
    if pa.types.is_decimal(kind):
        return _rounded(column, kind)
    if not pa.types.is_timestamp(kind) or kind.tz is None:
        return column.cast(kind)
    has_zone = pc.match_substring_regex(column, _ZONE)
    zoned = pc.if_else(has_zone, column, None).cast(kind)
    plain = pc.if_else(has_zone, None, column).cast(pa.timestamp(kind.unit))
    return pc.coalesce(zoned, pc.assume_timezone(plain, zone).cast(kind))


def _rounded(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Decimals, as Spark reads digits for which the type has no place: half away from zero."""
    try:
        return column.cast(kind)
    except pa.ArrowInvalid:
        return pc.round(column.cast(WIDE), kind.scale, "half_towards_infinity").cast(kind)


def _with_rows(table: pa.Table, rows: int) -> Iterator[pa.RecordBatch]:
    """The batches of a table, also of one without columns."""
    if table.num_columns:
        yield from table.to_batches()
    elif rows:
        yield pa.RecordBatch.from_arrays([pa.nulls(rows)], names=["__none"])


def _shares(units: int, piece: Piece) -> Iterator[tuple[int, Any]]:
    """The units of a file that a piece has a share of, and what cuts the share out of one."""
    size = piece.file.size
    start, end = units * piece.start, units * piece.end  # in units of 1 / size
    for number in range(start // size, -(-end // size)):
        low, high = max(start - number * size, 0), min(end - number * size, size)

        def part(batch: pa.RecordBatch, low: int = low, high: int = high) -> pa.RecordBatch:
            first = batch.num_rows * low // size
            return batch.slice(first, batch.num_rows * high // size - first)

        yield number, part


def _plain(opened: pa.NativeFile, piece: Piece) -> Any:
    """The file from its beginning, unpacked."""
    opened.seek(0)
    codec = _codec(piece.file.place)
    return opened if codec is None else pa.CompressedInputStream(opened, codec)


def _codec(place: str) -> str | None:
    return next((codec for end, codec in COMPRESSED.items() if place.endswith(end)), None)


def _first_line(stream: Any) -> bytes:
    text = b""
    while b"\n" not in text:
        more = stream.read(1 << 16)
        if not more:
            return text
        text += more
    return text[: text.index(b"\n") + 1]


def _lines(opened: pa.NativeFile, piece: Piece) -> Any:
    """The lines that begin in the piece's bytes, to read from; None: there are none."""
    if _codec(piece.file.place) is not None:
        return _plain(opened, piece)  # all of them: what is compressed is not cut
    start, end = _line_at(opened, piece.start), _line_at(opened, piece.end)
    if start >= end:
        return None
    opened.seek(start)
    return pa.BufferReader(opened.read_buffer(end - start))


def _line_at(opened: pa.NativeFile, byte: int) -> int:
    """Where the first line begins that does not begin before this byte."""
    if byte == 0:
        return 0
    at: int = byte - 1
    opened.seek(at)
    while text := opened.read(1 << 16):
        found = text.find(b"\n")
        if found >= 0:
            return at + int(found) + 1
        at += len(text)
    return at
