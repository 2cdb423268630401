"""Key hashes: pinned for ever, blind to layout, exact on equality, good on distribution."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import product

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.errors import SchemaMismatch
from headgate.routing.hashing import bucket_of, hash_columns, is_hashable, mix
from headgate.routing.identity import Identity
from strategies import KEY_COLUMNS, KEY_VALUES, TEXTS, columns, examples

# Changing any of these orphans every checkpoint ever written.
GOLDEN = {
    "int": (
        pa.int64(),
        [
            (0, 16294208416658607535),
            (1, 10451216379200822465),
            (-1, 16490336266968443936),
            (2**63 - 1, 3055647633038352039),
            (None, 6364136223846793005),
        ],
    ),
    "boolean": (
        pa.bool_(),
        [
            (False, 16294208416658607535),
            (True, 10451216379200822465),
            (None, 6364136223846793005),
        ],
    ),
    "date": (
        pa.date32(),
        [
            (date(1970, 1, 1), 16294208416658607535),
            (date(2024, 2, 29), 15820024857312553229),
            (None, 6364136223846793005),
        ],
    ),
    "timestamp": (
        pa.timestamp("us", "UTC"),
        [
            (datetime(2024, 1, 1, tzinfo=UTC), 6734294775555896561),
            (None, 6364136223846793005),
        ],
    ),
    "string": (
        pa.string(),
        [
            ("", 17551768365421521789),
            ("a", 6121854874600964677),
            ("hello", 4346389546675274310),
            ("12345678", 15804013615604557195),
            ("123456789", 11845182058416375926),
            ("héllo wörld, this is longer", 8160507728555193279),
            (None, 17772583763426662353),
        ],
    ),
    "long string": (
        pa.string(),
        [
            ("x" * 256, 12413974815226406074),
            ("x" * 257, 7609223394098975360),
            ("x" * 1000, 14024980352825730841),
        ],
    ),
    "binary": (
        pa.binary(),
        [
            (b"", 17551768365421521789),
            (b"a", 6121854874600964677),
            (b"\x00", 13553528020386269310),
            (b"\xff" * 9, 16402309929704515836),
            (None, 17772583763426662353),
        ],
    ),
    "fixed binary": (
        pa.binary(4),
        [
            (b"abcd", 9369073666249978898),
            (None, 17772583763426662353),
        ],
    ),
    "float": (
        pa.float64(),
        [
            (0.0, 1665273738725434930),
            (-0.0, 1665273738725434930),
            (1.5, 2138546521550891314),
            (float("nan"), 11477161006631036725),
            (float("inf"), 3820417057445586446),
            (None, 17772583763426662353),
        ],
    ),
    "decimal": (
        pa.decimal128(12, 2),
        [
            (Decimal("1.25"), 15462804537559608427),
            (Decimal("-1.25"), 2989718202473927842),
            (None, 17772583763426662353),
        ],
    ),
}


SECRET = Identity(bytes(range(16)))


def all_of(*key: pa.Array) -> list[tuple[int, int]]:
    """What a state row is found by: its hash and its check."""
    h, check = _both(key, len(key[0]))
    return list(zip(h.tolist(), check.tolist(), strict=True))


def ways(*key: pa.Array) -> list[list[tuple[int, ...]]]:
    """Every way to tell keys apart: in the state, and in a batch."""
    rows = len(key[0])
    marks = [hash_columns(key, rows), *SECRET.marks(key, rows)]
    return [all_of(*key), list(zip(*marks, strict=True))]


# --- the values themselves --------------------------------------------------------------------


@pytest.mark.parametrize("kind", GOLDEN)
def test_hashes_are_the_ones_that_checkpoints_were_written_with(kind: str) -> None:
    arrow, vectors = GOLDEN[kind]

    column = pa.array([value for value, _ in vectors], arrow)
    assert hash_columns([column], len(column)).tolist() == [h for _, h in vectors]


def test_composite_hashes_are_the_ones_that_checkpoints_were_written_with() -> None:
    key = [pa.array([1, 1, None, None]), pa.array(["a", None, "a", None])]

    assert hash_columns(key, 4).tolist() == [
        0x758C19F928FEDBB4,
        0x35FC08298A29B836,
        0xD215D384D13F907A,
        0x1E11D2BAF12CD7D1,
    ]


def test_an_integer_hashes_to_the_published_splitmix64_sequence() -> None:
    """State 0, 1 × and 2 × the golden gamma: the first outputs of Steele's reference generator."""
    gamma = 0x9E3779B97F4A7C15
    states = np.array([0, gamma, 2 * gamma % 2**64], np.uint64).view(np.int64)

    assert hash_columns([pa.array(states)], 3).tolist() == [
        0xE220A8397B1DCDAF,
        0x6E789E6AA1B965F4,
        0x06C45D188009454F,
    ]


