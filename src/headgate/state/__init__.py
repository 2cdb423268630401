"""Keyed state: columns per (operator, slot), durable as chains of immutable files.

The door is `StateStore.open`, which gives a `StateSession`; see `docs/decisions/0002`.
"""
