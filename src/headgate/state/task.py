"""What a session works for: the place, the operator and slot, and the epoch's frozen facts.

A task's files depend on this, on the chain and on the rows written, and on nothing else; so an
attempt that runs again writes the same bytes under the same names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headgate.state.layout import RowLayout
from headgate.state.storage import Storage


@dataclass(frozen=True)
class Task:
    """One task's view of one (operator, slot); `now_ms` is the plan's clock.

    `identity` says how keys of equal hash are told apart; only key batches look into it.
    """

    storage: Storage
    layout: RowLayout
    operator: str
    slot: int
    epoch: int
    level: int
    now_ms: int
    ttl_ms: int | None
    buckets: int
    compact_after: int
    strong_digests: bool = False
    identity: Any = None

    @property
    def folder(self) -> str:
        return f"{self.operator}/{self.slot:05d}"
