"""The driver program of `bench wide`; runs inside the cluster's driver namespace.

Runs the same flow over the same rows with hash routing and with tables that keep whole clusters of
keys in one slot, in alternating order, and prints one JSON object.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from headgate.commit.settings import Options
from headgate.demo import write_epochs
from headgate.flow import Flow
from headgate.operator import Count
from headgate.routing.table import RoutingTable, hash_table
from headgate_lab.bench.contestant import epoch_seconds
from headgate_lab.streams import KeyChain, chain_keys


def main(settings: dict[str, Any], work: Path) -> dict[str, Any]:
    spark = SparkSession.builder.getOrCreate()
    slots, chain = settings["slots"], settings["chain"]
    made: list[KeyChain] = [
        chain_keys(
            settings["rows"],
            seed=settings["seed"],
            epoch=epoch,
            chain=chain,
            payload_bytes=settings["row_bytes"],
            clusters=slots,
            locality=settings["locality"],
        )
        for epoch in range(settings["epochs"])
    ]
    write_epochs((m.table for m in made), work / "in", files_per_epoch=slots)
    tables = cluster_tables(made[0], slots)
    modes: dict[str, dict[str, RoutingTable]] = {"hash": {}, "tables": tables}
    found: dict[str, Any] = {
        mode: {"epoch_s": [], "locality": [], "bytes_shuffled": []} for mode in modes
    }
    for turn in range(settings["rounds"]):
        for mode in list(modes)[:: 1 if turn % 2 == 0 else -1]:
            facts = _run(spark, settings, work, f"{mode}-{turn}", modes[mode])
            for name, values in facts.items():
                found[mode][name].append(values)
    return found


def cluster_tables(keys: KeyChain, slots: int) -> dict[str, RoutingTable]:
    """Pin every key to the slot of its cluster."""
    return {
        f"count_{place}": hash_table(slots).pin(
            [pa.array(np.arange(len(cluster_of_key)))],
            (cluster_of_key % slots).astype(np.int32),
        )
        for place, cluster_of_key in enumerate(keys.clusters, start=1)
    }


def _run(
    spark: SparkSession,
    settings: dict[str, Any],
    work: Path,
    name: str,
    tables: dict[str, RoutingTable],
) -> dict[str, Any]:
    folder = f"file://{work / 'in'}"
    columns = ", ".join(f"k{place} bigint" for place in range(1, settings["chain"] + 1))
    frame = (
        spark.readStream.schema(f"{columns}, payload binary")
        .option("maxFilesPerTrigger", settings["slots"])
        .parquet(folder)
    )
    flow = Flow("wide")
    stream = flow.source(frame)
    for place in range(1, settings["chain"] + 1):
        stream = stream.key_by(f"k{place}", grouping="hash").process(
            Count(emit="rows"), name=f"count_{place}"
        )
    stream.filter(payload_is_whole, name="reads_the_payload").filter(nothing).to_memory("none")
    query = flow.start(
        spark,
        slots=settings["slots"],
        checkpoint=str(work / f"ck-{name}"),
        trigger={"availableNow": True},
        options=Options(tables=tables, park_bytes=None),  # all of a row takes the link
        manager=None,
    )
    query.awaitTermination()
    records = [p["headgate"] for p in query.recentProgress if p["numInputRows"]]
    return {
        "epoch_s": epoch_seconds(query, settings["epochs"])[1:],
        "locality": [r["locality"] for r in records],
        "bytes_shuffled": [r["bytes_shuffled"] for r in records],
    }


def payload_is_whole(batch: pa.RecordBatch) -> Any:
    """Reads the payload after the last hop, so that it must have travelled all the way."""
    return batch.column("payload").is_valid()


def nothing(batch: pa.RecordBatch) -> Any:
    return np.zeros(batch.num_rows, np.bool_)


if __name__ == "__main__":
    told = main(json.loads(sys.argv[1]), Path(sys.argv[2]))
    sys.stdout.write("RESULT " + json.dumps(told) + "\n")
