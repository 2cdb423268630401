"""Cost-aware shuffle on Spark, k = 1..10: against the paper's scheduler and those without costs.

Rows are tweets whose reach takes the paper's times, twenty times as fast: 1 ms on average and 3.5
at most. They wait instead of computing (`headgate_lab.osg.waiting`), so that ten instances run on
two cores. Epochs have 100 to 10,000 rows, authors as drawn or a dear and a cheap one in turn. Those
who learn have seen `learn_rows` rows with the most instances before; from then on the number of
instances falls, and they go on from their checkpoints.

Of every epoch is told, in milliseconds: `bound`, the larger of the even share and the longest row;
`dealt`, what the rows of the busiest task should take, which is what a schedule decides; `busy`,
what they took by the worker's clock; `span`, from the first row's begin to the last one's end;
`stage`, Spark's duration of the longest stage, with all that Spark and the engine add. Where tasks
are more than cores, `dealt` and `busy` say nothing, and `span` is held against the bound. Every
contestant's rows are compared with those written: none is lost or processed twice.

A stage of 100 rows takes some 40 ms, by chance 30 or 60. So those that are held against each other
stage by stage, round robin and ours, process more epochs than the others, of which the median
counts; and before anybody's turn comes in a new session, some epochs warm it.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean, median
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

from headgate.arrays import F64
from headgate.demo import EpochFiles, Machine, write_epochs
from headgate_lab.bench.osg_contestants import CONTESTANTS, LEARNERS, Run
from headgate_lab.bench.stage_times import last_stage, stage_ms
from headgate_lab.osg.deals import as_storm, bound_ms, by_author, fewer_of_two, in_turn
from headgate_lab.osg.reach import FollowerGraph, follower_graph
from headgate_lab.record import work_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Say = Callable[[str], None]
SessionOf = Callable[[int], "SparkSession"]
OURS = ("cost", "cost_online")
WARM = 1_000_000  # the number of the first epoch that only warms a session
COMPARED = ("round_robin", "cost")  # by their stages, which takes more epochs


@dataclass(frozen=True)
class SparkOptions:
    """Sizes; the defaults are those of the docs and end within 20 minutes on two cores."""

    instances: tuple[int, ...] = tuple(range(10, 0, -1))
    rows: tuple[tuple[int, int], ...] = ((100, 32), (1_000, 4), (10_000, 1))  # and epochs of each
    fewer: int = 16  # of so many epochs of a size those process one that are not `COMPARED`
    warm_epochs: int = 6
    learn_rows: int = 100_000
    learn_epoch_rows: int = 2_000
    faster: float = 20.0
    epsilon: float = 0.00002
    seed: int = 3
    graph: tuple[int, int, int] = (9_960, 183_005, 1)  # nodes, edges, seed
    contestants: tuple[str, ...] = tuple(CONTESTANTS)
    minutes: float = 19.0  # numbers of instances that would take longer are left out


QUICK = SparkOptions(
    instances=(2, 1),
    rows=((100, 2), (400, 1)),
    fewer=2,
    warm_epochs=1,
    learn_rows=1_200,
    learn_epoch_rows=300,
    graph=(300, 4_000, 1),
)


@dataclass(frozen=True)
class Epoch:
    """`stream` is "drawn", "interleaved", or "warmup": epochs that are not told of. `turn` counts
    those of the same size and stream.
    """

    number: int
    stream: str
    authors: Any
    ms: F64
    turn: int = 0


def local_session(k: int) -> SparkSession:
    """A session with k cores; the one before ends."""
    from pyspark.sql import SparkSession

    from headgate_lab.baselines import spark_query

    active = SparkSession.getActiveSession()
    if active is not None and active.sparkContext.master != f"local[{k}]":
        active.stop()
    return spark_query.session(k)


def run_on_spark(
    options: SparkOptions, say: Say, session_of: SessionOf = local_session
) -> dict[str, Any]:
    """The figures of `headgate-lab bench osg-spark`."""
    graph = follower_graph(*options.graph)
    cost_ms = graph.cost_ms() / options.faster
    told: list[dict[str, Any]] = []
    number, begun_s, turn_s = 0, time.monotonic(), 0.0
    left_out: list[int] = []
    with work_folder() as folder:
        for turn, k in enumerate(options.instances):
            turn_begun_s = time.monotonic()
            if turn_begun_s + turn_s - begun_s > 60 * options.minutes:
                left_out.append(k)
                continue
            learning = _learning(graph, cost_ms, options, number) if turn == 0 else []
            measured = _epochs_of(graph, cost_ms, options, k, number + len(learning))
            number += len(learning) + len(measured)
            fewer = [epoch for epoch in measured if epoch.turn % options.fewer == 0]
            warm = [replace(measured[0], number=WARM + i) for i in range(options.warm_epochs)]
            _run("round_robin", k, warm, Path(folder), options, session_of(k))
            names = options.contestants
            shift = turn % len(names)  # so that none is always the first
            for name in (*names[shift:], *names[:shift]):
                epochs = measured if name in COMPARED else fewer
                epochs = [*learning, *epochs] if name in LEARNERS else epochs
                told += _run(name, k, epochs, Path(folder), options, session_of(k))
            turn_s = time.monotonic() - turn_begun_s
            say(f"{k} instances, {turn_s:.0f} s: " + _line(told, k))
    return {
        **summary(told),
        "epochs": told,
        "left_out": left_out,
        "options": asdict(options),
        "machine": asdict(Machine.here()),
    }


# --- what is processed -------------------------------------------------------------------------
def _learning(graph: FollowerGraph, cost_ms: F64, options: SparkOptions, first: int) -> list[Epoch]:
    rows = options.learn_epoch_rows
    count = -(-options.learn_rows // rows)
    return [_epoch(graph, cost_ms, options, first + i, rows, "warmup") for i in range(count)]


def _epochs_of(
    graph: FollowerGraph, cost_ms: F64, options: SparkOptions, k: int, first: int
) -> list[Epoch]:
    """One for workers to start; then every size as drawn and interleaved. With one instance, where
    nobody has a choice and it takes ten times as long, the largest only as drawn.
    """
    wanted = [(options.rows[0][0], "warmup", 0)]
    for rows, count in options.rows:
        once = k == 1 and rows == options.rows[-1][0]
        streams = ("drawn",) if once else ("drawn", "interleaved")
        wanted += [(rows, stream, turn) for turn in range(count) for stream in streams]
    return [
        replace(_epoch(graph, cost_ms, options, first + i, rows, stream), turn=turn)
        for i, (rows, stream, turn) in enumerate(wanted)
    ]


def _epoch(
    graph: FollowerGraph, cost_ms: F64, options: SparkOptions, number: int, rows: int, stream: str
) -> Epoch:
    author = graph.authors(rows, options.seed * 1_000 + number)
    if stream == "interleaved":
        author = in_turn(author, cost_ms)
    return Epoch(number, stream, author, cost_ms[author])


def _tables(epochs: Sequence[Epoch], k: int) -> Iterator[pa.Table]:
    for epoch in epochs:
        columns = {
            "epoch": np.full(len(epoch.ms), epoch.number, np.int64),
            "author": epoch.authors.astype(np.int64),
            "ms": epoch.ms,
            "fewer_of_two": fewer_of_two(epoch.authors, k, None, epoch.number),
            "as_storm": as_storm(epoch.authors, k, None, epoch.number),
        }
        yield pa.table(columns)


def _write(epochs: Sequence[Epoch], k: int, local: bool, place: Path, first: int) -> EpochFiles:
    """A file an epoch; for those who leave rows where they are read, one for each of k sources."""
    tables = _tables(epochs, k)
    if not local:
        return write_epochs(tables, place, first=first)
    parts = (
        table.filter(by_author(epoch.authors, k, None, 0) == source)
        for table, epoch in zip(tables, epochs, strict=True)
        for source in range(k)
    )
    written = write_epochs(parts, place, first=first * k)
    files = [files[0] for files in written.files]
    return EpochFiles(place, tuple(tuple(files[i : i + k]) for i in range(0, len(files), k)))


# --- a contestant's turn -----------------------------------------------------------------------
def _run(
    name: str,
    k: int,
    epochs: Sequence[Epoch],
    folder: Path,
    options: SparkOptions,
    spark: SparkSession,
) -> list[dict[str, Any]]:
    """Its epochs with k instances, told one by one."""
    home = folder / name
    done = len(list((home / "in").glob("*.parquet")))
    files = _write(epochs, k, name == "local_or_shuffle", home / "in", done)
    before = last_stage(spark)
    turn = Run(
        spark,
        home / "in",
        files.files_per_epoch,
        k,
        options.epsilon,
        home / "out",
        home / "checkpoint",
    )
    CONTESTANTS[name](turn)
    stages = stage_ms(spark, before, len(epochs))
    rows = ds.dataset(home / "out", format="parquet").to_table()
    told = [
        _told(name, k, epoch, rows.filter(ds.field("epoch") == epoch.number), stage)
        for epoch, stage in zip(epochs, stages, strict=True)
    ]
    for leftover in ("out",) if name in LEARNERS else ("in", "out", "checkpoint"):
        shutil.rmtree(home / leftover)
    return [one for one in told if one["stream"] != "warmup"]


def _told(name: str, k: int, epoch: Epoch, rows: pa.Table, stage: float) -> dict[str, Any]:
    found = np.sort(rows["author"].to_numpy())
    if not np.array_equal(found, np.sort(epoch.authors)):
        raise RuntimeError(f"{name}, epoch {epoch.number}: rows are not those that were written")
    begun, ended = rows["begun_s"].to_numpy(), rows["ended_s"].to_numpy()
    _, task = np.unique(rows["task"].to_numpy(), return_inverse=True)
    dealt_ms = float(np.bincount(task, rows["ms"].to_numpy()).max())
    busy_ms = 1e3 * float(np.bincount(task, ended - begun).max())
    span_ms = 1e3 * float(ended.max() - begun.min())
    bound = bound_ms(epoch.ms, k)
    return {
        "contestant": name,
        "k": k,
        "rows": len(found),
        "stream": epoch.stream,
        "bound_ms": bound,
        "dealt_ms": dealt_ms,
        "busy_ms": busy_ms,
        "span_ms": span_ms,
        "stage_ms": stage,
        "over_bound": (span_ms if name == "small_partitions" else dealt_ms) / bound,
        "busy_over_bound": (span_ms if name == "small_partitions" else busy_ms) / bound,
    }


# --- what is said of it ------------------------------------------------------------------------
def summary(told: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Means (of stages medians) by stream, rows per epoch, contestant and instances; gains over
    round robin.
    """
    over, busy = (_by_place(told, x, mean) for x in ("over_bound", "busy_over_bound"))
    stages = _by_place(told, "stage_ms", median)
    return {
        "over_bound": over,
        "busy_over_bound": busy,
        "stage_ms": stages,
        "gain": _gain(over),
        "stage_gain": _gain(stages),
        "over_bound_worst": {
            name: max(
                x
                for by_rows in over.values()
                for by_name in by_rows.values()
                for x in by_name.get(name, {"": 0.0}).values()
            )
            for name in OURS
        },
    }


