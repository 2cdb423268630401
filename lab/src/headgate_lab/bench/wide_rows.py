"""Wide rows through a chain of three that passes them on: parked columns, travelling ones, Spark.

A row is three keys and random bytes, which no codec makes smaller. Headgate counts by each key,
every row goes on to the next, and a filter behind the last reads the payload. It runs twice: with
the payload waiting in a file until then (`park_bytes`), and travelling with its row. Native Spark
has nothing that counts in a stream and passes rows on, so it does less: it shuffles the rows by the
same three keys, and gives them to the `noop` sink. Columns that no plan can foresee keep it from
making one shuffle of three.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from headgate.commit.settings import Options
from headgate.demo import EpochFiles, Machine, write_epochs
from headgate.flow import Flow
from headgate.operator import Count
from headgate.topology.files import Files
from headgate.typical import PARK_BYTES
from headgate_lab.baselines import spark_query
from headgate_lab.bench.contestant import epoch_seconds
from headgate_lab.record import side_by_side, work_folder
from headgate_lab.streams import chain_keys

Say = Callable[[str], None]
CHAIN = 3


@dataclass(frozen=True)
class WideRowsOptions:
    row_bytes: tuple[int, ...] = (1_000, 4_000)
    epoch_bytes: int = 80_000_000
    epochs: int = 7
    warmup: int = 3
    rounds: int = 3
    slots: int = 2
    seed: int = 11


QUICK = WideRowsOptions(row_bytes=(1_000,), epoch_bytes=200_000, epochs=2, warmup=1, rounds=1)


def run_wide_rows(options: WideRowsOptions, say: Say) -> dict[str, Any]:
    """Rows per second by row size and contestant, and their ratios."""
    sizes = {str(size): _of_size(size, options, say) for size in options.row_bytes}
    return {
        **{
            ratio: {size: found[ratio] for size, found in sizes.items()}
            for ratio in ("parked_over_native", "parked_over_travelling")
        },
        "rows_per_s": {size: found["rows_per_s"] for size, found in sizes.items()},
        "seconds_per_row_raw": {size: found["raw"] for size, found in sizes.items()},
        "options": asdict(options),
        "machine": asdict(Machine.here()),
    }


def _of_size(size: int, options: WideRowsOptions, say: Say) -> dict[str, Any]:
    rows = max(1, options.epoch_bytes // size)
    with work_folder() as folder:
        work = Path(folder)
        tables = (
            chain_keys(rows, seed=options.seed, epoch=e, chain=CHAIN, payload_bytes=size).table
            for e in range(options.epochs)
        )
        epochs = write_epochs(tables, work / "in", files_per_epoch=2)
        number = iter(range(1_000_000))

        def timed(run: Callable[[Path], tuple[float, ...]]) -> float:
            place = work / f"run-{next(number)}"
            place.mkdir()
            seconds = run(place)
            shutil.rmtree(place, ignore_errors=True)
            return median(seconds[options.warmup :]) / rows

        contestants: dict[str, Callable[[Path], tuple[float, ...]]] = {
            "parked": partial(_headgate, epochs, options, PARK_BYTES),
            "travelling": partial(_headgate, epochs, options, None),
            "native": partial(_native, epochs, options),
        }
        turns = side_by_side(
            {name: partial(timed, run) for name, run in contestants.items()},
            options.rounds,
            lambda n, name, cost: say(
                f"{size} bytes, round {n + 1}: {name:11} {1 / cost:12,.0f} rows/s"
            ),
        )
    rates = {name: 1 / cost for name, cost in turns.medians.items()}
    return {
        "rows_per_s": rates,
        "parked_over_native": rates["parked"] / rates["native"],
        "parked_over_travelling": rates["parked"] / rates["travelling"],
        "raw": {name: list(costs) for name, costs in turns.raw.items()},
    }


def _headgate(
    epochs: EpochFiles, options: WideRowsOptions, park_bytes: int | None, work: Path
) -> tuple[float, ...]:
    flow = Flow("wide_rows")
    stream = flow.source(Files(epochs.directory, max_files=epochs.files_per_epoch))
    for place in range(1, CHAIN + 1):
        stream = stream.key_by(f"k{place}", grouping="hash").process(
            Count(emit="rows"), name=f"count_{place}"
        )
    stream.filter(_has_payload, name="reads_the_payload").filter(_nothing).to_memory("none")
    query = flow.start(
        spark_query.session(options.slots),
        slots=options.slots,
        checkpoint=str(work / "headgate"),
        trigger={"availableNow": True},
        options=Options(park_bytes=park_bytes),
        manager=None,
    )
    query.awaitTermination()
    return tuple(epoch_seconds(query, len(epochs)))


def _has_payload(batch: Any) -> Any:
    return batch.column("payload").is_valid()


def _nothing(batch: Any) -> Any:
    import numpy as np

    return np.zeros(batch.num_rows, np.bool_)


def _native(epochs: EpochFiles, options: WideRowsOptions, work: Path) -> tuple[float, ...]:
    from pyspark.sql import functions as F

    spark = spark_query.session(options.slots)
    spark.conf.set("spark.sql.adaptive.enabled", "false")
    columns = ", ".join(f"k{place} long" for place in range(1, CHAIN + 1))
    rows = (
        spark.readStream.schema(f"{columns}, payload binary")
        .option("maxFilesPerTrigger", epochs.files_per_epoch)
        .parquet(str(epochs.directory))
    )

    def shuffle(batch: Any, _: int) -> None:
        for place in range(1, CHAIN + 1):
            batch = batch.repartition(options.slots, f"k{place}")
            batch = batch.withColumn(f"id{place}", F.monotonically_increasing_id())
        batch.where(F.length("payload") >= 0).write.format("noop").mode("append").save()

    query = (
        rows.writeStream.foreachBatch(shuffle)
        .option("checkpointLocation", str(work / "native"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    done = [p for p in query.recentProgress if p.numInputRows > 0]
    if len(done) != len(epochs):
        raise RuntimeError(f"{len(epochs)} epochs became {len(done)} micro-batches")
    return tuple(p.durationMs["triggerExecution"] / 1000 for p in done)
