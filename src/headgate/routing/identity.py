"""What tells keys of equal hash apart: their *check*, which nobody can foresee.

`h` is public, so keys that share it can be made on purpose. The check is a pseudorandom function of
the whole key under a secret of the checkpoint (SipHash-1-3 with 128 bits; BLAKE2b for a value of
more than 256 bytes): n keys made to collide succeed with probability n² / 2⁶⁴. A key of one
word needs none, as its `h` is a bijection. A check is always odd, which leaves 0 and 2 free as
markers for the state table.

Checkpoints that have no secret keep their checks for life: a second public hash, for which two keys
of 16 bytes that share it and `h` are found in minutes.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.routing.hashing import SECOND, blocks, hash_columns, mix
from headgate.routing.key_values import (
    U64,
    ByteValues,
    codes_of,
    is_integer_like,
    is_one_word,
    null_mask,
    plain,
    words_of,
)
from headgate.routing.siphash import hash_bytes, hash_words

SECRET_BYTES = 16
WITHOUT_SECRET, WITH_SECRET = "hg1", "hg2"  # as checkpoints name them
_ONE, _NULL_CHECK = np.uint64(1), np.uint64(3)


@dataclass(frozen=True)
class Identity:
    """How the keys of a checkpoint are told apart; `secret` is None in one of the first format.

    Equal keys have equal marks and equal checks, in whatever Arrow layout they come.
    """

    secret: bytes | None = None

    @classmethod
    def new(cls) -> Identity:
        return cls(os.urandom(SECRET_BYTES))

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Identity:
        """What `to_json` made; ValueError if that is not it."""
        if told.get("hash") == WITHOUT_SECRET:
            return cls()
        secret = bytes.fromhex(str(told.get("secret")))
        if told.get("hash") != WITH_SECRET or len(secret) != SECRET_BYTES:
            raise ValueError(f"a secret has {SECRET_BYTES} bytes, in hex")
        return cls(secret)

    def to_json(self) -> dict[str, str]:
        if self.secret is None:
            return {"hash": WITHOUT_SECRET}
        return {"hash": WITH_SECRET, "secret": self.secret.hex()}

    @property
    def fingerprint(self) -> str:
        """Names the secret without telling it."""
        return hashlib.blake2b(b"fingerprint", key=self.secret or b"", digest_size=8).hexdigest()

    def marks(self, key: Sequence[pa.Array], sub: Sequence[pa.Array], rows: int) -> list[U64]:
        """Numbers per row: rows of equal `h` are of one key and sub-key if all of these agree."""
        if self.secret is None:
            return [_public_check(key, sub, rows)]
        columns = [plain(column) for column in (*key, *sub)]
        if len(columns) == 1 and is_one_word(columns[0].type):
            return [_where_null(columns[0])] if columns[0].null_count else []
        found = [np.empty(rows, np.uint64) for _ in columns]
        for part, block in blocks(columns, rows):
            for words, column in zip(found, block, strict=True):
                words[part] = self._words(column)
        return found

    def check(self, marks: Sequence[U64], rows: int) -> U64:
        """One number instead of many: tells keys of equal `h` apart, and is kept in the state."""
        if not marks:
            return np.full(rows, _ONE)
        if len(marks) == 1:
            return marks[0] | _ONE
        assert self.secret is not None
        return hash_words(self.secret, marks) | _ONE

    def _words(self, column: pa.Array) -> U64:
        """A word per value; for those that are longer a pseudorandom one, and so for null."""
        assert self.secret is not None
        if pa.types.is_dictionary(column.type):
            values = self._words(column.dictionary)
            words = (values if len(values) else np.zeros(1, np.uint64))[codes_of(column)]
        elif is_one_word(column.type):
            words = words_of(column)
        else:
            texts = ByteValues.of(column)
            words = hash_bytes(self.secret, texts)
            for row, value in texts.long_values():
                words[row] = self._digest(value)
        if column.null_count:
            words[null_mask(column)] = self._null
        return words

    @cached_property
    def _null(self) -> np.uint64:
        return self._digest(b"null")

    def _digest(self, value: bytes | memoryview) -> np.uint64:
        assert self.secret is not None
        digest = hashlib.blake2b(value, key=self.secret, digest_size=8).digest()
        return np.uint64(int.from_bytes(digest, "little"))


SCRATCH = Identity.new()  # for keys that are compared in this process only


def _where_null(column: pa.Array) -> U64:
    return np.where(null_mask(column), _NULL_CHECK, _ONE)


def _public_check(key: Sequence[pa.Array], sub: Sequence[pa.Array], rows: int) -> U64:
    if not key or not sub:
        return _second_hash([*key, *sub], rows)
    below = mix(_second_hash(sub, rows) ^ hash_columns(sub, rows))
    return mix(_second_hash(key, rows) + below) | _ONE


def _second_hash(columns: Sequence[pa.Array], rows: int) -> U64:
    hashed = np.full(rows, _ONE)
    for part, block in blocks(columns, rows) if columns else ():
        if len(block) == 1 and is_integer_like(block[0].type):
            hashed[part] = _where_null(block[0])
        else:
            hashed[part] = SECOND.hash(block) | _ONE
    return hashed
