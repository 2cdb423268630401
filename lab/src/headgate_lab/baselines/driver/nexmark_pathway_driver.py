"""Nexmark queries in Pathway: `python nexmark_pathway_driver.py SETTINGS`, a file of JSON.

Its own CSV reader takes the rows in, all of them as one transaction, so that nothing is told twice;
the files are made before the clock starts. Results are counted, by Pathway itself, and dropped.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

READS = {
    "q3": {"person": "id name city state", "auction": "seller id category"},
    "q17": {"bid": "auction price dateTime"},
    "q18": {"bid": "event auction bidder price channel url dateTime extra"},
    "q20": {
        "bid": "auction bidder price channel url dateTime extra",
        "auction": "id itemName description initialBid reserve dateTime expires seller category "
        "extra",
    },
}
"""The columns that a query reads of its tables."""
NUMBER = "number"


def _read(folder: Path, name: str, columns: list[str], paths: list[str]) -> Callable[[], Any]:
    """Makes the CSV files; what comes back reads them."""
    import pathway as pw  # type: ignore[import-not-found]

    place = folder / f"pathway-{name}"
    place.mkdir(parents=True)
    types = {}
    for path in paths:
        table = pq.read_table(path, columns=columns)
        for at, field in enumerate(table.schema):
            if pa.types.is_timestamp(field.type):
                text = pa.compute.strftime(table.column(at), format="%Y-%m-%d %H:%M:%S")
                table = table.set_column(at, field.name, text)
        # Pathway keeps the name `id` for itself.
        table = table.rename_columns([NUMBER if n == "id" else n for n in table.column_names])
        types = {f.name: int if pa.types.is_integer(f.type) else str for f in table.schema}
        pyarrow.csv.write_csv(table, place / f"{Path(path).stem}.csv")
    schema = pw.schema_from_types(**types)
    return lambda: pw.io.csv.read(str(place), schema=schema, mode="static")


def _q3(person: Any, auction: Any) -> Any:
    west = person.filter((person.state == "OR") | (person.state == "ID") | (person.state == "CA"))
    ten = auction.filter(auction.category == 10)
    return west.join(ten, west.number == ten.seller).select(
        west.name, west.city, west.state, auction=ten.number
    )


def _q17(bid: Any) -> Any:
    import pathway as pw

    told = bid.select(bid.auction, bid.price, day=bid.dateTime.str.slice(0, 10))

    def ranked(test: Any) -> Any:
        return pw.reducers.sum(pw.if_else(test, 1, 0))

    return told.groupby(told.auction, told.day).reduce(
        told.auction,
        told.day,
        total_bids=pw.reducers.count(),
        rank1=ranked(told.price < 10_000),
        rank2=ranked((told.price >= 10_000) & (told.price < 1_000_000)),
        rank3=ranked(told.price >= 1_000_000),
        least=pw.reducers.min(told.price),
        largest=pw.reducers.max(told.price),
        mean=pw.reducers.avg(told.price),
        total=pw.reducers.sum(told.price),
    )


def _q18(bid: Any) -> Any:
    import pathway as pw

    row = pw.make_tuple(bid.event, bid.price, bid.channel, bid.url, bid.dateTime, bid.extra)
    return bid.groupby(bid.bidder, bid.auction).reduce(
        bid.bidder, bid.auction, last=pw.reducers.max(row)
    )


def _q20(bid: Any, auction: Any) -> Any:
    ten = auction.filter(auction.category == 10)
    return bid.join(ten, bid.auction == ten.number).select(
        bid.auction, bid.bidder, bid.price, bid.channel, bid.url, bid.dateTime, bid.extra,
        ten.itemName, ten.description, ten.initialBid, ten.reserve, ten.expires, ten.seller,
        ten.category, auction_dateTime=ten.dateTime, auction_extra=ten.extra,
    )  # fmt: skip


QUERIES: dict[str, Callable[..., Any]] = {"q3": _q3, "q17": _q17, "q18": _q18, "q20": _q20}


def _main(settings: dict[str, Any]) -> None:
    os.environ["PATHWAY_THREADS"] = str(settings["slots"])  # read when pathway is imported
    import pathway as pw

    query, told = settings["query"], [0]
    readers = {
        name: _read(Path(settings["work"]), name, columns.split(), settings["tables"][name])
        for name, columns in READS[query].items()
    }

    def keep(key: Any, row: dict[str, int], time: int, is_addition: bool) -> None:
        if is_addition:
            told[0] = row["results"]

    start = time.perf_counter()
    results = QUERIES[query](**{name: read() for name, read in readers.items()})
    pw.io.null.write(results)
    pw.io.subscribe(results.reduce(results=pw.reducers.count()), on_change=keep)
    pw.run(monitoring_level=pw.MonitoringLevel.NONE)
    seconds = time.perf_counter() - start
    sys.stdout.write(json.dumps({"seconds": seconds, "results": told[0]}) + "\n")


if __name__ == "__main__":
    _main(json.loads(Path(sys.argv[1]).read_text()))
