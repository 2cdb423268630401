"""Protocols message by message, without an engine, under seeded delay, reordering and crashes."""
