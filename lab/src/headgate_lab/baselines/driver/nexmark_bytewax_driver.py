"""Nexmark queries in Bytewax: `python nexmark_bytewax_driver.py SETTINGS`, a file of JSON.

Tables come as Parquet and are cut into rows inside the clock; what a query does not read is not
read. Keys must be strings. Totals are told once, when all is read.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import bytewax.operators as op  # type: ignore[import-not-found]
import pyarrow.parquet as pq
from bytewax.dataflow import Dataflow  # type: ignore[import-not-found]
from bytewax.inputs import (  # type: ignore[import-not-found]
    FixedPartitionedSource,
    StatefulSourcePartition,
)
from bytewax.outputs import DynamicSink, StatelessSinkPartition  # type: ignore[import-not-found]
from bytewax.testing import run_main  # type: ignore[import-not-found]

BATCH_ROWS = 1_000
WEST = ("OR", "ID", "CA")

Row = tuple[Any, ...]
Tables = dict[str, list[str]]


class _Rows(StatefulSourcePartition):  # type: ignore[misc]
    def __init__(self, paths: list[str], columns: list[str]) -> None:
        self._batches = self._read(paths, columns)

    @staticmethod
    def _read(paths: list[str], columns: list[str]) -> Iterator[list[Row]]:
        for path in paths:
            for batch in pq.read_table(path, columns=columns).to_batches(BATCH_ROWS):
                lists = [batch.column(name).to_pylist() for name in columns]
                yield list(zip(*lists, strict=True))

    def next_batch(self) -> list[Row]:
        return next(self._batches)

    def snapshot(self) -> None:
        return None


class _Table(FixedPartitionedSource):  # type: ignore[misc]
    def __init__(self, paths: list[str], *columns: str) -> None:
        self._paths, self._columns = paths, list(columns)

    def list_parts(self) -> list[str]:
        return ["all"]

    def build_part(self, *_: Any) -> _Rows:
        return _Rows(self._paths, self._columns)


class _Both(op.StatefulBatchLogic):  # type: ignore[misc]
    """An inner join of what comes from the left (True) and from the right (False)."""

    def __init__(self, state: tuple[list[Row], list[Row]] | None) -> None:
        self.left, self.right = state or ([], [])

    def on_batch(self, values: list[tuple[bool, Row]]) -> tuple[list[Row], bool]:
        told: list[Row] = []
        for is_left, row in values:
            if is_left:
                self.left.append(row)
                told += [row + other for other in self.right]
            else:
                self.right.append(row)
                told += [other + row for other in self.left]
        return told, False

    def snapshot(self) -> tuple[list[Row], list[Row]]:
        return self.left, self.right


class _Totals(op.StatefulBatchLogic):  # type: ignore[misc]
    """q17: bids by rank, and the prices' least, largest, sum and mean."""

    def __init__(self, state: list[int] | None) -> None:
        self.bids = state or []

    def on_batch(self, prices: list[int]) -> tuple[list[Row], bool]:
        held = self.bids = self.bids or [0, 0, 0, 0, prices[0], prices[0], 0]
        for price in prices:
            held[0] += 1
            held[1 if price < 10_000 else 2 if price < 1_000_000 else 3] += 1
            held[4] = min(held[4], price)
            held[5] = max(held[5], price)
            held[6] += price
        return [], False

    def on_eof(self) -> tuple[list[Row], bool]:
        return [(*self.bids, self.bids[6] / self.bids[0])], False

    def snapshot(self) -> list[int]:
        return self.bids


class _Last(op.StatefulBatchLogic):  # type: ignore[misc]
    """q18: the row with the largest number, which stands first."""

    def __init__(self, state: Row | None) -> None:
        self.row = state

    def on_batch(self, rows: list[Row]) -> tuple[list[Row], bool]:
        latest = max(rows)
        if self.row is None or latest > self.row:
            self.row = latest
        return [], False

    def on_eof(self) -> tuple[list[Row | None], bool]:
        return [self.row], False

    def snapshot(self) -> Row | None:
        return self.row


def _q3(flow: Any, tables: Tables) -> Any:
    people = op.input("people", flow, _Table(tables["person"], "id", "name", "city", "state"))
    people = op.filter("west", people, lambda row: row[3] in WEST)
    auctions = op.input("auctions", flow, _Table(tables["auction"], "seller", "id", "category"))
    auctions = op.filter("ten", auctions, lambda row: row[2] == 10)
    return _joined(people, auctions)


def _q20(flow: Any, tables: Tables) -> Any:
    bids = op.input(
        "bids",
        flow,
        _Table(tables["bid"], "auction", "bidder", "price", "channel", "url", "dateTime", "extra"),
    )
    columns = "id itemName description initialBid reserve dateTime expires seller category extra"
    auctions = op.input("auctions", flow, _Table(tables["auction"], *columns.split()))
    auctions = op.filter("ten", auctions, lambda row: row[8] == 10)
    return _joined(bids, auctions)


def _joined(left: Any, right: Any) -> Any:
    """By the first column of both."""
    left = op.map("left", left, lambda row: (str(row[0]), (True, row)))
    right = op.map("right", right, lambda row: (str(row[0]), (False, row)))
    return op.stateful_batch("joined", op.merge("both", left, right), _Both)


def _q17(flow: Any, tables: Tables) -> Any:
    rows = op.input("bids", flow, _Table(tables["bid"], "auction", "dateTime", "price"))
    keyed = op.map("keyed", rows, lambda row: (f"{row[0]}|{row[1]:%Y-%m-%d}", row[2]))
    return op.stateful_batch("totals", keyed, _Totals)


def _q18(flow: Any, tables: Tables) -> Any:
    columns = "event auction bidder price channel url dateTime extra".split()
    rows = op.input("bids", flow, _Table(tables["bid"], *columns))
    keyed = op.map("keyed", rows, lambda row: (f"{row[2]}|{row[1]}", row))
    return op.stateful_batch("last", keyed, _Last)


class _Counter(StatelessSinkPartition):  # type: ignore[misc]
    def __init__(self, told: list[int]) -> None:
        self._told = told

    def write_batch(self, items: list[Any]) -> None:
        self._told[0] += len(items)


class _Drop(DynamicSink):  # type: ignore[misc]
    """Counts the results and drops them."""

    def __init__(self, told: list[int]) -> None:
        self._told = told

    def build(self, *_: Any) -> _Counter:
        return _Counter(self._told)


QUERIES: dict[str, Callable[[Any, Tables], Any]] = {
    "q3": _q3,
    "q17": _q17,
    "q18": _q18,
    "q20": _q20,
}


def _main(settings: dict[str, Any]) -> None:
    told = [0]
    flow = Dataflow(settings["query"])
    op.output("out", QUERIES[settings["query"]](flow, settings["tables"]), _Drop(told))
    start = time.perf_counter()
    run_main(flow)
    seconds = time.perf_counter() - start
    sys.stdout.write(json.dumps({"seconds": seconds, "results": told[0]}) + "\n")


if __name__ == "__main__":
    _main(json.loads(Path(sys.argv[1]).read_text()))
