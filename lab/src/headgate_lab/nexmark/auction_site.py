"""What the queries read: people, auctions and bids of an auction site, as streams of one flow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import headgate as hg

WATERMARK = "4 seconds"
Reads = Callable[[str], Any]


@dataclass
class AuctionSite:
    """Sources by name, declared when a query first asks for them.

    `read("bid")` is what `flow.source` takes: `hg.Files`, as a rule. `longest_auction` bounds how
    long an auction takes bids, which joins of bids and auctions need to know. `side` is where
    q13's table is, `out` where q10 writes to. `shards`: auctions and bids have a column `shard`,
    which is part of an auction's key; `near`: auctions of a shard live together.
    """

    flow: hg.Flow
    read: Reads
    longest_auction: str = "1 minute"
    side: Any = None
    out: str = "bids"
    shards: bool = False
    near: bool = False
    _streams: dict[str, hg.Stream] = field(default_factory=dict)

    @property
    def person(self) -> hg.Stream:
        return self._stream("person")

    @property
    def auction(self) -> hg.Stream:
        return self._stream("auction")

    @property
    def bid(self) -> hg.Stream:
        return self._stream("bid")

    @property
    def auction_key(self) -> tuple[str, ...]:
        """What bids call the key of their auction."""
        return ("shard", "auction") if self.shards else ("auction",)

    def keyed(self, stream: hg.Stream, auction: str) -> hg.Stream:
        """The stream by auctions, which it calls so."""
        return stream.key_by(*self.auction_key[:-1], auction, near=("shard",) if self.near else ())

    def _stream(self, name: str) -> hg.Stream:
        if name not in self._streams:
            self._streams[name] = self.flow.source(
                self.read(name), name=name, event_time="dateTime", watermark=WATERMARK
            )
        return self._streams[name]
