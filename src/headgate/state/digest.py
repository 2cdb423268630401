"""Digests of content: whatever is read back is compared with the digest that was kept of it.

A digest is a text that says by its form how it was made: xxh3 of 64 bits has 16 hex digits (what
earlier versions wrote), of 128 bits 32; SHA-256, which nobody can forge, has 64. A file that is
written once has its digest in its name, as `…-DIGEST.arrow`, or inside if its name says something
else; a JSON file that is replaced has it as its first entry. `DamagedFile` says what is wrong with
a file; who asked for it knows what it means, and names it.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import xxhash

from headgate.state.storage import Storage

_STRONG = 64  # hex digits of SHA-256
_MAKERS: Mapping[int, Callable[[], Any]] = {
    16: xxhash.xxh3_64,
    32: xxhash.xxh3_128,
    _STRONG: hashlib.sha256,
}
_PIECE_BYTES = 1 << 20  # of a large file in memory while it is checked
_DIGITS = 32  # hex digits of the digest inside a file
_WITHIN = "headgate-digest:"
BLANK = _WITHIN + "0" * _DIGITS
_IN_NAME = re.compile(r"-([^-./]+)\.[a-z]+$")
_HEAD = re.compile(rb'\{"digest": "([^"]*)", (?:"signature": "([^"]*)", )?')
Sign = Callable[[bytes], str]


class DamagedFile(Exception):
    """The bytes are missing or not what was written."""


class NotSigned(DamagedFile):
    """The bytes have no signature, or not the one that the key gives them."""


def digest_of(*buffers: Any, strong: bool = False) -> str:
    """The digest of these bytes, one after the other; xxh3 is six times as fast as SHA-256."""
    return _digest(hashlib.sha256() if strong else xxhash.xxh3_128(), buffers)


def is_strong(name_or_digest: str) -> bool:
    """Can nobody make other content for it?"""
    found = _IN_NAME.search(name_or_digest)
    return len(found[1] if found else name_or_digest) == _STRONG


def matches(digest: str, *buffers: Any) -> bool:
    """Is it the digest of these bytes? One of no known form is of none."""
    return _is_of(digest, buffers)


def read_named(storage: Storage, name: str) -> bytes:
    """The content of a file whose name ends with its digest, checked."""
    with _trouble_is_damage():
        data = storage.read(name)
        _check(name, [data])
        return data


def check_named(storage: Storage, name: str) -> None:
    """Is the content of a file what its name says? Read in pieces, so a large one takes no room."""
    with _trouble_is_damage(), storage.open_input(name) as source:
        _check(name, iter(lambda: source.read_buffer(_PIECE_BYTES), pa.py_buffer(b"")))


def fill_within(data: bytes) -> bytes:
    """Put the digest of these bytes in the place that `BLANK` keeps for it among them."""
    at = data.rindex(BLANK.encode()) + len(_WITHIN)
    return data[:at] + digest_of(data).encode() + data[at + _DIGITS :]


def read_filled(storage: Storage, name: str) -> bytes:
    """The content of a file that `fill_within` has made, checked."""
    with _trouble_is_damage():
        data = storage.read(name)
    at = data.rfind(_WITHIN.encode()) + len(_WITHIN)
    blank = data[:at] + b"0" * _DIGITS + data[at + _DIGITS :]
    if not matches(data[at : at + _DIGITS].decode("latin-1"), blank):
        raise DamagedFile("its content does not match the digest inside")
    return data


def seal(told: Mapping[str, Any], sign: Sign | None = None, **style: Any) -> bytes:
    """A JSON object with its digest, and its signature if there is a key, as first entries."""
    body = json.dumps(told, sort_keys=True, **style).encode()
    head = b'{"digest": "%s", ' % digest_of(body).encode()
    if sign is not None:
        head += b'"signature": "%s", ' % sign(body).encode()
    return head + body[1:]


def unseal(data: bytes, sign: Sign | None = None) -> dict[str, Any]:
    """The object back."""
    head = _HEAD.match(data)
    if head is None:
        raise DamagedFile("it has no digest")
    body = b"{" + data[head.end() :]
    if not matches(head[1].decode("latin-1"), body):
        raise DamagedFile("its content does not match its digest")
    if sign is not None:
        if head[2] is None:
            raise NotSigned("it is not signed")
        if not hmac.compare_digest(head[2], sign(body).encode()):
            raise NotSigned("its signature is not of this key")
    try:
        told: dict[str, Any] = json.loads(body)
    except (ValueError, RecursionError) as problem:
        raise DamagedFile(f"it is no JSON ({problem})") from problem
    return told


def _check(name: str, pieces: Iterable[Any]) -> None:
    found = _IN_NAME.search(name)
    if found is None or not _is_of(found[1], pieces):
        raise DamagedFile("its content does not match the digest in its name")


@contextmanager
def _trouble_is_damage() -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as problem:
        raise DamagedFile("it is missing") from problem
    except (OSError, pa.ArrowException) as problem:
        raise DamagedFile(f"it cannot be read ({problem})") from problem


def _is_of(digest: str, buffers: Iterable[Any]) -> bool:
    make = _MAKERS.get(len(digest))
    return make is not None and _digest(make(), buffers) == digest


def _digest(made: Any, buffers: Iterable[Any]) -> str:
    for buffer in buffers:
        made.update(buffer)
    return str(made.hexdigest())
