"""Where files are, as a user names it, and as headgate and Spark name the same place.

A path means this host's file system, for both. They agree on most schemes; S3 is `s3` for the one
and `s3a` for the other. Anything that headgate has no client for is refused.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import unquote

from headgate.errors import DeclarationError

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")
_FILE = re.compile(r"file:(?://(?:localhost)?)?(/(?!/).*)", re.DOTALL)
_OURS = {
    "s3": "s3",
    "s3a": "s3",
    "s3n": "s3",
    "gs": "gs",
    "gcs": "gs",
    "abfs": "abfs",
    "abfss": "abfss",
    "hdfs": "hdfs",
    "viewfs": "viewfs",
}
_FOR_SPARK = {"s3": "s3a"}


def absolute(place: str | os.PathLike[str]) -> str:
    """The place as headgate names it: an absolute path, or a URI with a scheme it knows.

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
    if scheme not in _OURS or "://" not in given:
        known = ", ".join(f"{name}://" for name in _OURS)
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
    return f"{_OURS[scheme]}:{given.partition(':')[2]}"


def spark_uri(uri: str) -> str:
    """The same place as Spark names it: a plain path is a local one, whatever the default is."""
    scheme = scheme_of(uri)
    if scheme is None:
        return f"file://{uri}"
    return f"{_FOR_SPARK.get(scheme, scheme)}:{uri.partition(':')[2]}"


def scheme_of(place: str) -> str | None:
    """In small letters; None if the place is a path."""
    match = _SCHEME.match(place)
    return None if match is None else match[1].lower()
