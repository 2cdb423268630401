"""What tells keys of equal hash apart: their *check*, which nobody can predict.

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
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.arrays import U64
from headgate.routing.hashing import (
    BLOCK_ROWS,
    SECOND,
    ByteValues,
    blocks,
    codes_of,
    hash_columns,
    is_integer_like,
    is_one_word,
    mix,
    null_mask,
    plain,
    words_of,
)

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
    def from_json(cls, stored: Mapping[str, Any]) -> Identity:
        """What `to_json` made; ValueError if that is not it."""
        if stored.get("hash") == WITHOUT_SECRET:
            return cls()
        secret = bytes.fromhex(str(stored.get("secret")))
        if stored.get("hash") != WITH_SECRET or len(secret) != SECRET_BYTES:
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


_INITIAL = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)
_FINAL_ROUNDS = 3
_LENGTH_SHIFT = np.uint64(56)


class SipHash:
    """SipHash-1-3 of as many short messages as there are rows; feed it words, take the values.

    A pseudorandom function: without the key, its values cannot be predicted, and two messages that
    share one can only be found by trying. All rows go through a round together, in place: about
    5 ns a row and round. Aumasson and Bernstein, "SipHash: a fast short-input PRF", 2012.
    """

    def __init__(self, key: bytes, rows: int) -> None:
        halves = np.frombuffer(key, "<u8", 2)
        self._v = [np.full(rows, halves[i % 2] ^ np.uint64(x)) for i, x in enumerate(_INITIAL)]
        self._spare = np.empty(rows, np.uint64)

    def absorb(self, words: U64) -> None:
        """The next word of each of the first rows; the others' messages have ended."""
        v0, v1, v2, v3 = (lane[: len(words)] for lane in self._v)
        v3 ^= words
        _round(v0, v1, v2, v3, self._spare[: len(words)])
        v0 ^= words

    def values(self) -> U64:
        v0, v1, v2, v3 = self._v
        v2 ^= np.uint64(0xFF)
        for _ in range(_FINAL_ROUNDS):
            _round(v0, v1, v2, v3, self._spare)
        v0 ^= v1
        v0 ^= v2
        v0 ^= v3
        return v0


def hash_words(key: bytes, words: Sequence[U64]) -> U64:
    """The SipHash of each row's words, as little-endian bytes one after the other."""
    hashed = np.empty(len(words[0]), np.uint64)
    length = np.uint64(8 * len(words)) << _LENGTH_SHIFT
    for start in range(0, len(hashed), BLOCK_ROWS):
        block = [column[start : start + BLOCK_ROWS] for column in words]
        state = SipHash(key, len(block[0]))
        for column in block:
            state.absorb(column)
        state.absorb(np.full(len(block[0]), length))
        hashed[start : start + BLOCK_ROWS] = state.values()
    return hashed


def hash_bytes(key: bytes, values: ByteValues) -> U64:
    """The SipHash of each value that is not long; of those, anything."""
    values, order, at_least = values.longest_first(values.lengths >> 3)
    state = SipHash(key, len(values))
    for number, (rows, whole) in enumerate(pairwise([*at_least, 0])):
        words = values.word(number, rows, whole)
        words[whole:] |= values.lengths[whole:rows].astype(np.uint64) << _LENGTH_SHIFT
        state.absorb(words)
    hashed = np.empty(len(values), np.uint64)
    hashed[order] = state.values()
    return hashed


def _round(v0: U64, v1: U64, v2: U64, v3: U64, spare: U64) -> None:
    v0 += v1
    _rotate(v1, 13, spare)
    v1 ^= v0
    _rotate(v0, 32, spare)
    v2 += v3
    _rotate(v3, 16, spare)
    v3 ^= v2
    v0 += v3
    _rotate(v3, 21, spare)
    v3 ^= v0
    v2 += v1
    _rotate(v1, 17, spare)
    v1 ^= v2
    _rotate(v2, 32, spare)


def _rotate(lane: U64, bits: int, spare: U64) -> None:
    np.left_shift(lane, np.uint64(bits), out=spare)
    np.right_shift(lane, np.uint64(64 - bits), out=lane)
    lane |= spare
