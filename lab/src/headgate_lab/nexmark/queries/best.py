"""The last row of a key: q18."""

from __future__ import annotations

import headgate as hg
from headgate_lab.nexmark.auction_site import AuctionSite


def q18(site: AuctionSite) -> hg.Stream:
    """The last bid of every bidder on every auction."""
    last = hg.Last("price", "channel", "url", "dateTime", "extra", by="event")
    return site.bid.key_by("auction", "bidder").process(last, name="last")
