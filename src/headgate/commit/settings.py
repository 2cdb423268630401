"""How a flow runs, in the words of the commit protocol."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from headgate.commit.journal import KEEP_RECORDS
from headgate.errors import DeclarationError, EngineError
from headgate.routing.identity import Identity
from headgate.routing.table import BUCKETS, RoutingTable
from headgate.slot.batching import BYTE_S, MESSAGE_S, BatchRows, Scheme
from headgate.topology.declared import check_count


@dataclass(frozen=True)
class Settings:
    """What a start was given, with its defaults; validated once, here.

    `last_epoch` is the one with which the input ends, and all windows close (None: it does not).
    `identity` is how a new checkpoint tells keys apart (None: with a secret of its own).
    """

    slots: int
    buckets: int = BUCKETS
    warm_dir: str | None = None
    tables: Mapping[str, RoutingTable] = field(default_factory=dict)
    drop_state: Collection[str] = ()
    keep_manifests: int = 8
    keep_journal: int = KEEP_RECORDS
    durable: bool = True
    statistics_bytes: int = 0
    racks: Mapping[str, str] = field(default_factory=dict)
    batch: BatchRows = None
    sharing: Scheme = "auto"
    message_s: float = MESSAGE_S
    byte_s: float = BYTE_S
    last_epoch: int | None = None
    identity: Identity | None = None

    def __post_init__(self) -> None:
        for name in ("slots", "buckets", "keep_manifests", "keep_journal"):
            count = check_count(getattr(self, name), f"{name}=", error=EngineError)
            object.__setattr__(self, name, count)
        if self.buckets & (self.buckets - 1) or self.buckets > 65536:
            raise EngineError(f"buckets={self.buckets}; it must be a power of two up to 65536")
        # a text alone would be taken for the names of its letters
        if isinstance(self.drop_state, str) or not isinstance(self.drop_state, Collection):
            raise DeclarationError(
                f"drop_state={self.drop_state!r}; it takes a list of names, such as ['counts']"
            )
