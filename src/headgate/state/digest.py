"""Digests of content: whatever is read back is compared with the digest that was kept of it.

A digest is a text that says by its form how it was made: xxh3 of 64 bits has 16 hex digits (what
earlier versions wrote), of 128 bits 32. A file that is written once has its digest in its name,
as `…-DIGEST.arrow`; a JSON file that is replaced has it as its first entry. `DamagedFile` says what
is wrong with a file; who asked for it knows what it means, and names it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import xxhash

from headgate.state.storage import Storage

_MAKERS: Mapping[int, Callable[[], Any]] = {16: xxhash.xxh3_64, 32: xxhash.xxh3_128}
_IN_NAME = re.compile(r"-([^-./]+)\.[a-z]+$")
_HEAD = re.compile(rb'\{"digest": "([^"]*)", ')


class DamagedFile(Exception):
    """The bytes are missing or not what was written."""


def digest_of(*buffers: Any) -> str:
    """The digest of these bytes, one after the other."""
    return _digest(xxhash.xxh3_128(), buffers)


def matches(digest: str, *buffers: Any) -> bool:
    """Is it the digest of these bytes? One of no known form is of none."""
    make = _MAKERS.get(len(digest))
    return make is not None and _digest(make(), buffers) == digest


def read_named(storage: Storage, name: str) -> bytes:
    """The content of a file whose name ends with its digest, checked."""
    try:
        data = storage.read(name)
    except FileNotFoundError as problem:
        raise DamagedFile("it is missing") from problem
    except OSError as problem:
        raise DamagedFile(f"it cannot be read ({problem})") from problem
    found = _IN_NAME.search(name)
    if found is None or not matches(found[1], data):
        raise DamagedFile("its content does not match the digest in its name")
    return data


def seal(told: Mapping[str, Any], **style: Any) -> bytes:
    """A JSON object with its digest as the first entry."""
    body = json.dumps(told, sort_keys=True, **style).encode()
    return b'{"digest": "%s", ' % digest_of(body).encode() + body[1:]


def unseal(data: bytes) -> tuple[dict[str, Any], bool]:
    """The object back, and whether it had a digest: files of earlier versions may have none."""
    head = _HEAD.match(data)
    if head is not None and not matches(head[1].decode("latin-1"), b"{" + data[head.end() :]):
        raise DamagedFile("its content does not match its digest")
    try:
        told = json.loads(data)
    except (ValueError, RecursionError) as problem:
        raise DamagedFile(f"it is no JSON ({problem})") from problem
    if not isinstance(told, dict):
        raise DamagedFile("it holds no JSON object")
    told.pop("digest", None)
    return told, head is not None


def _digest(made: Any, buffers: tuple[Any, ...]) -> str:
    for buffer in buffers:
        made.update(buffer)
    return str(made.hexdigest())
