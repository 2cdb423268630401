"""Source tasks on the hosts of the slots that want their rows, where a file's folders name them.

A source task lives in no slot, and what it sends passes the shuffle. But where files lie in folders
`region=eu/` and the first operator's key is `region`, the driver knows from the path alone in which
slot all rows of a file will be. A task that reads it on that slot's host sends them to nobody else:
the shuffle hands them over on the host. Of a key with near columns (`topology/keys.py`) folders of
these will do; keys that have an owner of their own then go there from wherever they are read.

Which task reads a file says nothing about results, only about where bytes go. So it is a hint, like
all of Spark's places, and never at the price of an idle host: what a host would have to read beyond
`FULLER` times its share of the bytes, anybody reads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from headgate.routing.hashing import hash_columns
from headgate.routing.route import Here, HereUnlessPinned, Route
from headgate.runtime.exchange import Executor, rows_on_hosts
from headgate.slot.program import Program
from headgate.topology.expressions import Columns
from headgate.topology.files import PIECE_BYTES_MIN, Files, InputFile, Piece, pieces_of
from headgate.topology.graph import Node
from headgate.topology.keys import Key

FULLER = 1.25
TASK_TYPE = StructType([StructField("id", LongType(), nullable=False)])

Named = tuple[tuple[str, str | None], ...]  # columns with the values that folders give them
Tasks = int | tuple[str, ...]  # so many, or one on each of these hosts


class FirstKey(NamedTuple):
    """The operator that rows of a source come to first, and its key, as the source calls it."""

    operator: str
    key: Key

    @property
    def suffice(self) -> tuple[tuple[str, ...], ...]:
        """Columns that tell the slot, those first that tell it better: all, or the near ones."""
        return (self.key, self.key.near_names) if self.key.near else (self.key,)


@dataclass(frozen=True)
class FirstHop:
    """The sources whose files may say where their rows go."""

    program: Program
    files: Mapping[int, Files]
    keys: Mapping[int, FirstKey]

    @classmethod
    def of(cls, program: Program, files: Mapping[int, Files]) -> FirstHop | None:
        """None if no rows come to a key straight from a file."""
        found = {number: _first_key(program, program.sources[number]) for number in files}
        keys = {number: key for number, key in found.items() if key is not None}
        return cls(program, files, keys) if keys else None

    def slots(
        self, listed: Sequence[InputFile], routes: Mapping[str, Route], cores: int
    ) -> list[int | None]:
        """The slot that gets the rows of each file, where that is known; empty if it never is, or
        if there is so little to read that nothing could be saved.
        """
        if sum(file.size for file in listed) < PIECE_BYTES_MIN * cores:
            return []
        known: dict[tuple[int, Named], int | None] = {}
        slots: list[int | None] = []
        for file in listed:  # few, and their keys are fewer
            first, slot = self.keys.get(file.source), None
            if first is not None:
                named = self.files[file.source].partition_values(file.place)
                columns = next((c for c in first.suffice if named.keys() >= set(c)), ())
                if columns:
                    key = file.source, tuple((column, named[column]) for column in columns)
                    if key not in known:
                        known[key] = self._slot(*key, routes)
                    slot = known[key]
            slots.append(slot)
        return slots if any(slot is not None for slot in slots) else []

    def _slot(self, source: int, named: Named, routes: Mapping[str, Route]) -> int | None:
        """The slot of the keys that folders name; None if their rows go by something else."""
        first, schema = self.keys[source], self.files[source].schema
        route = routes.get(first.operator)
        if route is None or isinstance(route.dispatch, Here):
            return None
        assert isinstance(schema, pa.Schema)
        try:
            columns = [
                pa.array([value], pa.string()).cast(schema.field(name).type)
                for name, value in named
            ]
        except pa.ArrowException:
            return None  # the task that reads the file will say what is wrong
        unless_pinned = isinstance(route.dispatch, HereUnlessPinned)
        if len(columns) < len(first.key):
            return None if unless_pinned else int(route.table.near(columns, 1)[0])
        slots, pinned = route.table.look_up(hash_columns(columns, 1, first.key.near))
        return None if unless_pinned and not pinned[0] else int(slots[0])


def _first_key(program: Program, source: Node) -> FirstKey | None:
    """What lies between changes no column of the key: filters, and columns that are passed on."""
    graph = program.graph
    ahead = [(source.id, {name: name for name in source.schema.names})]  # called now, and there
    while ahead:
        node, names = ahead.pop(0)
        for edge in graph.outputs(node):
            consumer, key = graph.nodes[edge.consumer], edge.grouping.key
            if edge.grouping.kind == "fields" and edge.exchanges:
                if not names.keys() >= set(key):
                    return None
                return FirstKey(consumer.name, key.called(names[name] for name in key))
            if edge.grouping.exchanges:
                continue
            if consumer.kind == "filter":
                ahead.append((consumer.id, names))
            elif consumer.kind == "map" and isinstance(consumer.spec.function, Columns):
                made = consumer.spec.function
                found = {column.field.name: column.source for column in made.columns}
                passed = {name: names[was] for name, was in found.items() if was in names}
                ahead.append((consumer.id, passed))
    return None


def dealt_by_home(
    listed: Sequence[InputFile],
    homes: Sequence[str],
    sources: Mapping[int, Files],
    cores: Mapping[str, int],
) -> tuple[list[list[Piece]], tuple[str, ...]]:
    """The pieces of a task for every core of every host, and these hosts.

    Files go to tasks of their home while it has not much more to read than others; the rest is
    read by those who have least. Pieces have numbers in the order of the files, so that rows have
    the places that they would have anyway.
    """
    total, tasks = sum(file.size for file in listed), sum(cores.values())
    room = {host: FULLER * total * count / tasks for host, count in cores.items()}
    at: dict[str, list[InputFile]] = {host: [] for host in cores}
    rest = []
    for file, home in zip(listed, homes, strict=True):
        if home in room and file.size <= room[home]:
            room[home] -= file.size
            at[home].append(file)
        else:
            rest.append(file)
    dealt: list[list[Piece]] = []
    places: list[str] = []
    for host, count in cores.items():
        own = pieces_of(at[host], sources, count)
        dealt += own + [[] for _ in range(count - len(own))]
        places += [host] * max(count, len(own))
    load = [sum(piece.end - piece.start for piece in task) for task in dealt]
    for pieces in pieces_of(rest, sources, tasks):
        least = load.index(min(load))
        dealt[least] += pieces
        load[least] += sum(piece.end - piece.start for piece in pieces)
    number_of = {file: number for number, file in enumerate(listed)}
    cut = sorted((number_of[piece.file], piece.start) for task in dealt for piece in task)
    numbers = {place: number for number, place in enumerate(cut)}
    return [
        [piece._replace(number=numbers[number_of[piece.file], piece.start]) for piece in task]
        for task in dealt
    ], tuple(places)


def cores_by_host(live: Sequence[Executor]) -> dict[str, int]:
    """The cores of each host's executors."""
    cores: Counter[str] = Counter()
    for executor in live:
        cores[executor.host] += executor.cores
    return dict(cores)


def frame_of_tasks(spark: SparkSession, tasks: Tasks) -> DataFrame:
    """A row for each source task, in a partition of its own."""
    if isinstance(tasks, int):
        return spark.range(0, tasks, numPartitions=tasks)
    return rows_on_hosts(spark, [(number,) for number in range(len(tasks))], tasks, TASK_TYPE)