def test_no_columns_are_one_key() -> None:
    assert hash_columns([], 3).tolist() == [0, 0, 0]
    assert SECRET.check(SECRET.marks([], 3), 3).tolist() == [1, 1, 1]


def test_no_rows_have_no_hashes() -> None:
    for kind in KEY_VALUES:
        assert all_of(pa.array([], kind)) == []


# --- blind to layout --------------------------------------------------------------------------


@examples(60)
@given(column=KEY_COLUMNS, before=st.integers(0, 9), after=st.integers(0, 9))
def test_a_slice_hashes_like_a_fresh_array(column: pa.Array, before: int, after: int) -> None:
    pad = pa.concat_arrays([column] * 10)[:9] if len(column) else column
    whole = pa.concat_arrays([pad[:before], column, pad[:after]])
    view = whole.slice(len(pad[:before]), len(column))

    assert all_of(view) == all_of(column)


@examples(60)
@given(column=KEY_COLUMNS, cut=st.integers(0, 30))
def test_a_row_hashes_the_same_in_whatever_batch_it_comes(column: pa.Array, cut: int) -> None:
    assert all_of(column[:cut]) + all_of(column[cut:]) == all_of(column)


@examples(60)
@given(values=st.lists(st.none() | st.integers(-128, 127), max_size=20))
def test_equal_integers_of_any_width_hash_equal(values: list[int | None]) -> None:
    wide = all_of(pa.array(values, pa.int64()))

    for kind in (pa.int8(), pa.int16(), pa.int32()):
        assert all_of(pa.array(values, kind)) == wide


@examples(60)
@given(values=st.lists(st.none() | st.floats(width=16), max_size=20))
def test_equal_floats_of_any_width_hash_equal(values: list[float | None]) -> None:
    wide = all_of(pa.array(values, pa.float64()))

    assert all_of(pa.array(values, pa.float32())) == wide
    assert all_of(pa.array(values, pa.float64()).cast(pa.float16())) == wide


@examples(60)
@given(values=st.lists(st.none() | TEXTS, max_size=20))
def test_text_hashes_by_its_bytes_whatever_its_arrow_type(values: list[str | None]) -> None:
    raw = [None if v is None else v.encode() for v in values]

    expected = all_of(pa.array(values, pa.string()))
    assert all_of(pa.array(values, pa.large_string())) == expected
    assert all_of(pa.array(raw, pa.binary())) == expected
    assert all_of(pa.array(raw, pa.large_binary())) == expected


@examples(60)
@given(column=KEY_COLUMNS, start=st.integers(0, 5))
def test_a_dictionary_column_hashes_like_its_values(column: pa.Array, start: int) -> None:
    encoded = column.dictionary_encode()

    assert all_of(encoded[start:]) == all_of(column[start:])
    assert all_of(encoded, column) == all_of(column, column)


def test_a_null_inside_the_dictionary_is_the_null_key() -> None:
    encoded = pa.DictionaryArray.from_arrays(pa.array([0, 1, None]), pa.array(["x", None]))

    assert all_of(encoded) == all_of(pa.array(["x", None, None]))


