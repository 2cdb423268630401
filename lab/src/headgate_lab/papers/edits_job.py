"""The edits job of Madsen et al. 2017, as loads: what each key group costs in each period.

Three operators over Wikipedia edits: a GeoHash per edit (by editor, whose place it is), the top
articles of every minute (by wiki and article), and the top articles of the world (by article,
whatever the wiki). Nothing runs: rows go through the keys, windows and ranks of the job, and a unit
costs one per row it gets and one per entry it closes. A day of edits, played faster, is looped.
Where the data is not at hand, a generated day stands in.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headgate.arrays import I64, U64
from headgate.routing.hashing import hash_columns

OPERATORS = ("geohash", "top_articles", "global_top")
FILE = "wikipedia_edits_2015_09_12.parquet"
MINUTE_MS = 60_000


@dataclass(frozen=True)
class Edits:
    """One played day: rows with their minute and key hashes, tops with theirs, both in order."""

    minutes: int
    minute: I64
    editor: U64
    article: U64
    entry_minute: I64
    entry_article: U64
    entry_title: U64
    top: I64  # which entries leave the second operator

    def __len__(self) -> int:
        return len(self.minute)


def read_edits(file: Path, *, speed: float, groups: int, k: int) -> Edits:
    """The edits of a file, `speed` times faster than they came."""
    return edits_of(pq.read_table(file), speed=speed, groups=groups, k=k)


def generated_day(rows: int = 31_548, seed: int = 0) -> pa.Table:
    """Edits with a skew like that of the real day: few busy editors, hardly any busy page."""
    rng = np.random.default_rng(seed)
    editor = rng.zipf(1.6, rows) % 9_000
    wiki = np.minimum(rng.zipf(1.5, rows), 50)
    page = np.minimum((rng.pareto(0.9, rows) * 4_000).astype(np.int64), 40_000)
    ts = np.sort(rng.integers(0, 86_400_000, rows))
    names = [f"p{p}" for p in page]
    return pa.table({"ts": ts, "wiki": wiki, "page": names, "editor": editor})


def edits_of(rows: pa.Table, *, speed: float, groups: int, k: int) -> Edits:
    columns = {name: rows.column(name).combine_chunks() for name in rows.column_names}
    count = len(rows)
    ms = np.asarray(columns["ts"].cast(pa.int64()))
    minute = ((ms - ms[0]) / speed / MINUTE_MS).astype(np.int64)
    editor = hash_columns([columns["editor"]], count)
    article = hash_columns([columns["wiki"], columns["page"]], count)
    title = hash_columns([columns["page"]], count)
    order = np.lexsort((article, minute))
    new = np.ones(count, np.bool_)
    same_minute = minute[order][1:] == minute[order][:-1]
    new[1:] = ~(same_minute & (article[order][1:] == article[order][:-1]))
    first = np.flatnonzero(new)
    edits = np.diff(np.append(first, count))
    at = order[first]
    group = (article[at] % np.uint64(groups)).astype(np.int64)
    ranked = np.lexsort((article[at], -edits, group, minute[at]))
    cell = minute[at][ranked] * groups + group[ranked]
    starts = np.flatnonzero(np.append(True, cell[1:] != cell[:-1]))
    rank = np.arange(len(cell)) - np.repeat(starts, np.diff(np.append(starts, len(cell))))
    return Edits(
        int(minute[-1]) + 1,
        minute,
        editor,
        article,
        minute[at],
        article[at],
        title[at],
        np.sort(ranked[rank < k]),
    )


def loop(edits: Edits, minutes: range) -> list[range]:
    """Minutes of days without end as minutes of the one day there is."""
    day = edits.minutes
    found = []
    at = minutes.start
    while at < minutes.stop:
        end = min(minutes.stop, at - at % day + day)
        found.append(range(at % day, at % day + end - at))
        at = end
    return found


def loads(edits: Edits, minutes: range, groups: int) -> Any:
    """Load of every key group over some minutes of the day: operators x groups."""
    rows = slice(*np.searchsorted(edits.minute, [minutes.start, minutes.stop]))
    entries = slice(*np.searchsorted(edits.entry_minute, [minutes.start, minutes.stop]))
    tops = tops_in(edits, minutes)
    closed = np.stack([edits.entry_minute[tops].astype(np.uint64), edits.entry_title[tops]])
    titles = np.unique(closed, axis=1)[1]

    def per_group(h: U64) -> Any:
        return np.bincount((h % np.uint64(groups)).astype(np.int64), minlength=groups)

    return np.stack(
        [
            per_group(edits.editor[rows]),
            per_group(edits.article[rows]) + per_group(edits.entry_article[entries]),
            per_group(edits.entry_title[tops]) + per_group(titles),
        ]
    ).astype(np.float64)


def tops_in(edits: Edits, minutes: range) -> I64:
    """Which entries leave the second operator in some minutes."""
    minute = edits.entry_minute[edits.top]
    found: I64 = edits.top[(minute >= minutes.start) & (minute < minutes.stop)]
    return found
