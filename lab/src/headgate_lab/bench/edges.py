"""Figure 12 of Caneill et al. 2016: locality against the number of pairs that a planner knows.

A planner sees the heaviest k pairs of a window; its tables are judged on the rows that follow,
which it has not seen. Windows lie all over the data and their figures are averaged. Where the
congress data is not at hand, a drifting stream of our own stands in, and the result says so.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import headgate
from headgate.arrays import U64
from headgate.demo import Machine, trends
from headgate.offline.analyze import hash_tables, steps_to
from headgate.offline.pairs import Outlook, Pairs, Shape, count_pairs, graph_of, hashes_of
from headgate.planner.key_graph import to_tables
from headgate.planner.partition import partition

Say = Callable[[str], None]
DATA_VARIABLE = "HEADGATE_DATA"
_FILE = "congress_state_hashtag_2017_2023.parquet"


@dataclass(frozen=True)
class EdgesOptions:
    window: int = 60_000
    period: int = 30_000
    windows: int = 8
    slots: tuple[int, ...] = (2, 3, 4, 5, 6)
    alpha: float = 1.03
    seed: int = 0
    generated_epochs: int = 60


QUICK = EdgesOptions(window=5_000, period=2_000, windows=2, slots=(2, 4), generated_epochs=4)


def run_edges(options: EdgesOptions, say: Say, data: Path | None = None) -> dict[str, Any]:
    """`edges` and, per slot count, the mean `locality` on the rows after each window.

    The last entry of `edges` is the mean number of all pairs of a window.
    """
    name, shape, keys = read_keys(options, data, say)
    length = options.window + options.period
    starts = np.linspace(0, len(keys[0]) - length, options.windows).astype(int)
    windows = [_window(keys, int(at), options, shape) for at in starts]
    *steps, everything = steps_to(round(float(np.mean([len(before) for before, _ in windows]))))
    raw: dict[str, list[list[float]]] = {}
    uneven: dict[str, list[list[float]]] = {}
    hashed: dict[str, float] = {}
    for slots in options.slots:
        told = [_judge(before, after, shape, slots, steps, options) for before, after in windows]
        raw[str(slots)] = [[share for share, _ in line] for line in told]
        uneven[str(slots)] = [[worst for _, worst in line] for line in told]
        plain = hash_tables(shape.operators, slots)
        hashed[str(slots)] = float(
            np.mean([Outlook(shape, after.traffic(shape, plain)).locality for _, after in windows])
        )
        means = ", ".join(f"{share:.1%}" for share in np.mean(raw[str(slots)], axis=0))
        say(f"{slots} slots: {means} (hash {hashed[str(slots)]:.1%})")
    return {
        "data": name,
        "rows": len(keys[0]),
        "edges": [*steps, everything],
        "locality": {n: np.mean(lines, axis=0).tolist() for n, lines in raw.items()},
        "hash_locality": hashed,
        "imbalance": {n: np.mean(lines, axis=0).tolist() for n, lines in uneven.items()},
        "locality_raw": raw,
        "options": asdict(options),
        "machine": asdict(Machine.here()),
    }


def read_keys(options: EdgesOptions, data: Path | None, say: Say) -> tuple[str, Shape, list[U64]]:
    """Name, operators and key hashes of the rows, in order."""
    path = data or data_folder() / _FILE
    if path.exists():
        columns = ("state", "hashtag")
        rows = pq.read_table(path, columns=list(columns))
        name = path.stem
    else:
        say(f"no {_FILE} in {path.parent} (set {DATA_VARIABLE}); using a generated stream")
        columns = ("region", "hashtag")
        each = -(-2 * (options.window + options.period) // options.generated_epochs)
        rows = pa.concat_tables(
            trends(each, seed=options.seed, epoch=epoch).select(list(columns))
            for epoch in range(options.generated_epochs)
        )
        name = "trends (generated)"
    shape = Shape(columns, tuple((column,) for column in columns), ((0, 1),))
    return name, shape, hashes_of(rows, shape.keys)


def data_folder() -> Path:
    """Where real data lies, if it does: HEADGATE_DATA, or beside the repository."""
    told = os.environ.get(DATA_VARIABLE)
    return Path(told) if told else Path(headgate.__file__).parents[3] / "shared" / "data"


def _window(keys: list[U64], at: int, options: EdgesOptions, shape: Shape) -> tuple[Pairs, Pairs]:
    """Pairs of the window that starts at a row, and of the period after it."""
    middle, end = at + options.window, at + options.window + options.period
    before = count_pairs([h[at:middle] for h in keys], shape.edges)
    after = count_pairs([h[middle:end] for h in keys], shape.edges)
    return before.sorted(), after


def _judge(
    before: Pairs, after: Pairs, shape: Shape, slots: int, steps: list[int], options: EdgesOptions
) -> list[tuple[float, float]]:
    """Locality and worst imbalance on the rows after, for each number of pairs known."""
    graph = graph_of(before, shape)
    found = []
    for k in [*steps, graph.edges]:
        known = graph.top_edges(k)
        plan = partition(known, slots, alpha=options.alpha, seed=options.seed)
        tables = to_tables(known, plan.slot, slots)
        judged = Outlook(shape, after.traffic(shape, tables))
        found.append((judged.locality, max(judged.imbalance.values())))
    return found