def test_what_lies_under_a_null_does_not_matter() -> None:
    mask = np.array([False, True, True])

    assert all_of(pa.array([1, 2, 3], mask=mask)) == all_of(pa.array([1, None, None], pa.int64()))
    texts = pa.Array.from_buffers(
        pa.string(),
        3,
        [pa.py_buffer(b"\x01"), pa.array(["a", "bb", "ccc"]).buffers()[1], pa.py_buffer(b"abbccc")],
    )
    assert texts.to_pylist() == ["a", None, None]
    assert all_of(texts) == all_of(pa.array(["a", None, None]))


def test_hashing_changes_nothing_in_its_input() -> None:
    numbers = np.arange(5, dtype=np.uint64)
    column = pa.array(numbers)

    assert all_of(column) == all_of(column)
    assert column.to_pylist() == [0, 1, 2, 3, 4]


# --- equality ---------------------------------------------------------------------------------


@examples(100)
@given(column=KEY_COLUMNS)
def test_two_rows_hash_equal_if_and_only_if_their_values_are_equal(column: pa.Array) -> None:
    for found in ways(column):
        by_value: dict[object, tuple[int, ...]] = {}
        for value, numbers in zip(column.to_pylist(), found, strict=True):
            assert by_value.setdefault(value, numbers) == numbers

        assert len(set(by_value.values())) == len(by_value)


@examples(60)
@given(
    kinds=st.lists(st.sampled_from(list(KEY_VALUES)), min_size=2, max_size=3),
    data=st.data(),
)
def test_composite_keys_hash_equal_if_and_only_if_all_parts_are(
    kinds: list[pa.DataType], data: st.DataObject
) -> None:
    key = [data.draw(columns(kind, 12, 12)) for kind in kinds]
    rows = list(zip(*(column.to_pylist() for column in key), strict=True))

    for found in ways(*key):
        by_value = dict(zip(rows, found, strict=True))
        assert all(by_value[row] == numbers for row, numbers in zip(rows, found, strict=True))
        assert len(set(by_value.values())) == len(by_value)


def test_order_and_borders_of_the_parts_of_a_key_matter() -> None:
    keys = [("a", "b"), ("b", "a"), ("ab", ""), ("ab",)]
    told = [ways(*(pa.array([part]) for part in key)) for key in keys]

    for found in zip(*told, strict=True):
        assert len({way[0] for way in found}) == 4


def test_every_nan_is_one_key_and_zero_has_no_sign() -> None:
    bits = np.array([0x7FF8000000000000, 0xFFF8000000000001, 0x7FF0000000000001], np.uint64)
    nans = all_of(pa.array(bits.view(np.float64)))
    zeros = all_of(pa.array([0.0, -0.0]))

    assert len(set(nans)) == 1
    assert len(set(zeros)) == 1


def test_strings_of_zero_bytes_differ_by_length() -> None:
    for found in ways(pa.array(["\0" * n for n in range(300)])):
        assert len(set(found)) == 300


def test_the_hash_of_one_integer_can_be_undone() -> None:
    """A bijection: equal h means equal key, so `check` need not tell integers apart."""
    values = np.concatenate(
        [np.arange(-500, 500), np.random.default_rng(7).integers(-(2**63), 2**63 - 1, 10_000)]
    )

    h = hash_columns([pa.array(values)], len(values))

    assert (_undone(h).view(np.int64) == values).all()


def test_a_million_consecutive_integers_have_a_million_hashes() -> None:
    h = hash_columns([pa.array(np.arange(1_000_000))], 1_000_000)

    assert len(np.unique(h)) == 1_000_000


