"""The last and the best: q18, q19, and with the winning bids q4, q6 and q9."""

from __future__ import annotations

import headgate as hg
from headgate_lab.nexmark.auction_site import AuctionSite
from headgate_lab.nexmark.queries.winning import winning_bids


def q4(site: AuctionSite) -> hg.Stream:
    """Average price of the winning bids of every category."""
    return (
        winning_bids(site, "category", "price")
        .key_by("category")
        .process(hg.Mean("price", name="final"), name="categories")
    )


def q6(site: AuctionSite) -> hg.Stream:
    """Average price of a seller's last ten auctions, as each of them closes."""
    return (
        # Several auctions of a seller end in the same millisecond: the last three digits of their
        # ids tell which is first.
        winning_bids(site, "seller", "price", "expires")
        .with_columns(closed="timestamp_micros(unix_micros(expires) + id % 1000)")
        .key_by("seller")
        .process(hg.MeanOfLast("price", 10, name="final"), order_by="closed", name="sellers")
        .select("seller", "final")
    )


def q9(site: AuctionSite) -> hg.Stream:
    """The winning bid of every auction."""
    return winning_bids(
        site, "itemName", "description", "initialBid", "reserve", "dateTime", "expires", "seller",
        "category", "extra", "bidder", "price", "bid_dateTime", "bid_extra",
    ).with_columns(auction="id")  # fmt: skip


def q18(site: AuctionSite) -> hg.Stream:
    """The last bid of every bidder on every auction."""
    last = hg.Last("price", "channel", "url", "dateTime", "extra", by="event")
    return site.bid.key_by("auction", "bidder").process(last, name="last")


def q19(site: AuctionSite) -> hg.Stream:
    """The ten dearest bids on every auction."""
    return (
        site.bid.key_by("auction")
        .process(hg.TopRows(10, by=("price desc", "event")), name="dearest")
        .select("auction", "bidder", "price", "channel", "url", "dateTime", "extra", "rank")
    )
