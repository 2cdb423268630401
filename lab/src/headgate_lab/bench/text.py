"""Sums by text keys: headgate against native Spark (both state stores), Flink SQL and DuckDB.

A row is a user (`user-N`, Zipfian over a million), a page (`/p/N` of 50,000, one of 50 for a user)
and an amount. Every contestant sums amounts by user and by page over the same files, an epoch each,
and is checked against one batch group-by (Flink, whose sink throws rows away, is not). Contestants
take turns; figures are medians, raw rounds are kept. Flink reads the rows as CSV; its time is that
of a run without that of a small run before it, which is start-up. DuckDB aggregates every
epoch into tables in memory, on as many threads: no stream, no durability, a limit.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.demo import EpochFiles, Machine, generators, write_epochs, zipf_weights
from headgate_lab.baselines import duckdb_limit, flink_sql, spark_query
from headgate_lab.baselines.result import RivalUnavailable
from headgate_lab.bench.contestant import epoch_seconds
from headgate_lab.record import side_by_side, work_folder

Say = Callable[[str], None]
KEYS = ("user", "page")
Sums = dict[str, dict[str, int]]


@dataclass(frozen=True)
class TextOptions:
    """Sizes of the comparison; the defaults are the ones whose figures the docs quote."""

    rows_per_epoch: int = 500_000
    epochs: int = 16
    warmup: int = 8
    users: int = 1_000_000
    pages: int = 50_000
    pages_of_a_user: int = 50
    zipf: float = 1.05
    slots: int = 2
    rounds: int = 3
    seed: int = 7
    rivals: tuple[str, ...] = ("native_rocksdb", "native_memory", "flink", "duckdb")


QUICK = TextOptions(
    rows_per_epoch=5_000,
    epochs=3,
    warmup=1,
    users=1_000,
    pages=100,
    rounds=1,
    rivals=("native_memory", "duckdb"),
)


def text_rows(options: TextOptions, epoch: int) -> pa.Table:
    world, draw = generators(options.seed, epoch)
    names = world.permutation(options.users)
    rows = options.rows_per_epoch
    user = names[draw.choice(options.users, size=rows, p=_weights(options))]
    page = (user * 31 + draw.integers(0, options.pages_of_a_user, rows)) % options.pages
    return pa.table(
        {
            "user": _named("user-", user),
            "page": _named("/p/", page),
            "amount": pa.array(draw.integers(1, 100, rows), pa.int64()),
        }
    )


def _weights(options: TextOptions) -> Any:
    return zipf_weights(options.users, options.zipf)


def _named(prefix: str, numbers: Any) -> pa.Array:
    text = pa.array(numbers.astype(np.int64)).cast(pa.string())
    return pc.binary_join_element_wise(prefix, text, "")


def run_text(options: TextOptions, say: Say) -> dict[str, Any]:
    """The figures of `headgate-lab bench text`: rows per second and ratios."""
    with work_folder() as folder:
        work = Path(folder)
        tables = (text_rows(options, epoch) for epoch in range(options.epochs))
        epochs = write_epochs(tables, work / "in")
        expected = _oracle(epochs)
        contestants: dict[str, Callable[[Path], tuple[float, Sums | None]]] = {
            "split": partial(_headgate, epochs, options, "partial"),
            "keyed": partial(_headgate, epochs, options, "hash"),
        }
        known: dict[str, Callable[[Path], tuple[float, Sums | None]]] = {
            "native_rocksdb": partial(_native, epochs, options, spark_query.ROCKSDB),
            "native_memory": partial(_native, epochs, options, spark_query.MEMORY),
            "flink": partial(_flink, epochs, options),
            "duckdb": partial(_duckdb, epochs, options),
        }
        absent: dict[str, str] = {}
        if "flink" in options.rivals:
            try:
                flink_sql.RIVAL.setup()
            except RivalUnavailable as problem:
                absent["flink"] = str(problem)
                say(f"flink left out: {problem}")
        contestants |= {n: known[n] for n in options.rivals if n not in absent}
        number = iter(range(1_000_000))

        def timed(name: str) -> float:
            place = work / f"run-{next(number)}"
            place.mkdir()
            cost, sums = contestants[name](place)
            if sums is not None and sums != expected:
                raise RuntimeError(f"{name} summed wrongly; its time means nothing")
            shutil.rmtree(place, ignore_errors=True)
            return cost

        turns = side_by_side(
            {name: partial(timed, name) for name in contestants},
            options.rounds,
            lambda turn, name, cost: say(
                f"round {turn + 1} of {options.rounds}: {name:15} {1 / cost:12,.0f} rows/s"
            ),
        )
    return {
        **figures(turns.raw),
        "order": [list(names) for names in turns.order],
        "absent": absent,
        "options": asdict(options),
        "machine": asdict(Machine.here()),
    }


def figures(raw: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Rates and ratios by the seconds that a row took in each round; None where a peer is not."""
    rates = {name: 1 / median(costs) for name, costs in raw.items()}
    native = max((rates[n] for n in ("native_rocksdb", "native_memory") if n in rates), default=0)
    flink = rates.get("flink", 0)
    return {
        **{f"{name}_rows_per_s": rate for name, rate in rates.items()},
        "split_over_native": rates["split"] / native if native else None,
        "keyed_over_native": rates["keyed"] / native if native else None,
        "split_over_flink": rates["split"] / flink if flink else None,
        "seconds_per_row_raw": {name: list(costs) for name, costs in raw.items()},
    }


