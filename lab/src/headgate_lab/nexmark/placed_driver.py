"""The driver program of `nexmark --placed`; runs inside the cluster's driver namespace.

Runs each query over the same files with hash routing and with tables, and prints one JSON object:
bytes by edge, all bytes that were shuffled, and the share of rows that stayed in their slot.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from headgate.commit.settings import Options
from headgate.routing.table import RoutingTable, hash_table
from headgate_lab.nexmark.contestants import declare, nothing
from headgate_lab.nexmark.event_files import EventFiles, write_event_files
from headgate_lab.nexmark.events import EventOptions
from headgate_lab.nexmark.queries import QUERIES

LEADS_TO = {"q4": ("category", "categories"), "q6": ("seller", "sellers"), "q9": ("seller", "")}
"""What an auction leads to, and the operator that is keyed by it; q9 has none."""


def main(settings: dict[str, Any], work: Path) -> dict[str, Any]:
    options = EventOptions(
        events=settings["events"],
        events_per_second=settings["events_per_second"],
        seed=settings["seed"],
    )
    files = write_event_files(options, work / "events", epochs=settings["epochs"])
    spark = SparkSession.builder.getOrCreate()
    found: dict[str, Any] = {}
    for name in settings["queries"]:
        ways: dict[str, dict[str, RoutingTable]] = {
            "hash": {},
            "tables": tables_for(name, files, settings["slots"]),
        }
        found[name] = {
            way: _run(spark, name, files, settings["slots"], work / f"{name}-{way}", tables)
            for way, tables in ways.items()
        }
        found[name]["tables_over_hash"] = {
            what: _ratio(found[name], what) for what in ("bytes_shuffled", "bytes_behind_the_join")
        }
    return found


def tables_for(name: str, files: EventFiles, slots: int) -> dict[str, RoutingTable]:
    """Every auction in the slot of what it leads to; those are dealt out, the heaviest first."""
    target, operator = LEADS_TO[name]
    auctions = pa.concat_tables(
        pq.read_table(path, columns=["id", target]) for path in files.tables["auction"].paths
    )
    of_auction = auctions[target].to_numpy()
    known, code, count = np.unique(of_auction, return_inverse=True, return_counts=True)
    slot_of, load = np.zeros(len(known), np.int32), np.zeros(slots)
    for place in np.argsort(-count, kind="stable"):
        slot_of[place] = load.argmin()
        load[slot_of[place]] += count[place]
    ids = [auctions["id"].combine_chunks()]
    tables = {joined: hash_table(slots).pin(ids, slot_of[code]) for joined in ("offers", "winning")}
    if operator:
        tables[operator] = hash_table(slots).pin([pa.array(known)], slot_of)
    return tables


def _run(
    spark: SparkSession,
    name: str,
    files: EventFiles,
    slots: int,
    work: Path,
    tables: dict[str, RoutingTable],
) -> dict[str, Any]:
    flow, results = declare(QUERIES[name], files, str(work / "out"))
    results.filter(nothing, name="made").to_memory("results")
    query = flow.start(
        spark,
        slots=slots,
        checkpoint=str(work / "checkpoint"),
        trigger={"availableNow": True},
        options=Options(tables=tables, park_bytes=None),  # all of a row takes the link
        manager=None,
    )
    query.awaitTermination()
    epochs = [record for record in query.journal() if record["kind"] == "epoch"]
    edges: dict[str, int] = {}
    for record in epochs:
        for edge, facts in record["edges"].items():
            edges[edge] = edges.get(edge, 0) + facts["remote_bytes"]
    behind = {edge: count for edge, count in edges.items() if not edge.endswith("->offers")}
    return {
        "bytes_shuffled": sum(record["bytes_shuffled"] for record in epochs),
        "bytes_behind_the_join": sum(behind.values()),
        "bytes_by_edge": edges,
        "locality": [record["locality"] for record in epochs],
    }


def _ratio(ways: dict[str, Any], what: str) -> float | None:
    return ways["tables"][what] / ways["hash"][what] if ways["hash"][what] else None


if __name__ == "__main__":
    told = main(json.loads(sys.argv[1]), Path(sys.argv[2]))
    sys.stdout.write("RESULT " + json.dumps(told) + "\n")
