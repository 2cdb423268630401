"""What tells keys of equal hash apart: their *check*, which nobody can predict.

`h` is public, so keys that share it can be made on purpose. The check is a pseudorandom function of
the whole key under a secret of the checkpoint (SipHash-1-3 with 128 bits; BLAKE2b for a value of
more than 256 bytes): n keys made to collide succeed with probability n² / 2⁶⁴. A key of one
word needs none, as its `h` is a bijection. A check is always odd, which leaves 0 and 2 free as
markers for the state table.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.arrays import U64
from headgate.routing import kernels
from headgate.routing.hashing import (
    BLOCK_ROWS,
    ByteValues,
    blocks,
    byte_column,
    is_one_word,
    null_mask,
    numbers_of,
    plain,
    words_of,
)

SECRET_BYTES = 16
KEY_HASH = "hg2"  # as checkpoints name it
_ONE, _NULL_CHECK = np.uint64(1), np.uint64(3)


@dataclass(frozen=True)
class Identity:
    """How the keys of a checkpoint are told apart.

    Equal keys have equal marks and equal checks, in whatever Arrow layout they come.
    """

    secret: bytes

    @classmethod
    def new(cls) -> Identity:
        return cls(os.urandom(SECRET_BYTES))

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Identity:
        """What `to_json` made; ValueError if that is not it."""
        secret = bytes.fromhex(str(stored.get("secret")))
        if stored.get("hash") != KEY_HASH or len(secret) != SECRET_BYTES:
            raise ValueError(f"a secret has {SECRET_BYTES} bytes, in hex")
        return cls(secret)

    def to_json(self) -> dict[str, str]:
        return {"hash": KEY_HASH, "secret": self.secret.hex()}

    @property
    def fingerprint(self) -> str:
        """Names the secret without telling it."""
        return hashlib.blake2b(b"fingerprint", key=self.secret, digest_size=8).hexdigest()

    def marks(self, columns: Sequence[pa.Array], rows: int) -> list[U64]:
        """Numbers per row: rows of equal `h` are of one key (and sub-key) if all of these agree."""
        columns = [plain(column) for column in columns]
        if len(columns) == 1 and is_one_word(columns[0].type):
            if not columns[0].null_count:
                return []
            return [np.where(null_mask(columns[0]), _NULL_CHECK, _ONE)]
        found = [np.empty(rows, np.uint64) for _ in columns]
        for part, block in blocks(columns, rows):
            for words, column in zip(found, block, strict=True):
                words[part] = numbers_of(column, self._words, self._null)
        return found

    def check(self, marks: Sequence[U64], rows: int) -> U64:
        """One number instead of many: tells keys of equal `h` apart, and is kept in the state."""
        if not marks:
            return np.full(rows, _ONE)
        if len(marks) == 1:
            return marks[0] | _ONE
        return hash_words(self.secret, marks) | _ONE

    def _words(self, column: pa.Array) -> U64:
        """A word per value; for those that are longer a pseudorandom one."""
        if is_one_word(column.type):
            return words_of(column)
        if kernels.compiled is not None:
            within = byte_column(column)
            words, long_values = kernels.sip_bytes(kernels.compiled, self.secret, within)
            if not long_values:
                return words
        texts = ByteValues.of(column)
        if kernels.compiled is None:
            words = hash_bytes(self.secret, texts)
        for row, value in texts.long_values():
            words[row] = self._digest(value)
        return words

    @cached_property
    def _null(self) -> np.uint64:
        return self._digest(b"null")

    def _digest(self, value: bytes | memoryview) -> np.uint64:
        digest = hashlib.blake2b(value, key=self.secret, digest_size=8).digest()
        return np.uint64(int.from_bytes(digest, "little"))


SCRATCH = Identity.new()  # for keys that are compared in this process only


# --- SipHash-1-3 of as many short messages as there are rows --------------------------------------
# A pseudorandom function: without the key, its values cannot be predicted, and two messages that
# share one can only be found by trying. Here, where the compiled loop is missing, all rows go
# through a round together, in place: about 5 ns a row and round. Aumasson and Bernstein,
# "SipHash: a fast short-input PRF", 2012.

_INITIAL = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)
_FINAL_ROUNDS = 3
_LENGTH_SHIFT = np.uint64(56)


def hash_words(key: bytes, words: Sequence[U64]) -> U64:
    """The SipHash of each row's words, as little-endian bytes one after the other."""
    if kernels.compiled is not None:
        return kernels.sip_words(kernels.compiled, key, words)
    hashed = np.empty(len(words[0]), np.uint64)
    length = np.uint64(8 * len(words)) << _LENGTH_SHIFT
    for start in range(0, len(hashed), BLOCK_ROWS):
        block = [column[start : start + BLOCK_ROWS] for column in words]
        rows = len(block[0])
        hashed[start : start + rows] = _siphash(key, rows, [*block, np.full(rows, length)])
    return hashed


def hash_bytes(key: bytes, values: ByteValues) -> U64:
    """The SipHash of each value that is not long; of those, anything."""
    values, order, at_least = values.longest_first(values.lengths >> 3)

    def words() -> Iterator[U64]:
        for number, (rows, whole) in enumerate(pairwise([*at_least, 0])):
            word = values.word(number, rows, whole)
            word[whole:] |= values.lengths[whole:rows].astype(np.uint64) << _LENGTH_SHIFT
            yield word

    hashed = np.empty(len(values), np.uint64)
    hashed[order] = _siphash(key, len(values), words())
    return hashed


def _siphash(key: bytes, rows: int, words: Iterable[U64]) -> U64:
    """`words` are the next word of each of the first rows; the others' messages have ended."""
    halves = np.frombuffer(key, "<u8", 2)
    lanes = [np.full(rows, halves[i % 2] ^ np.uint64(x)) for i, x in enumerate(_INITIAL)]
    spare = np.empty(rows, np.uint64)
    for word in words:
        v0, v1, v2, v3 = (lane[: len(word)] for lane in lanes)
        v3 ^= word
        _round(v0, v1, v2, v3, spare[: len(word)])
        v0 ^= word
    v0, v1, v2, v3 = lanes
    v2 ^= np.uint64(0xFF)
    for _ in range(_FINAL_ROUNDS):
        _round(v0, v1, v2, v3, spare)
    v0 ^= v1
    v0 ^= v2
    v0 ^= v3
    return v0


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
