"""Keyed state: columns per (operator, slot), durable as chains of immutable files.

The door is `StateStore.open`, which gives a `StateSession`; see `docs/decisions/0002`.
"""

from headgate.state.chain import chain_id
from headgate.state.layout import KeyBatch, StateSchema
from headgate.state.rows import Held, StateRows
from headgate.state.session import StateSession
from headgate.state.state_file import Chain, StateFile
from headgate.state.storage import Storage
from headgate.state.store import StateStore

__all__ = [
    "Chain",
    "Held",
    "KeyBatch",
    "StateFile",
    "StateRows",
    "StateSchema",
    "StateSession",
    "StateStore",
    "Storage",
    "chain_id",
]
