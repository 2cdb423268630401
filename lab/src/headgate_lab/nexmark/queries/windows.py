"""By windows: q12."""

from __future__ import annotations

import headgate as hg
from headgate_lab.nexmark.auction_site import AuctionSite


def q12(site: AuctionSite) -> hg.Stream:
    """Bids of a bidder in ten seconds of processing time."""
    window = hg.Tumbling("10 seconds", time=None)
    return (
        site.bid.key_by("bidder")
        .process(hg.Count(name="bid_count", window=window), name="counts")
        .select("bidder", "bid_count", "window_start")
    )