def _oracle(epochs: EpochFiles) -> Sums:
    rows = pa.concat_tables(epochs.read(epoch) for epoch in range(len(epochs)))
    summed = {key: rows.group_by(key).aggregate([("amount", "sum")]) for key in KEYS}
    return {key: _as_dict(table[key], table["amount_sum"]) for key, table in summed.items()}


def _as_dict(keys: Any, sums: Any) -> dict[str, int]:
    return dict(zip(keys.to_pylist(), sums.to_pylist(), strict=True))


def _cost(seconds: tuple[float, ...], options: TextOptions) -> float:
    return sum(seconds[options.warmup :]) / (len(seconds) - options.warmup) / options.rows_per_epoch


def _headgate(
    epochs: EpochFiles, options: TextOptions, grouping: Any, work: Path
) -> tuple[float, Sums]:
    from headgate.flow import Flow
    from headgate.operator import Sum
    from headgate.topology.files import Files

    spark = spark_query.session(options.slots)
    flow = Flow("text")
    rows = flow.source(Files(epochs.directory, max_files=epochs.files_per_epoch))
    for key in KEYS:
        rows.key_by(key, grouping=grouping).process(Sum("amount"), name=f"by_{key}").discard()
    query = flow.start(
        spark,
        slots=options.slots,
        checkpoint=str(work / "headgate"),
        trigger={"availableNow": True},
        manager=None,
    )
    query.awaitTermination()
    seconds = epoch_seconds(query, len(epochs))
    states = {key: query.state(f"by_{key}") for key in KEYS}
    return _cost(seconds, options), {k: _as_dict(s[k], s["sum"]) for k, s in states.items()}


def _native(epochs: EpochFiles, options: TextOptions, store: str, work: Path) -> tuple[float, Sums]:
    """One query, as in `baselines/native.py`: the union of both keys, grouped by which and key."""
    spark = spark_query.session(options.slots, store)
    parts = [
        spark.readStream.schema("user string, page string, amount long")
        .option("maxFilesPerTrigger", epochs.files_per_epoch)
        .parquet(str(epochs.directory))
        .selectExpr(f"{place} AS place", f"{key} AS key", "amount")
        for place, key in enumerate(KEYS)
    ]
    summed = parts[0].union(parts[1]).groupBy("place", "key").sum("amount")
    checkpoint = work / "native"
    seconds = spark_query.drain(summed, mode="update", checkpoint=checkpoint, epochs=epochs)
    state = spark.read.format("statestore").load(str(checkpoint))
    found = {}
    for place, key in enumerate(KEYS):
        named = state.where(f"key.place = {place}").selectExpr("key.key AS key", "value.sum AS sum")
        table = named.toArrow()
        found[key] = _as_dict(table["key"], table["sum"])
    return _cost(seconds, options), found


def _flink(epochs: EpochFiles, options: TextOptions, work: Path) -> tuple[float, None]:
    cost = flink_sql.seconds_per_row(epochs, flink_sql.SUMS, slots=options.slots, work_dir=work)
    return cost, None


def _duckdb(epochs: EpochFiles, options: TextOptions, work: Path) -> tuple[float, Sums]:
    seconds, tables = duckdb_limit.aggregate(epochs, KEYS, "sum(amount)", slots=options.slots)
    found = {key: _as_dict(table["key"], table["total"]) for key, table in tables.items()}
    return _cost(seconds, options), found
