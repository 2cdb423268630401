"""The driver program of `nexmark --placed`; runs inside the cluster's driver namespace.

Runs each query over the same files in several ways, and tells before and after each run that it
does, a line of JSON, so that what hosts send can be counted from outside. Every run is checked:
against DuckDB, and all ways of a query put out the same rows.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import headgate as hg
from headgate.commit.settings import Options
from headgate.routing.table import RoutingTable, hash_table
from headgate_lab.nexmark.auction_site import AuctionSite
from headgate_lab.nexmark.event_files import EventFiles, write_event_files, write_shards
from headgate_lab.nexmark.events import SCHEMAS, EventOptions
from headgate_lab.nexmark.oracle import Oracle
from headgate_lab.nexmark.queries import QUERIES
from headgate_lab.nexmark.query import last_rows

LEADS_TO = {"q4": ("category", "categories"), "q6": ("seller", "sellers"), "q9": ("seller", "")}
"""What an auction leads to, and the operator that is keyed by it; q9 has none."""
EPOCH = "epoch_of_row"


@dataclass(frozen=True)
class Way:
    """How keys find their slots: by tables, by near columns, or by their hash alone."""

    name: str
    near: bool = False
    tables: bool = False


WAYS = (Way("hash"), Way("tables", tables=True), Way("near", near=True))


def main(settings: Mapping[str, Any], work: Path) -> None:
    options = EventOptions(
        events=settings["events"],
        events_per_second=settings["events_per_second"],
        seed=settings["seed"],
    )
    plain = write_event_files(options, work / "events", epochs=settings["epochs"])
    files = write_shards(plain, work / "shards", settings["shards"])
    oracle, spark = Oracle(plain), SparkSession.builder.getOrCreate()
    for name in settings["queries"]:
        rows: dict[str, pa.Table] = {}
        for way in WAYS:
            run = _Run(name, way, files, settings["slots"], work / f"{name}-{way.name}")
            _say("ready", query=name, way=way.name)
            before = _shuffled(spark)
            query = run.start(spark)
            _say("done", bytes_over_hosts=_shuffled(spark) - before, **run.told(query))
            found = last_rows(run.rows(), QUERIES[name].key)
            rows[way.name] = found
            closed = max(r["watermark_us"] or 0 for r in query.journal() if r["kind"] == "epoch")
            answer = oracle.check(name, found, closed)
            equal = _sorted(found).equals(_sorted(rows[WAYS[0].name]))
            _say("checked", right=answer.right, rows=answer.rows, equal=equal, told=str(answer))


@dataclass(frozen=True)
class _Run:
    name: str
    way: Way
    files: EventFiles
    slots: int
    work: Path

    def start(self, spark: SparkSession) -> Any:
        """From nothing until all files are read."""
        flow = hg.Flow(self.name)
        site = AuctionSite(flow, self._read, shards=True, near=self.way.near)
        QUERIES[self.name].declare(site).to_parquet(str(self.work / "out"), epoch_column=EPOCH)
        query = flow.start(
            spark,
            slots=self.slots,
            checkpoint=str(self.work / "checkpoint"),
            trigger={"availableNow": True},
            # all of a row takes the link
            options=Options(tables=self._tables(), park_bytes=None),
            manager=None,
        )
        query.awaitTermination()
        return query

    def told(self, query: Any) -> dict[str, Any]:
        """Bytes between slots, all and behind the join, and the share of rows that stayed."""
        epochs = [record for record in query.journal() if record["kind"] == "epoch"]
        edges: dict[str, int] = {}
        for record in epochs:
            for edge, facts in record["edges"].items():
                edges[edge] = edges.get(edge, 0) + facts["remote_bytes"]
        behind = {edge: count for edge, count in edges.items() if not edge.endswith("->offers")}
        return {
            "bytes_between_slots": sum(record["bytes_shuffled"] for record in epochs),
            "bytes_behind_the_join": sum(behind.values()),
            "bytes_by_edge": edges,
            "locality": [record["locality"] for record in epochs],
        }

    def rows(self) -> pa.Table:
        """What was put out, in order of epochs, without what only this comparison has."""
        parts = [pq.ParquetFile(path).read() for path in (self.work / "out").rglob("*.parquet")]
        rows = pa.concat_tables(parts).sort_by(EPOCH)
        return rows.drop_columns([n for n in (EPOCH, "shard") if n in rows.column_names])

    def _read(self, name: str) -> hg.Files:
        table = self.files.tables[name]
        schema = f"shard int, {SCHEMAS[name]}"
        return hg.Files(table.directory, schema=schema, max_files=table.files_per_epoch)

    def _tables(self) -> dict[str, RoutingTable]:
        """Every auction in the slot of what it leads to; those are dealt, the heaviest first."""
        if not self.way.tables:
            return {}
        slots, (target, operator) = self.slots, LEADS_TO[self.name]
        auctions = pa.concat_tables(
            pq.ParquetFile(path)
            .read(columns=["id", target])
            .append_column("shard", pa.repeat(_shard_of(path), pq.read_metadata(path).num_rows))
            for path in self.files.tables["auction"].paths
        )
        of_auction = auctions[target].to_numpy()
        known, code, count = np.unique(of_auction, return_inverse=True, return_counts=True)
        slot_of, load = np.zeros(len(known), np.int32), np.zeros(slots)
        for place in np.argsort(-count, kind="stable"):
            slot_of[place] = load.argmin()
            load[slot_of[place]] += count[place]
        ids = [auctions[column].combine_chunks() for column in ("shard", "id")]
        pinned = hash_table(slots).pin(ids, slot_of[code])
        tables = {"offers": pinned, "winning": pinned}
        if operator:
            tables[operator] = hash_table(slots).pin([pa.array(known)], slot_of)
        return tables


def _shuffled(spark: SparkSession) -> int:
    """Bytes that tasks have read, so far, of what tasks on other hosts put into the shuffle."""
    context = spark.sparkContext
    jvm, gateway = context._jvm, context._gateway
    assert jvm is not None and gateway is not None
    quantiles, statuses = gateway.new_array(jvm.double, 0), jvm.java.util.ArrayList()
    store = context._jsc.sc().statusStore()
    stages = store.stageList(jvm.java.util.ArrayList(), False, False, quantiles, statuses)
    return sum(int(stages.apply(n).shuffleRemoteBytesRead()) for n in range(stages.size()))


def _shard_of(path: Path) -> pa.Scalar:
    return pa.scalar(int(path.parent.name.removeprefix("shard=")), pa.int32())


def _sorted(rows: pa.Table) -> pa.Table:
    columns = sorted(rows.column_names)
    rows = rows.select(columns)
    order = pc.sort_indices(rows, [(name, "ascending") for name in columns])
    return rows.take(order).combine_chunks()


def _say(what: str, **facts: Any) -> None:
    sys.stdout.write(json.dumps({"said": what, **facts}) + "\n")
    sys.stdout.flush()
    sys.stdin.readline()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), Path(sys.argv[2]))
