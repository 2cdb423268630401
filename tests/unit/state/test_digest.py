"""Digests: what was changed, cut or lost is never taken for what was written."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from headgate.state.digest import DamagedFile, digest_of, matches, read_named, seal, unseal
from headgate.state.storage import Storage

OBJECTS = st.dictionaries(st.text(), st.integers() | st.text() | st.none(), min_size=1)


def test_bytes_in_parts_have_the_digest_of_the_whole() -> None:
    digest = digest_of(b"abc", pa.py_buffer(b"def"), memoryview(b"g"))

    assert digest == digest_of(b"abcdefg")
    assert matches(digest, b"ab", b"cdefg")
    assert not matches(digest, b"abcdefG")


def test_digests_of_earlier_versions_are_known_by_their_length() -> None:
    assert matches(xxhash.xxh3_64_hexdigest(b"x"), b"x")
    assert not matches(xxhash.xxh3_64_hexdigest(b"x"), b"y")
    assert not matches("", b"") and not matches("b2-00", b"")


@pytest.mark.parametrize("digest", [digest_of, xxhash.xxh3_64_hexdigest])
def test_a_file_is_read_if_its_content_is_what_its_name_says(tmp_path: Path, digest: Any) -> None:
    storage, data = Storage.at(str(tmp_path)), b"what was written"
    name = f"op-1/e1-{digest(data)}.arrow"
    storage.write(name, data)

    assert read_named(storage, name) == data
    for damaged in (b"what was Written", data[:-1], b"", data + b"\0"):
        storage.write(name, damaged)
        with pytest.raises(DamagedFile, match="does not match"):
            read_named(storage, name)
    storage.delete(name)
    with pytest.raises(DamagedFile, match="missing"):
        read_named(storage, name)
    storage.write(f"{name}/inside", b"a folder in its place")
    with pytest.raises(DamagedFile, match="cannot be read"):
        read_named(storage, name)


def test_a_name_without_a_digest_vouches_for_nothing(tmp_path: Path) -> None:
    storage = Storage.at(str(tmp_path))
    for name in ("plain", "e1.arrow", "e1-.arrow", "e1-zz.arrow"):
        storage.write(name, b"")
        with pytest.raises(DamagedFile):
            read_named(storage, name)


@given(told=OBJECTS)
def test_a_sealed_object_comes_back(told: dict[str, Any]) -> None:
    told.pop("digest", None)
    told["more"] = 1

    assert unseal(seal(told)) == told
    assert unseal(seal(told, indent=2)) == told
    with pytest.raises(DamagedFile, match="no digest"):
        unseal(json.dumps(told).encode())


def test_no_damage_to_a_sealed_object_goes_unseen() -> None:
    whole = seal({"buckets": 64, "names": ["a", "ü"]})
    rng = random.Random(1)
    damaged = [
        whole[:at] + bytes([whole[at] ^ (1 << bit)]) + whole[at + 1 :]
        for at in range(len(whole))
        for bit in range(8)
    ]
    damaged += [whole[:length] for length in range(len(whole))]
    damaged += [rng.randbytes(rng.randrange(60)) for _ in range(200)]
    damaged += [b"[" * 100_000, b"[]", b"null", b'{"digest": "", "buckets": 64}']
    for data in damaged:
        with pytest.raises(DamagedFile):
            unseal(data)
