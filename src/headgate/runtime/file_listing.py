"""Which files a micro-batch has, asked of Spark without running a job.

Spark's file source has listed them when it made the micro-batch: they stand in the partitions of
its `FileScanRDD`. To collect them as rows, which is the public way, is a job of its own (tens of
milliseconds an epoch); it is used if the RDD cannot be found, or if two sources share a folder.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame

from headgate.slot.file_rows import files_of
from headgate.slot.program import Program
from headgate.topology.files import Files, InputFile, base_of, from_spark

SCAN, LOGICAL = "FileScanRDD", "LogicalRDD"


class FileListing:
    """The files of micro-batches of a flow whose sources are all files.

    A micro-batch that is run again has the files that it had: it is listed once.
    """

    def __init__(self, sources: Mapping[int, Files]) -> None:
        self.sources = sources
        self._bases = {number: base_of(files.place) for number, files in sources.items()}
        self._last: tuple[DataFrame | None, list[InputFile]] = None, []

    @classmethod
    def of(cls, program: Program) -> FileListing | None:
        """None if Spark reads any of the sources."""
        files = files_of(program)
        return cls(files) if len(files) == len(program.sources) else None

    def listed(self, frame: DataFrame) -> list[InputFile]:
        """In the order in which their rows are taken in: by source, then by time and name."""
        if self._last[0] is not frame:
            found = self._asked(frame) if self._are_apart else None
            if found is None:
                found = self._collected(frame)
            self._last = frame, sorted(found, key=lambda f: (f.source, f.modified_ms, f.place))
        return self._last[1]

    @property
    def _are_apart(self) -> bool:
        """Can a file be of one source only?"""
        bases = sorted(self._bases.values())
        return not any(b.startswith(a) for a, b in pairwise(bases))

    def _source_of(self, place: str) -> int:
        if len(self._bases) == 1:
            return 0
        return next(number for number, base in self._bases.items() if place.startswith(base))

    def _asked(self, frame: DataFrame) -> list[InputFile] | None:
        plan: Any = frame._jdf.queryExecution()
        try:
            found = []
            logical = plan.logical()
            # What `foreachBatch` gets is an RDD already: to plan it would take longer than this.
            is_rdd = logical.nodeName() == LOGICAL
            for path, size, modified_ms in _scanned(logical.rdd() if is_rdd else plan.toRdd()):
                place = from_spark(path, encoded=True)
                found.append(InputFile(self._source_of(place), place, size, modified_ms))
        except (Py4JError, StopIteration):
            return None  # another version of Spark, or a link: it will say itself what it reads
        return found or None

    def _collected(self, frame: DataFrame) -> list[InputFile]:
        if len(self.sources) == 1:
            rows = [(0, row) for row in frame.collect()]
        else:
            rows = [(row[0], row[1 + row[0]]) for row in frame.collect()]
        return [
            InputFile(
                source,
                from_spark(row["path"], encoded=False),
                row["length"],
                round(row["modificationTime"].timestamp() * 1000),
            )
            for source, row in rows
        ]


def _scanned(rdd: Any) -> Iterator[tuple[str, int, int]]:
    """Path, size and time of change of all files that an RDD reads.

    Each look at something of Java's is a round trip, in every epoch.
    """
    if f"{SCAN}[" in str(rdd.toString()).partition(" at ")[0]:
        partitions = rdd.filePartitions()
        for number in range(partitions.size()):
            for file in partitions.apply(number).files():
                yield file.urlEncodedPath(), file.fileSize(), file.modificationTime()
        return  # it depends on nothing
    dependencies = rdd.dependencies()
    for number in range(dependencies.size()):
        yield from _scanned(dependencies.apply(number).rdd())
