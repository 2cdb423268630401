"""What tells keys of equal hash apart: pinned, secret, and proof against keys made to collide."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.routing.hashing import LONG_VALUE_BYTES, ByteValues, hash_columns
from headgate.routing.identity import Identity, hash_bytes, hash_words
from strategies import examples

SECRET = bytes(range(16))
# Two keys of 16 bytes that share their hash, found in half a minute on one core: their difference
# after eight bytes is all that counts.
TWINS = [
    bytes.fromhex("3141acf8dc618a056161616161616161"),
    bytes.fromhex("126365322ecafc5f4cec7ae4d7488ec2"),
]


def checks(identity: Identity, *key: pa.Array) -> list[int]:
    rows = len(key[0])
    return identity.check(identity.marks(key, rows), rows).tolist()


# Changing any of these orphans every checkpoint ever written.
GOLDEN: list[tuple[list[pa.Array], list[int]]] = [
    (
        [pa.array(["", "a", "hello", "12345678", "héllo wörld, this is longer", None])],
        [
            0xABAC0158050FC4DC | 1,  # the first of the vectors that Rust tests its SipHash-1-3 by
            2028475444892426807,
            13168010244364928439,
            1272526060793997775,
            16852506370303364033,
            10746907367780247123,
        ],
    ),
    ([pa.array(["x" * 256, "x" * 257])], [8456538012996646169, 11996531787939155451]),
    ([pa.array([1.5, None])], [1, 3]),
    ([pa.array([Decimal("1.25")], pa.decimal128(12, 2))], [2746191556003522091]),
    (
        [pa.array([1, 1, None, None]), pa.array(["a", None, "a", None])],
        [16467699908814181287, 6677064053851714473, 3966338763418793433, 7365485784941452433],
    ),
    ([pa.array([7, 7]), pa.array([1, None])], [6902857748413401421, 13033075918968898727]),
]


@pytest.mark.parametrize(("key", "wanted"), GOLDEN)
def test_checks_are_the_ones_that_checkpoints_with_this_secret_hold(
    key: list[pa.Array], wanted: list[int]
) -> None:
    assert checks(Identity(SECRET), *key) == wanted


def test_text_is_checked_by_its_siphash_and_a_composite_key_by_that_of_its_words() -> None:
    text = reference(SECRET, b"abc")
    words = text.to_bytes(8, "little") + (5).to_bytes(8, "little")

    assert checks(Identity(SECRET), pa.array(["abc"])) == [text | 1]
    composite = checks(Identity(SECRET), pa.array(["abc"]), pa.array([5]))
    assert composite == [reference(SECRET, words) | 1]


def test_keys_that_share_all_public_bits_are_two_under_every_secret() -> None:
    column = pa.array(TWINS)
    numbered = pa.array([0, 0])

    assert len(set(hash_columns([column], 2).tolist())) == 1
    assert len(set(hash_columns([column, numbered], 2).tolist())) == 1
    for secret in (bytes(16), SECRET, bytes([255]) * 16):
        assert len(set(checks(Identity(secret), column))) == 2
        assert len(set(checks(Identity(secret), column, numbered))) == 2


def test_no_value_is_null_for_who_does_not_know_the_secret() -> None:
    """The integer whose hash is that of null, and text that spells the word."""
    value = pa.array([-5753777042772796793, None])
    assert len(set(hash_columns([value], 2).tolist())) == 1

    assert len(set(checks(Identity(SECRET), value))) == 2
    assert len(set(checks(Identity(SECRET), value, pa.array([1, 1])))) == 2
    assert len(set(checks(Identity(SECRET), pa.array(["null", None])))) == 2


def test_an_identity_is_told_and_read_back() -> None:
    for identity in (Identity(SECRET), Identity.new()):
        assert Identity.from_json(identity.to_json()) == identity
    assert Identity.new() != Identity.new()


@pytest.mark.parametrize(
    "told", [{}, {"hash": "hg1"}, {"hash": "hg2"}, {"hash": "hg3", "secret": "00" * 16}]
)
def test_what_is_no_identity_is_refused(told: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="hex"):
        Identity.from_json(told)


# --- SipHash-1-3 over many rows at once is SipHash-1-3, row by row.

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
