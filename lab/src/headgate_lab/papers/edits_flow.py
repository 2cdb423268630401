"""The edits job of Madsen et al. 2017 as a flow: what `edits_job` counts, run.

    edits -> geohash -> top_articles -> global_top

`geohash` takes every edit to the place of its editor and counts the editor's edits. `top_articles`
ranks the articles of a minute in each of its key groups, `global_top` those titles whatever the
wiki. A key group of the last two is one key, chosen so that each lies in a bucket of its own; a
bucket of the first holds the editors that hash to it. So units are the paper's key groups.

A day is played faster than it came, and again from its beginning when it is over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headgate.arrays import I64
from headgate.flow import Flow
from headgate.operator import Output, StateFields, StatefulOperator, TopK, Tumbling
from headgate.operator.rows import EpochClock, KeyedRows
from headgate.routing.hashing import bucket_of, hash_columns
from headgate.state.session import StateSession
from headgate.topology.files import Files
from headgate_lab.papers.edits_job import MINUTE_MS

OPERATORS = ("geohash", "top_articles", "global_top")
EDITS = pa.schema(
    {"editor": pa.int64(), "cell": pa.int64(), "article": pa.string(), "ts": pa.timestamp("us")}
)
Top: TypeAlias = tuple[int, int, str, int, int]
"""Minute, key group, title, rank, edits."""
MINUTE = Tumbling("1 minute", time="ts")
_LETTERS = np.frombuffer(b"0123456789bcdefghjkmnpqrstuvwxyz", np.uint8)
_LENGTH = 6  # letters of a GeoHash: about a kilometre


@dataclass(frozen=True)
class Played:
    """How a day is played, in periods of so many of its fast minutes."""

    speed: float
    period_minutes: int
    periods: int
    groups: int


def played_periods(day: pa.Table, how: Played) -> list[pa.Table]:
    """The rows of every period, and a last one with a single edit so late that all minutes end."""
    ms = np.asarray(day.column("ts").combine_chunks().cast(pa.int64()))
    fast = (ms - ms[0]) / how.speed
    day_ms = (int(fast[-1]) // MINUTE_MS + 1) * MINUTE_MS
    period_ms = how.period_minutes * MINUTE_MS
    rows = day.select(["editor", "wiki", "page"]).combine_chunks()
    names = [rows[name].cast(pa.string()) for name in ("wiki", "page")]
    article = pc.binary_join_element_wise(*names, ":").combine_chunks()
    wiki_page = [rows[name].combine_chunks() for name in ("wiki", "page")]
    cell = cells(how.groups)[bucket_of(hash_columns(wiki_page, len(rows)), how.groups)]
    edits = [rows["editor"].combine_chunks().cast(pa.int64()), pa.array(cell), article]
    found = []
    for period in range(how.periods):
        parts = []
        for loop in range(period * period_ms // day_ms, (period + 1) * period_ms // day_ms + 1):
            start = period * period_ms - loop * day_ms
            first, last = np.searchsorted(fast, [start, start + period_ms])
            at = (loop * day_ms + fast[first:last]) * 1e3
            ts = pa.array(at.astype(np.int64)).cast(pa.timestamp("us"))
            mine = [column.slice(first, last - first) for column in edits]
            parts.append(pa.table([*mine, ts], schema=EDITS))
        found.append(pa.concat_tables(parts))
    end = pa.array([2 * how.periods * period_ms * 1_000]).cast(pa.timestamp("us"))
    last = [column.slice(0, 1) for column in edits]
    return [*found, pa.table([*last, end], schema=EDITS)]


def edits_flow(folder: Path, groups: int, k: int, out: Path) -> Flow:
    """An epoch per file; the titles of each minute that are ranked go to a Parquet sink."""

    def titled(batch: pa.RecordBatch) -> dict[str, Any]:
        return titles(batch, groups)

    flow = Flow("edits")
    edits = flow.source(Files(folder, schema=EDITS, max_files=1), name="edits", event_time="ts")
    placed = edits.key_by("editor", grouping="hash").process(GeoHashes(), name=OPERATORS[0])
    local = placed.key_by("cell", grouping="hash").process(
        TopK("article", k, MINUTE), name=OPERATORS[1]
    )
    ranked = local.map(titled, TITLES, name="titles").key_by("cell", grouping="hash")
    world = ranked.process(
        TopK("title", k, MINUTE, weight="count", name="edits"), name=OPERATORS[2]
    )
    world.to_parquet(str(out), name="top")
    return flow


TITLES = pa.schema(
    {"cell": pa.int64(), "title": pa.string(), "count": pa.int64(), "ts": pa.timestamp("us")}
)


def titles(batch: pa.RecordBatch, groups: int) -> dict[str, Any]:
    """What is left of articles without their wiki, and the key group of that."""
    title = pc.replace_substring_regex(batch.column("article"), "^[^:]*:", "")
    cell = cells(groups)[bucket_of(hash_columns([title], len(batch)), groups)]
    return {
        "cell": pa.array(cell),
        "title": title,
        "count": batch.column("count"),
        "ts": batch.column("window_start"),
    }


@lru_cache(maxsize=8)
def cells(groups: int) -> I64:
    """For every bucket the least number that hashes to it: a key that has it for itself."""
    tried = np.arange(40 * groups)
    bucket = bucket_of(hash_columns([pa.array(tried)], len(tried)), groups)
    found, first = np.unique(bucket, return_index=True)
    assert len(found) == groups, "more numbers are to be tried"
    return first.astype(np.int64)


@dataclass(frozen=True)
class GeoHashes(StatefulOperator):
    """Where every edit comes from, as column `geohash`, and how many its editor has made so far.

    The data has no places: an editor's number stands for latitude and longitude.
    """

    def state_fields(self, rows: pa.Schema, key: Sequence[str]) -> StateFields:
        return StateFields(pa.schema([pa.field("edits", pa.int64(), nullable=False)]))

    def output_schema(self, rows: pa.Schema, key: Sequence[str]) -> pa.Schema:
        return pa.schema([*rows, ("geohash", pa.string())])

    def process(self, rows: KeyedRows, state: StateSession, clock: EpochClock) -> Output:
        groups = rows.groups
        state.write(groups, {"edits": state.read(groups)["edits"] + groups.sizes})
        text = geohash(rows.column("editor"))
        return Output(rows.batch.append_column("geohash", text))

    def describe(self) -> dict[str, Any]:
        return {"operator": "GeoHashes"}


def geohash(editor: pa.Array) -> pa.Array:
    """Six letters of a place for each number: bits of longitude and latitude in turn."""
    place = hash_columns([editor], len(editor))
    bits = (place[:, np.newaxis] >> np.arange(5 * _LENGTH, dtype=np.uint64)) & np.uint64(1)
    fives = bits.reshape(len(place), _LENGTH, 5) @ (1 << np.arange(5)).astype(np.uint64)
    letters = np.ascontiguousarray(_LETTERS[fives.astype(np.int64)])
    ends = np.arange(len(place) + 1, dtype=np.int32) * _LENGTH
    return pa.StringArray.from_buffers(len(place), pa.py_buffer(ends), pa.py_buffer(letters))


def fold(periods: Sequence[pa.Table], groups: int, k: int) -> tuple[Counter[int], set[Top]]:
    """Edits by editor, and the titles that are ranked in every minute, edit by edit.

    The minute of the last edit, which only ends the others, is not over.
    """
    editors: Counter[int] = Counter()
    articles: Counter[tuple[int, int, str]] = Counter()
    for period in periods:
        columns = (period.column(name).to_pylist() for name in ("editor", "cell", "article"))
        minutes = period.column("ts").cast(pa.int64()).to_numpy() // (1_000 * MINUTE_MS)
        for editor, cell, article, minute in zip(*columns, minutes.tolist(), strict=True):
            editors[editor] += 1
            articles[minute, cell, article] += 1
    open_minute = max(minute for minute, _, _ in articles)
    closed = {at: count for at, count in articles.items() if at[0] < open_minute}
    local = _ranked(closed, k)
    names = [article.partition(":")[2] for _, _, article, _, _ in local]
    hashed = hash_columns([pa.array(names, pa.string())], len(names))
    there = cells(groups)[bucket_of(hashed, groups)].tolist()
    world: Counter[tuple[int, int, str]] = Counter()
    for (minute, _, _, _, count), cell, name in zip(local, there, names, strict=True):
        world[minute, cell, name] += count
    return editors, set(_ranked(world, k))


def _ranked(counts: Mapping[tuple[int, int, str], int], k: int) -> list[Top]:
    """The `k` with most of every minute and key group, and their ranks."""
    found: list[Top] = []
    rank, before = 0, None
    for (minute, cell, text), count in sorted(
        counts.items(), key=lambda entry: (*entry[0][:2], -entry[1], entry[0][2])
    ):
        rank = rank + 1 if (minute, cell) == before else 1
        before = minute, cell
        if rank <= k:
            found.append((minute, cell, text, rank, count))
    return found


def read_top(out: Path) -> set[Top]:
    """What the flow's sink has."""
    rows = pq.read_table(out)
    minute = rows.column("window_start").cast(pa.int64()).to_numpy() // (1_000 * MINUTE_MS)
    columns = (rows.column(name).to_pylist() for name in ("cell", "title", "rank", "edits"))
    cell, title, rank, edits = columns
    return set(zip(minute.tolist(), cell, title, rank, edits, strict=True))
