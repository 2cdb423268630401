"""How rows per second grow with slots, row bytes and chain length. One factor moves at a time.

The base setting runs a few times before the clock does, because the JVM compiles for some ten
epochs. Epochs of wide rows hold fewer of them, so that no epoch is larger than `epoch_bytes_max`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from headgate.demo import Machine, write_epochs
from headgate.flow import Flow
from headgate.operator import Count
from headgate.topology.files import Files
from headgate_lab.baselines import spark_query
from headgate_lab.bench.contestant import epoch_seconds
from headgate_lab.record import side_by_side, work_folder
from headgate_lab.streams import chain_keys

Say = Callable[[str], None]


@dataclass(frozen=True)
class GrowthOptions:
    rows: int = 200_000
    slots: tuple[int, ...] = (1, 2, 4, 8)
    row_bytes: tuple[int, ...] = (0, 100, 1_000, 4_000)
    chain: tuple[int, ...] = (1, 2, 4)
    epochs: int = 4
    rounds: int = 2
    epoch_bytes_max: int = 80_000_000
    warmup_runs: int = 3
    seed: int = 11


QUICK = GrowthOptions(
    rows=2_000, slots=(2,), row_bytes=(100,), chain=(2,), epochs=2, rounds=1, warmup_runs=0
)


def run_growth(options: GrowthOptions, say: Say) -> dict[str, Any]:
    """Rows per second by setting; the base is 2 slots, no payload, a chain of 2."""
    cells: dict[str, tuple[int, int, int]] = {}
    for slots in options.slots:
        cells[f"slots={slots}"] = (slots, 0, 2)
    for size in options.row_bytes:
        cells[f"row_bytes={size}"] = (2, size, 2)
    for length in options.chain:
        cells[f"chain={length}"] = (2, 0, length)
    with work_folder() as folder:
        work = Path(folder)
        number = iter(range(1_000_000))

        def cost(cell: tuple[int, int, int]) -> float:
            return _cost(*cell, options=options, work=work / f"run-{next(number)}")

        for _ in range(options.warmup_runs):
            cost((2, 0, 2))
        turns = side_by_side(
            {name: partial(cost, cell) for name, cell in cells.items()},
            options.rounds,
            lambda n, name, cost: say(f"round {n + 1}: {name:16} {1 / cost:12,.0f} rows/s"),
        )
    return {
        "rows_per_s": {name: 1 / cost for name, cost in turns.medians.items()},
        "seconds_per_row_raw": {name: list(costs) for name, costs in turns.raw.items()},
        "options": asdict(options),
        "machine": asdict(Machine.here()),
    }


def _cost(slots: int, row_bytes: int, chain: int, *, options: GrowthOptions, work: Path) -> float:
    """Seconds per row of the median epoch after the first."""
    rows = min(options.rows, options.epoch_bytes_max // max(1, row_bytes))
    made = [
        chain_keys(rows, seed=options.seed, epoch=e, chain=chain, payload_bytes=row_bytes).table
        for e in range(options.epochs)
    ]
    epochs = write_epochs(made, work / "in", files_per_epoch=2)
    spark = spark_query.session(2)
    flow = Flow("growth")
    stream = flow.source(Files(epochs.directory, max_files=epochs.files_per_epoch))
    for place in range(1, chain + 1):
        stream = stream.key_by(f"k{place}", grouping="hash").process(
            Count(emit="rows"), name=f"count_{place}"
        )
    if row_bytes:
        stream = stream.filter(_keep_all, name="reads_the_payload")
        stream = stream.key_by("k1", grouping="hash").process(
            Count(emit="rows"), name="count_again"
        )
    stream.discard()
    query = flow.start(
        spark,
        slots=slots,
        checkpoint=str(work / "ck"),
        trigger={"availableNow": True},
        manager=None,
    )
    query.awaitTermination()
    return median(epoch_seconds(query, len(epochs))[1:]) / rows


def _keep_all(batch: Any) -> Any:
    """A filter that needs the whole row, so that the payload comes through the chain."""
    return batch.column("payload").is_valid()
