"""By windows of event time, and one of processing time: q5, q7, q8, q11, q12."""

from __future__ import annotations

import headgate as hg
from headgate_lab.nexmark.auction_site import AuctionSite


def q5(site: AuctionSite) -> hg.Stream:
    """Hot items: the auctions with most bids in the last ten seconds, every two seconds."""
    hop = hg.Sliding("10 seconds", "2 seconds", time="dateTime")
    counts = site.bid.key_by("auction").process(hg.Count(name="num", window=hop), name="counts")
    most = counts.key_by("window_end").process(hg.Max("num", name="most"), name="most")
    hot = counts.key_by("window_end", "num").join(
        most.key_by("window_end", "most"), within=("0 seconds", "0 seconds"), times="window_end"
    )
    return hot.select("auction", "num", "window_start", "window_end")


def q7(site: AuctionSite) -> hg.Stream:
    """The highest bids of every ten seconds, both ends included."""
    window = hg.Tumbling("10 seconds", time="dateTime")
    highest = site.bid.globally().process(hg.Max("price", name="most", window=window), name="most")
    return (
        site.bid.key_by("price")
        .join(
            highest.key_by("most"),
            within=("0 seconds", "10 seconds"),
            times=("dateTime", "window_end"),
        )
        .select("auction", "price", "bidder", "dateTime", "extra")
    )


def q8(site: AuctionSite) -> hg.Stream:
    """People who came and opened an auction within the same ten seconds."""
    people = site.person.select("id", "name", "dateTime")
    auctions = site.auction.select("seller", "dateTime AS opened")
    sellers = people.key_by("id").join(
        auctions.key_by("seller"),
        window=hg.Tumbling("10 seconds", time="dateTime"),
        times=("dateTime", "opened"),
    )
    return (
        sellers.key_by("id", "window_start")
        .process(hg.Deduplicate(), name="once")
        .select("id", "name", "window_start")
    )


def q11(site: AuctionSite) -> hg.Stream:
    """Bids of a bidder in a session, which ends ten seconds after the last."""
    session = hg.Session("10 seconds", time="dateTime")
    return site.bid.key_by("bidder").process(
        hg.Count(name="bid_count", window=session), name="sessions"
    )


def q12(site: AuctionSite) -> hg.Stream:
    """Bids of a bidder in ten seconds of processing time."""
    window = hg.Tumbling("10 seconds", time=None)
    return (
        site.bid.key_by("bidder")
        .process(hg.Count(name="bid_count", window=window), name="counts")
        .select("bidder", "bid_count", "window_start")
    )
