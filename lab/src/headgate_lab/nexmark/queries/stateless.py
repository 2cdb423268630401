"""Row by row: q0, q1, q2, q10, q13, q14, q21, q22. They keep no state."""

from __future__ import annotations

import pyarrow.compute as pc

import headgate as hg
from headgate_lab.nexmark.auction_site import AuctionSite


def q0(site: AuctionSite) -> hg.Stream:
    """Pass bids through."""
    return site.bid.select("auction", "bidder", "price", "dateTime", "extra")


def q1(site: AuctionSite) -> hg.Stream:
    """Turn dollars into euros."""
    return site.bid.select("auction", "bidder", "0.908D * price AS price", "dateTime", "extra")


def q2(site: AuctionSite) -> hg.Stream:
    """Pick the bids on some auctions."""
    return site.bid.filter("auction % 123 = 0").select("auction", "price")


def q10(site: AuctionSite) -> hg.Stream:
    """Write bids into folders by day and minute."""
    minute = pc.strftime(pc.field("dateTime"), format="%H:%M")
    logged = site.bid.select("auction", "bidder", "price", "dateTime", "extra").with_columns(
        dt="date(dateTime)", hm=minute
    )
    logged.to_parquet(site.out, partition_by=["dt", "hm"])
    return logged


def q14(site: AuctionSite) -> hg.Stream:
    """Compute and filter: what time of day, how many letters c."""
    euros = site.bid.with_columns(price="0.908D * price")
    return euros.filter("price > 1000000 AND price < 50000000").select(
        "auction", "bidder", "price",
        """CASE WHEN hour(dateTime) BETWEEN 8 AND 18 THEN 'dayTime'
                WHEN hour(dateTime) <= 6 OR hour(dateTime) >= 20 THEN 'nightTime'
                ELSE 'otherTime' END AS bidTimeType""",
        "dateTime", "extra", "length(extra) - length(replace(extra, 'c', '')) AS c_counts",
    )  # fmt: skip


def q21(site: AuctionSite) -> hg.Stream:
    """Find the channel's id, by its name or in the address."""
    found = pc.extract_regex(pc.field("url"), r"(?:&|^)channel_id=(?P<id>[^&]*)")
    named = site.bid.with_columns(told=pc.struct_field(found, "id"))
    return named.select(
        "auction", "bidder", "price", "channel",
        """CASE lower(channel) WHEN 'apple' THEN '0' WHEN 'google' THEN '1'
            WHEN 'facebook' THEN '2' WHEN 'baidu' THEN '3' ELSE told END AS channel_id""",
    ).filter("channel_id IS NOT NULL")  # fmt: skip


def q22(site: AuctionSite) -> hg.Stream:
    """Split the address."""
    parts = pc.split_pattern(pc.field("url"), "/")
    return site.bid.with_columns(
        dir1=pc.list_element(parts, 3), dir2=pc.list_element(parts, 4),
        dir3=pc.list_element(parts, 5),
    ).select("auction", "bidder", "price", "channel", "dir1", "dir2", "dir3")  # fmt: skip