def _undone(h: np.ndarray) -> np.ndarray:
    def unshift(x: np.ndarray, by: int) -> np.ndarray:
        y = x
        for _ in range(64 // by):
            y = x ^ (y >> np.uint64(by))
        return y

    x = unshift(h, 31) * np.uint64(pow(0x94D049BB133111EB, -1, 2**64))
    x = unshift(x, 27) * np.uint64(pow(0xBF58476D1CE4E5B9, -1, 2**64))
    return unshift(x, 30) - np.uint64(0x9E3779B97F4A7C15)


@examples(50)
@given(column=KEY_COLUMNS)
def test_check_is_odd_so_that_the_state_table_has_its_markers(column: pa.Array) -> None:
    for key in ([column], [column, column], [column.dictionary_encode()]):
        assert all(check & 1 for _, check in all_of(*key))


# --- quality ----------------------------------------------------------------------------------

COUNT = 200_000
NAMED_KEYS = {
    "consecutive integers": lambda: [pa.array(np.arange(COUNT))],
    "multiples of 4096": lambda: [pa.array(np.arange(COUNT) * 4096)],
    "numbered names": lambda: [pa.array([f"user-{i}" for i in range(COUNT)])],
    "urls": lambda: [pa.array([f"https://example.org/items/{i:08d}.html" for i in range(COUNT)])],
    "whole floats": lambda: [pa.array(np.arange(COUNT, dtype=np.float64))],
    "a grid": lambda: [pa.array(np.arange(COUNT) // 500), pa.array(np.arange(COUNT) % 500)],
    "days": lambda: [pa.array(np.arange(COUNT, dtype=np.int32)).view(pa.date32())],
    "prices": lambda: [pa.array(np.arange(COUNT)).cast(pa.decimal128(20, 0))],
}


@pytest.mark.parametrize("name", NAMED_KEYS)
def test_ordinary_keys_fill_the_buckets_as_evenly_as_dice_would(name: str) -> None:
    key = NAMED_KEYS[name]()
    h = hash_columns(key, COUNT)

    for bits in (h >> np.uint64(54), h & np.uint64(1023)):  # top bits: buckets; low ones: places
        load = np.bincount(bits.astype(np.int64), minlength=1024)
        expected = COUNT / 1024
        chi2 = float(((load - expected) ** 2 / expected).sum())
        assert abs(chi2 - 1023) < 6 * np.sqrt(2 * 1023)


@pytest.mark.parametrize("name", NAMED_KEYS)
def test_ordinary_keys_do_not_share_a_hash(name: str) -> None:
    assert len(np.unique(hash_columns(NAMED_KEYS[name](), COUNT))) == COUNT


def test_packed_numbers_do_not_share_a_hash() -> None:
    packed = [struct.pack("<qd", i, j) for i, j in product(range(-150, 150), range(-150, 150))]

    for found in zip(*all_of(pa.array(packed)), strict=True):
        assert len(set(found)) == len(packed)


def test_every_bit_of_an_integer_flips_half_of_the_hash() -> None:
    values = np.random.default_rng(1).integers(0, 2**64, 4096, dtype=np.uint64)
    plain = mix(values)

    for bit in range(64):
        flips = _bits(plain ^ mix(values ^ np.uint64(1 << bit))).mean(axis=0)
        assert np.abs(flips - 0.5).max() < 6 * 0.5 / np.sqrt(len(values))


@pytest.mark.parametrize("width", [1, 7, 8, 9, 24])
def test_every_bit_of_a_text_flips_half_of_both_hashes(width: int) -> None:
    rng = np.random.default_rng(2)
    raw = rng.integers(0, 256, (2000, width), dtype=np.uint8)
    if width == 1:
        raw = np.arange(256, dtype=np.uint8)[:, None]
    plain = _hash_bytes(raw)
    tolerance = (6 if width > 1 else 8) * 0.5 / np.sqrt(len(raw))

    for byte, bit in product(range(width), range(8)):
        other = raw.copy()
        other[:, byte] ^= np.uint8(1 << bit)
        changed = _hash_bytes(other)
        flips = _bits(plain[0] ^ changed[0]).mean(axis=0)
        assert np.abs(flips - 0.5).max() < tolerance
        flips = _bits((plain[1] ^ changed[1]) >> np.uint64(1)).mean(axis=0)[:63]
        assert np.abs(flips - 0.5).max() < tolerance


@pytest.mark.parametrize("name", ["numbered names", "urls", "a grid"])
def test_check_knows_nothing_of_h(name: str) -> None:
    """No bit of one follows any bit of the other: together they are 127 bits wide."""
    h, check = _both(NAMED_KEYS[name](), COUNT)

    ours = _bits(h).astype(np.float32) * 2 - 1
    theirs = _bits(check)[:, 1:].astype(np.float32) * 2 - 1  # bit 0 is always set
    assert np.abs(ours.T @ theirs / COUNT).max() < 6 / np.sqrt(COUNT)


def _bits(words: np.ndarray) -> np.ndarray:
    return np.unpackbits(words.view(np.uint8).reshape(-1, 8), axis=1, bitorder="little")


def _hash_bytes(raw: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return _both([pa.array([row.tobytes() for row in raw])], len(raw))


def _both(key: Sequence[pa.Array], rows: int) -> tuple[np.ndarray, np.ndarray]:
    return hash_columns(key, rows), SECRET.check(SECRET.marks(key, rows), rows)


# --- buckets and types ------------------------------------------------------------------------


@pytest.mark.parametrize("buckets", [1, 2, 16, 1024, 65536])
def test_buckets_are_the_top_bits(buckets: int) -> None:
    h = np.array([0, 1, 2**63, 2**64 - 1], np.uint64)

    assert bucket_of(h, buckets).tolist() == [int(x) * buckets >> 64 for x in h.tolist()]


def test_only_types_with_an_equality_of_their_own_are_keys() -> None:
    for kind in (*KEY_VALUES, pa.dictionary(pa.int32(), pa.string())):
        assert is_hashable(kind)
    for kind in (pa.list_(pa.int64()), pa.struct([("a", pa.int64())]), pa.null()):
        assert not is_hashable(kind)


def test_a_key_of_a_type_that_cannot_be_hashed_is_refused_by_name() -> None:
    with pytest.raises(SchemaMismatch) as caught:
        hash_columns([pa.array([[1]])], 1)

    assert "list<" in caught.value.type


@given(shards=KEY_COLUMNS, data=st.data())
def test_near_columns_choose_the_bucket_and_the_whole_key_the_rest(
    shards: pa.Array, data: st.DataObject
) -> None:
    rows = len(shards)
    numbers = st.lists(st.integers(-3, 3), min_size=rows, max_size=rows)
    other = pa.array(data.draw(numbers), pa.int64())
    key = [shards, other] if data.draw(st.booleans()) else [other, shards]
    place = key.index(shards)

    plain, near = hash_columns(key, rows), hash_columns(key, rows, (place,))

    low = np.uint64((1 << 48) - 1)
    assert (plain & low == near & low).all()
    alone = hash_columns([shards], rows)
    for buckets in (1, 16, 1024, 65536):
        by_shard = dict(zip(alone.tolist(), bucket_of(near, buckets).tolist(), strict=True))
        assert bucket_of(near, buckets).tolist() == [by_shard[h] for h in alone.tolist()]


def test_whole_numbers_in_a_row_have_buckets_of_their_own() -> None:
    for first in (0, 5_000, -700, 2**40):
        shards = pa.array(range(first, first + 1024), pa.int64())
        near = hash_columns([shards, pa.nulls(1024, pa.int64())], 1024, (0,))
        assert len(set(bucket_of(near, 1024).tolist())) > (1023 if first % 1024 == 0 else 600)
        assert first or bucket_of(near, 1024).tolist() == list(range(1024))


def test_near_numbers_far_apart_are_spread() -> None:
    shards = pa.array(np.arange(10_000) * 1024, pa.int64())
    near = hash_columns([shards, shards], 10_000, (0,))
    assert np.bincount(bucket_of(near, 16)).max() < 10_000 / 16 * 1.3


def test_golden_hashes_of_near_keys() -> None:
    columns = [pa.array([7, None, 5000]), pa.array(["a", "a", None])]
    assert [hash_columns(columns, 3, (place,)).tolist() for place in (0, 1)] == [
        [132907902841114395, 6364100315850969210, 12035482878148230205],
        [6121850982313742107, 6122031835879805050, 17772505853464820797],
    ]
