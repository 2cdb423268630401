"""Kinds of files that a flow keeps, how one is damaged, and what must come of it."""

from __future__ import annotations

import random
from fnmatch import fnmatch

from tests.scenario.damaged_place import LAST

ANY, ON, STOP = "any", "goes on", "refused"
NOW = f"e{LAST:09d}-*"
# By kind of file: the pattern of its name, and what must come of it. Some damage is harmless: a
# space in Spark's JSON, a delta that the warm copy has already.
KINDS = {
    "identity": ("checkpoint/headgate.json", STOP),
    "last manifest": (f"checkpoint/manifests/{NOW}", STOP),
    "manifest": ("checkpoint/manifests/*", ON),
    "mark": ("checkpoint/marks/*", ON),
    "generation": ("checkpoint/generations/*", ON),
    "cost model": ("checkpoint/costs/*", ON),
    "tuning": ("checkpoint/tuning.json", ON),
    "journal": ("checkpoint/journal/*", ON),
    "parked": ("checkpoint/parked/*", ON),
    "sink": (f"checkpoint/sinks/*/{NOW}", STOP),
    "delivered": ("checkpoint/sinks/*", ON),
    "staged table": (f"checkpoint/tables/*/_headgate/*/{NOW}", STOP),
    "staged Parquet": (f"out/_headgate/*/{NOW}", STOP),
    "block": ("checkpoint/tables/tabled/part-*-e000000000-e000000007.parquet", STOP),
    "table": ("checkpoint/tables/tabled/part-*", STOP),
    "Parquet": ("out/part-*", STOP),
    "routing": ("checkpoint/routing/*", ANY),
    "state": ("checkpoint/state/*", ANY),
    "Spark's": ("checkpoint/spark/*", ANY),
    "warm lock": ("warm/*/?????.lock", ON),
    "warm head": ("warm/*/?????/head", ON),
    "warm note": ("warm/*/?????/note", ON),
    "warm hashes": ("warm/*/?????/*-h", ON),
    "warm checks": ("warm/*/?????/*-check", ON),
    "warm seals": ("warm/*/?????/????????????????-seals", ON),
    "warm routes": ("warm/*/?????/*-route", ON),
    "warm records": ("warm/*/?????/*-records", ON),
    "warm column": ("warm/*/?????/*-c???", ON),
    "warm validity": ("warm/*/?????/*-c???-valid", ON),
    "warm references": ("warm/*/?????/*-c???-ref", ON),
    "warm bounds": ("warm/*/?????/*-c???-bounds", ON),
    "warm bodies": ("warm/*/?????/*-c???-body", ON),
    "warm value seals": ("warm/*/?????/*-c???-seals", ON),
}  # fmt: skip


def kind_of(name: str) -> str | None:
    return next((kind for kind, (pattern, _) in KINDS.items() if fnmatch(name, pattern)), None)


def damaged(data: bytes, rng: random.Random) -> tuple[str, bytes]:
    """The data with one flipped bit, one byte of garbage, or without its end."""
    if not data:
        return "filled", b"?"
    at, how = rng.randrange(len(data)), rng.random()
    if rng.random() < 0.7:  # warm files are mostly empty: where something is
        at = rng.choice([place for place, byte in enumerate(data) if byte] or [at])
    if how < 0.6:
        return f"bit flipped at {at}", data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[
            at + 1 :
        ]
    if how < 0.8:
        return f"cut at {at}", data[:at]
    garbage = rng.choice([b for b in range(256) if b != data[at]])
    return f"garbage at {at}", data[:at] + bytes([garbage]) + data[at + 1 :]
