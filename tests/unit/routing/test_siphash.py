"""SipHash-1-3 over many rows at once is SipHash-1-3, row by row."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.routing.key_values import LONG_VALUE_BYTES, ByteValues
from headgate.routing.siphash import hash_bytes, hash_words
from strategies import examples

KEY = bytes(range(16))
MASK = 2**64 - 1
VALUES = st.lists(st.binary(max_size=40) | st.binary(max_size=LONG_VALUE_BYTES), max_size=20)


def reference(key: bytes, message: bytes, compress: int = 1, finish: int = 3) -> int:
    """SipHash as the paper writes it, a byte string at a time."""
    k0, k1 = (int.from_bytes(key[i : i + 8], "little") for i in (0, 8))
    v = [0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573]
    v = [v[0] ^ k0, v[1] ^ k1, v[2] ^ k0, v[3] ^ k1]

    def rotated(x: int, by: int) -> int:
        return (x << by | x >> (64 - by)) & MASK

    def rounds(count: int) -> None:
        for _ in range(count):
            v[0], v[2] = (v[0] + v[1]) & MASK, (v[2] + v[3]) & MASK
            v[1], v[3] = rotated(v[1], 13) ^ v[0], rotated(v[3], 16) ^ v[2]
            v[0] = rotated(v[0], 32)
            v[2], v[0] = (v[2] + v[1]) & MASK, (v[0] + v[3]) & MASK
            v[1], v[3] = rotated(v[1], 17) ^ v[2], rotated(v[3], 21) ^ v[0]
            v[2] = rotated(v[2], 32)

    padded = message + bytes(-(len(message) + 1) % 8) + bytes([len(message) % 256])
    for start in range(0, len(padded), 8):
        word = int.from_bytes(padded[start : start + 8], "little")
        v[3] ^= word
        rounds(compress)
        v[0] ^= word
    v[2] ^= 0xFF
    rounds(finish)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


def hashed(key: bytes, messages: list[bytes]) -> list[int]:
    return hash_bytes(key, ByteValues.of(pa.array(messages, pa.binary()))).tolist()


def test_the_reference_gives_the_published_value() -> None:
    """Appendix A of the paper: SipHash-2-4 of the bytes 0 to 14."""
    assert reference(KEY, bytes(range(15)), 2, 4) == 0xA129CA6149BE45E5


@examples(60)
@given(key=st.binary(min_size=16, max_size=16), messages=VALUES)
def test_rows_of_all_lengths_hash_as_the_reference_says(key: bytes, messages: list[bytes]) -> None:
    assert hashed(key, messages) == [reference(key, message) for message in messages]


@examples(30)
@given(st.lists(st.lists(st.integers(0, MASK), min_size=3, max_size=3), max_size=8), st.data())
def test_words_hash_as_their_bytes_do(rows: list[list[int]], data: st.DataObject) -> None:
    width = data.draw(st.integers(1, 3))
    words = [np.array([row[i] for row in rows], np.uint64) for i in range(width)]
    messages = [b"".join(w.to_bytes(8, "little") for w in row[:width]) for row in rows]

    assert hash_words(KEY, words).tolist() == [reference(KEY, message) for message in messages]


@pytest.mark.skipif(sys.hash_info.algorithm != "siphash13", reason="Python hashes otherwise")
def test_it_is_the_function_that_python_hashes_bytes_with() -> None:
    """With PYTHONHASHSEED=0 its key is zero; it has no -1, and 0 for nothing."""
    messages = [bytes(range(1, size)) for size in range(2, 64)]
    told = subprocess.run(
        [sys.executable, "-c", f"import json; print(json.dumps([hash(m) for m in {messages!r}]))"],
        env={**os.environ, "PYTHONHASHSEED": "0"},
        stdout=subprocess.PIPE,
        check=True,
    )

    assert [value % 2**64 for value in json.loads(told.stdout)] == hashed(bytes(16), messages)
