"""Durations as people write them."""

from __future__ import annotations

import re
from datetime import timedelta

from headgate.errors import DeclarationError

_UNITS = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}
_PART = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*")


def positive_us(given: str | timedelta) -> int:
    """A positive duration in microseconds.

    Examples:
        >>> positive_us("1 minute")
        60000000
    """
    total = duration_us(given)
    if total <= 0:
        raise DeclarationError(f"{given!r} is not a positive duration")
    return total


def ttl_ms(given: str | timedelta | None) -> int | None:
    """How long state lives, in milliseconds; None: for good.

    Examples:
        >>> ttl_ms("1 hour"), ttl_ms(None)
        (3600000, None)
    """
    if given is None:
        return None
    total = positive_us(given) // 1000
    if not total:
        raise DeclarationError(f"state lives for a millisecond at least, not {given!r}")
    return total


def duration_us(given: str | timedelta) -> int:
    """A duration in microseconds.

    Examples:
        >>> duration_us("1 minute"), duration_us("1 hour 30 minutes"), duration_us("1.5 hours")
        (60000000, 5400000000, 5400000000)
    """
    if isinstance(given, timedelta):
        if given < timedelta(0):
            raise DeclarationError(f"a duration cannot be negative, and {given} is")
        return given // timedelta(microseconds=1)
    if not isinstance(given, str):
        raise DeclarationError(
            f"{given!r} is not a duration; write '10 seconds', or give a timedelta"
        )
    parts = [(float(n), unit.removesuffix("s")) for n, unit in _PART.findall(given.lower())]
    known = all(unit in _UNITS for _, unit in parts)
    if not parts or not known or _PART.sub("", given.lower()):
        raise DeclarationError(
            f"{given!r} is not a duration; write it like '10 seconds' or '1 hour 30 minutes'"
        )
    return sum(round(count * _UNITS[unit]) for count, unit in parts)