def _by_place(
    told: Sequence[dict[str, Any]], value: str, middle: Callable[[list[float]], float]
) -> dict[str, Any]:
    """By stream, rows per epoch, contestant and instances."""
    of: dict[tuple[str, str, str, str], list[float]] = {}
    for one in told:
        place = one["stream"], str(one["rows"]), one["contestant"], str(one["k"])
        of.setdefault(place, []).append(one[value])
    found: dict[str, Any] = {}
    for (stream, rows, name, k), values in of.items():
        by_rows = found.setdefault(stream, {})
        by_rows.setdefault(rows, {}).setdefault(name, {})[k] = middle(values)
    return found


def _gain(of: dict[str, Any]) -> dict[str, Any]:
    """Round robin's over ours: mean and least over all k, by stream and rows per epoch."""
    gains: dict[str, Any] = {}
    for stream, by_rows in of.items():
        for rows, by_name in by_rows.items():
            base = by_name.get("round_robin", {})
            for name in OURS:
                ratios = [base[k] / x for k, x in by_name.get(name, {}).items() if k in base]
                if ratios:
                    put = gains.setdefault(stream, {}).setdefault(rows, {})
                    put[name] = {"mean": mean(ratios), "least": min(ratios), "most": max(ratios)}
    return gains


def _line(told: Sequence[dict[str, Any]], k: int) -> str:
    names = dict.fromkeys(one["contestant"] for one in told)
    means = {
        name: mean(o["over_bound"] for o in told if o["contestant"] == name and o["k"] == k)
        for name in names
    }
    return ", ".join(f"{name} {over:.2f}" for name, over in means.items())
