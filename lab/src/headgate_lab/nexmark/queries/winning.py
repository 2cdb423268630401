"""The bid that wins an auction, known when event time has reached its end: for q4, q6 and q9."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

import headgate as hg
from headgate_lab.nexmark.auction_site import AuctionSite


def winning_bids(site: AuctionSite, *columns: str) -> hg.Stream:
    """A row for every auction with bids: its id, and these columns of it and of its best bid."""
    bids = site.bid.select(
        *site.auction_key,
        "bidder",
        "price",
        "dateTime AS bid_dateTime",
        "extra AS bid_extra",
        "event AS bid",
    )
    offers = site.keyed(site.auction, "id").join(
        site.keyed(bids, "auction"),
        within=("0 seconds", "expires"),
        times=("dateTime", "bid_dateTime"),
        name="offers",
    )
    return site.keyed(offers, "id").process(Winning(columns), name="winning")


@dataclass(frozen=True)
class Winning(hg.StatefulOperator):
    """Keep the best bid of every auction: the dearest, then the earliest. Tell it at the end."""

    columns: tuple[str, ...]

    uses_timers = True

    @property
    def kept(self) -> list[str]:
        return list(dict.fromkeys(("price", "bid", "expires", *self.columns)))

    def state_fields(self, rows: pa.Schema, key: Sequence[str]) -> hg.StateFields:
        return hg.StateFields(pa.schema([rows.field(name) for name in self.kept]))

    def output_schema(self, rows: pa.Schema, key: Sequence[str]) -> pa.Schema:
        return pa.schema([rows.field(name) for name in (*key, *self.columns)])

    def needs(self, rows: pa.Schema, key: Sequence[str], wanted: set[str]) -> set[str]:
        return {*key, *self.kept}

    def process(self, rows: hg.KeyedRows, state: Any, clock: hg.EpochClock) -> hg.Output:
        auctions = rows.groups
        price, bid = (rows.column(name).to_numpy() for name in ("price", "bid"))
        dearest = np.maximum.reduceat(price[auctions.order], auctions.starts)
        tied = np.flatnonzero(price == dearest[auctions.codes])
        tied = tied[np.argsort(bid[tied], kind="stable")]
        best = tied[np.unique(auctions.codes[tied], return_index=True)[1]]
        held = state.read(auctions)
        dearer, equal = price[best] > held["price"], price[best] == held["price"]
        better = ~held.found | dearer | (equal & (bid[best] < held["bid"]))
        won = rows.batch.select(self.kept).take(pa.array(best[better]))
        changed = auctions.take(better)
        state.write(changed, dict(zip(self.kept, won.columns, strict=True)))
        state.timers.set(changed, won["expires"].cast(pa.int64()).to_numpy())
        return hg.Output()

    def on_timers(self, timers: hg.FiredTimers, state: Any, clock: hg.EpochClock) -> pa.RecordBatch:
        auctions = timers.keys.groups
        held, keys = state.read(auctions), auctions.columns
        made = [*keys.columns, *(held.arrow(name) for name in self.columns)]
        state.remove(auctions)
        return pa.record_batch(made, [*keys.schema.names, *self.columns])
