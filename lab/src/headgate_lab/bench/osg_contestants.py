"""Who deals rows on Spark in `bench osg-spark`: flows of ours, and queries of plain Spark.

All of them process the same rows, in as many slots as there are cores, and write which task
processed a row and when. Round robin and local-or-shuffle are groupings of a flow. Power of two
and load-aware go by the rows that an instance was sent, which is all that a scheduler can know
while an epoch is dealt; so their targets can be drawn when rows are written, and plain Spark sends
them there (`repartitionById`). Many small partitions is what Spark's users do: eight for each core.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headgate.flow import Flow
from headgate_lab.osg.waiting import wait

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

IN = "epoch bigint, author bigint, ms double, fewer_of_two int, as_storm int"
OUT = f"{IN}, task bigint, begun_s double, ended_s double"
ADDED = (
    pa.field("task", pa.int64()),
    pa.field("begun_s", pa.float64()),
    pa.field("ended_s", pa.float64()),
)
TASKS_PER_CORE = 8


@dataclass(frozen=True)
class Run:
    """A contestant's turn: rows of `source`, `k` slots, what it writes into `place`."""

    spark: SparkSession
    source: Path
    files_per_epoch: int
    k: int
    epsilon: float
    place: Path
    checkpoint: Path

    @property
    def rows(self) -> DataFrame:
        reader = self.spark.readStream.schema(IN)
        return reader.option("maxFilesPerTrigger", self.files_per_epoch).parquet(str(self.source))


Contestant = Callable[[Run], None]


def _flow(grouping: str, schedule: Any = "batch") -> Contestant:
    def run(turn: Run) -> None:
        flow = Flow("reach")
        rows = flow.source(turn.rows)
        if grouping == "cost":
            rows = rows.shuffle(
                grouping="cost", attribute="author", schedule=schedule, epsilon=turn.epsilon
            )
        elif grouping == "round_robin":
            rows = rows.shuffle()
        else:
            rows = rows.local_or_shuffle()
        rows.map_rows(wait, OUT, name="reach").to_parquet(str(turn.place))
        query = flow.start(
            turn.spark,
            slots=turn.k,
            checkpoint=str(turn.checkpoint),
            trigger={"availableNow": True},
            manager=None,
        )
        query.awaitTermination()

    return run


def _spark(spread: Callable[[DataFrame, int], DataFrame]) -> Contestant:
    def run(turn: Run) -> None:
        def process(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                done = [wait(row) for row in batch.to_pylist()]
                yield pa.RecordBatch.from_pylist(done, schema=pa.schema([*batch.schema, *ADDED]))

        query = (
            spread(turn.rows, turn.k)
            .mapInArrow(process, OUT)
            .writeStream.format("parquet")
            .option("path", str(turn.place))
            .option("checkpointLocation", str(turn.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    return run


CONTESTANTS: dict[str, Contestant] = {
    "round_robin": _flow("round_robin"),
    "local_or_shuffle": _flow("local"),
    "power_of_two": _spark(lambda rows, k: rows.repartitionById(k, "fewer_of_two")),
    "load_aware": _spark(lambda rows, k: rows.repartitionById(k, "as_storm")),
    "small_partitions": _spark(lambda rows, k: rows.repartition(k * TASKS_PER_CORE)),
    "paper": _flow("cost", "paper"),
    "cost_online": _flow("cost", "online"),
    "cost": _flow("cost"),
}
LEARNERS = ("paper", "cost_online", "cost")  # go on from what they knew with more instances
