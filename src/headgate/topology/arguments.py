"""What users write, as values: counts, names, keywords, durations and places of files."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import timedelta
from functools import wraps
from numbers import Integral
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote

from headgate.errors import DeclarationError, HeadgateError

C = TypeVar("C")
NAME_LETTERS_MAX = 90  # a file name of 255 holds the names of a flow and a sink, and 70 letters
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def check_count(
    value: Any,
    what: str,
    *,
    least: int = 1,
    error: type[HeadgateError] = DeclarationError,
    **fields: Any,
) -> int:
    """The value as an int; raise unless it is a whole number that is not less than `least`.

    Examples:
        >>> check_count("3", "k of TopK")
        Traceback (most recent call last):
        ...
        headgate.errors.DeclarationError: k of TopK is '3'; it must be a whole number, at least 1
    """
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not whole or value < least:
        raise error(f"{what} is {value!r}; it must be a whole number, at least {least}", **fields)
    return int(value)


def check_choice(value: object, what: str, allowed: Sequence[str], **fields: Any) -> None:
    if value not in allowed:
        known = ", ".join(map(repr, allowed[:-1])) + f" or {allowed[-1]!r}"
        raise DeclarationError(f"{what}={value!r}; choose {known}", **fields)


def check_name(name: Any, what: str) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise DeclarationError(
            f"{what} name {name!r}: use letters, digits, '.', '_' and '-' (it names files)"
        )
    if len(name) + name.count("-") > NAME_LETTERS_MAX:
        raise DeclarationError(
            f"{what} name {name[:20]}… has {len(name)} letters; it names files, so it may have "
            f"{NAME_LETTERS_MAX}, and a '-' counts twice"
        )


def unknown_name(owner: str, name: str, known: Iterable[str]) -> str:
    """What to say about a keyword that nobody knows: the nearest that there is, or all of them."""
    known = list(known)
    near = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean {near[0]}=?" if near else f"there are {', '.join(known)}"
    return f"{owner} takes no {name}=; {hint}"


def named_fields(settings: type[C]) -> type[C]:
    """Make a settings dataclass answer an unknown keyword with the field to give instead.

    That is the one its `REPLACED` names, a field of settings inside it, or the nearest.
    """
    made: Any = settings
    init, known = made.__init__, {field.name: field.default for field in fields(made)}
    instead: dict[str, str] = {
        inner.name: f"{name}=hg.{type(default).__name__}({inner.name}=...)"
        for name, default in known.items()
        if is_dataclass(default)
        for inner in fields(default)
    }
    instead |= getattr(made, "REPLACED", {})

    @wraps(init)
    def checked(self: object, *args: Any, **given: Any) -> None:
        for name in given:
            if name not in known:
                said = unknown_name(settings.__name__, name, known)
                if name in instead:
                    said = f"{settings.__name__} takes no {name}=; give {instead[name]}"
                raise DeclarationError(said, option=name)
        init(self, *args, **given)

    made.__init__ = checked
    return settings


# Durations ------------------------------------------------------------------------------------

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


def positive_us(given: str | timedelta) -> int:
    total = duration_us(given)
    if total <= 0:
        raise DeclarationError(f"{given!r} is not a positive duration")
    return total


def ttl_ms(given: str | timedelta | None) -> int | None:
    """How long state lives, in milliseconds; None: for good."""
    if given is None:
        return None
    total = positive_us(given) // 1000
    if not total:
        raise DeclarationError(f"state lives for a millisecond at least, not {given!r}")
    return total


# Places ---------------------------------------------------------------------------------------
# A path means this host's file system, for headgate and for Spark. They agree on most schemes; S3
# is `s3` for the one and `s3a` for the other.

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")
_FILE = re.compile(r"file:(?://(?:localhost)?)?(/(?!/).*)", re.DOTALL)
_SAME_AS: Mapping[str, str] = {"s3a": "s3", "s3n": "s3", "gcs": "gs"}
_KNOWN = ("s3", "s3a", "s3n", "gs", "gcs", "abfs", "abfss", "hdfs", "viewfs")


def absolute(place: str | os.PathLike[str]) -> str:
    """The place as headgate names it: an absolute path, or a URI with a scheme it has a client for.

    Examples:
        >>> absolute("file:/data/checkpoint"), absolute("s3a://bucket/checkpoint")
        ('/data/checkpoint', 's3://bucket/checkpoint')
    """
    given = os.fspath(place)
    scheme = scheme_of(given)
    if scheme is None:
        return str(Path(given).resolve())
    local = _FILE.fullmatch(given)
    if local is not None:
        return str(Path(unquote(local[1])).resolve())
    if scheme not in _KNOWN or "://" not in given:
        known = ", ".join(f"{name}://" for name in _KNOWN)
        raise DeclarationError(
            f"{given!r} is no place that headgate can keep files in: give a path (also of a "
            f"mounted folder), file:///path, or one of {known}",
            place=given,
        )
    if "?" in given:
        raise DeclarationError(
            f"{given!r} has options after '?'; set them in the environment (AWS_ENDPOINT_URL, "
            "AWS_REGION, …), where both headgate and Spark find them",
            place=given,
        )
    return f"{_SAME_AS.get(scheme, scheme)}:{given.partition(':')[2]}"


def spark_uri(uri: str) -> str:
    """The same place as Spark names it: a plain path is a local one, whatever the default is."""
    scheme = scheme_of(uri)
    if scheme is None:
        return f"file://{uri}"
    return f"{'s3a' if scheme == 's3' else scheme}:{uri.partition(':')[2]}"


def scheme_of(place: str) -> str | None:
    """In small letters; None if the place is a path."""
    match = _SCHEME.match(place)
    return None if match is None else match[1].lower()
