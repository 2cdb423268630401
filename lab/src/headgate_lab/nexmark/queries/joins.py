"""Streams that join for good: q3, q20, q23, and the table that q13 looks up in."""

from __future__ import annotations

import headgate as hg
from headgate_lab.nexmark.auction_site import AuctionSite


def q3(site: AuctionSite) -> hg.Stream:
    """Who sells in category 10 from Oregon, Idaho or California, and what?"""
    people = site.person.filter("state IN ('OR', 'ID', 'CA')").select("id", "name", "city", "state")
    auctions = site.auction.filter("category = 10").select("seller", "id AS auction")
    sold = people.key_by("id").join(auctions.key_by("seller"))
    return sold.select("name", "city", "state", "auction AS id")


def q13(site: AuctionSite) -> hg.Stream:
    """Look a value up in a table of the side, by the auction modulo 10,000."""
    bids = site.bid.select("auction", "bidder", "price", "dateTime", key="auction % 10000")
    return bids.lookup(site.side, on="key", how="inner").select(
        "auction", "bidder", "price", "dateTime", "value"
    )


def q20(site: AuctionSite) -> hg.Stream:
    """Bids on auctions of category 10, with all that is known of the auction."""
    auctions = site.auction.filter("category = 10").select(
        "id", "itemName", "description", "initialBid", "reserve", "dateTime AS auction_dateTime",
        "expires", "seller", "category", "extra AS auction_extra",
    )  # fmt: skip
    bids = site.bid.select("auction", "bidder", "price", "channel", "url", "dateTime", "extra")
    return bids.key_by("auction").join(auctions.key_by("id"))


def q23(site: AuctionSite) -> hg.Stream:
    """Bids of people who sell, with the person and all of their auctions."""
    bids = site.bid.select("auction", "bidder", "price", "channel", "dateTime")
    people = site.person.select("id AS person", "name", "emailAddress", "city", "state")
    auctions = site.auction.select("id", "itemName", "category", "seller")
    return (
        bids.key_by("bidder")
        .join(people.key_by("person"))
        .key_by("bidder")
        .join(auctions.key_by("seller"))
    )
