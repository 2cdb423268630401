"""Row by row: q0, q2. They keep no state."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

import headgate as hg
from headgate_lab.nexmark.auction_site import AuctionSite


def q0(site: AuctionSite) -> hg.Stream:
    """Pass bids through."""
    return site.bid.select("auction", "bidder", "price", "dateTime", "extra")


def _picked(batch: pa.RecordBatch) -> Any:
    return batch["auction"].to_numpy() % 123 == 0


def q2(site: AuctionSite) -> hg.Stream:
    """Pick the bids on some auctions."""
    return site.bid.filter(_picked, name="picked").select("auction", "price")
