"""Many aggregates at once, by day: q15, q16, q17. They tell updates."""

from __future__ import annotations

from typing import Any

import pyarrow.compute as pc

import headgate as hg
from headgate_lab.nexmark.auction_site import AuctionSite

PRICE = pc.field("price")
RANKS = {
    "rank1": PRICE < 10_000,
    "rank2": (PRICE >= 10_000) & (PRICE < 1_000_000),
    "rank3": PRICE >= 1_000_000,
}


def bids_by_rank() -> dict[str, Any]:
    """How many bids, and how many of each rank."""
    ranked = {f"{rank}_bids": hg.Count(where=test) for rank, test in RANKS.items()}
    return {"total_bids": hg.Count(), **ranked}


def distinct_by_rank() -> dict[str, Any]:
    """How many bidders and auctions, and how many of each rank."""
    made = {}
    for name, column in (("bidders", "bidder"), ("auctions", "auction")):
        made[f"total_{name}"] = hg.CountDistinct(column)
        for rank, test in RANKS.items():
            made[f"{rank}_{name}"] = hg.CountDistinct(column, where=test)
    return made


def q15(site: AuctionSite) -> hg.Stream:
    """Statistics of every day."""
    statistics = hg.Aggregate({**bids_by_rank(), **distinct_by_rank()})
    bids = site.bid.with_columns(day="date(dateTime)")
    return bids.key_by("day").process(statistics, name="days")


def q16(site: AuctionSite) -> hg.Stream:
    """Statistics of every channel and day."""
    latest = {"minute": hg.Max("hour_and_minute")}
    statistics = hg.Aggregate({**latest, **bids_by_rank(), **distinct_by_rank()})
    bids = site.bid.with_columns(
        day="date(dateTime)", hour_and_minute=pc.strftime(pc.field("dateTime"), format="%H:%M")
    )
    return bids.key_by("channel", "day").process(statistics, name="channels")


def q17(site: AuctionSite) -> hg.Stream:
    """Bids and prices of every auction and day."""
    prices = {
        "min_price": hg.Min("price"),
        "max_price": hg.Max("price"),
        "avg_price": hg.Mean("price"),
        "sum_price": hg.Sum("price"),
    }
    bids = site.bid.with_columns(day="date(dateTime)")
    return bids.key_by("auction", "day").process(
        hg.Aggregate({**bids_by_rank(), **prices}), name="auctions"
    )
