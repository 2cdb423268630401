"""Whose checkpoint a folder is: `headgate.json`, with a digest of itself.

Earlier versions wrote it without one; the first start seals it. Buckets are checked against the
routing tables besides (`tables_in_use`).
"""

from __future__ import annotations

import uuid
from typing import Any

from headgate.commit.manifest import FORMAT, READABLE
from headgate.commit.signing import Signer, untrusted
from headgate.errors import ForeignCheckpoint, UnsupportedVersion
from headgate.routing.identity import WITH_SECRET, WITHOUT_SECRET, Identity
from headgate.state.digest import DamagedFile, NotSigned, Sign, seal, unseal
from headgate.state.storage import Storage

IDENTITY = "headgate.json"
HASHES = (WITHOUT_SECRET, WITH_SECRET)
_OLD_BEGINNING = b'{"buckets": '  # entries were sorted by name, and there was no digest


def read_identity(storage: Storage, signer: Signer | None = None) -> dict[str, Any] | None:
    """What it says; None in a new folder."""
    told = _read(storage, signer)
    return None if told is None else told[0]


def create_identity(storage: Storage, signer: Signer | None, **facts: Any) -> bool:
    """Say for the first time whose folder it is; False if another start was first."""
    facts = {"id": uuid.uuid4().hex, "signed": signer is not None, **facts}
    return storage.create(IDENTITY, seal(facts, _sign(signer)))


def tell_identity(storage: Storage, signer: Signer | None = None, **facts: Any) -> None:
    """Add facts, or change them; written only if something changes."""
    found = _read(storage, signer)
    assert found is not None, f"{IDENTITY} is made by the first start"
    told, whole = found
    facts = {"id": told.get("id", uuid.uuid4().hex), "signed": signer is not None, **facts}
    if not whole or told != {**told, **facts}:
        storage.write(IDENTITY, seal({**told, **facts}, _sign(signer)), True)


def _sign(signer: Signer | None) -> Sign | None:
    return None if signer is None else signer.of("", IDENTITY)


def _read(storage: Storage, signer: Signer | None) -> tuple[dict[str, Any], bool] | None:
    """What it says, and whether it says so with all that it should have: digest and signature."""
    try:
        data = storage.read(IDENTITY)
    except FileNotFoundError:
        return None
    try:
        told, sealed = unseal(data)
        signed = True
        try:
            unseal(data, _sign(signer))
        except NotSigned as problem:
            if signer is None or not signer.trust_unsigned or told.get("signed"):
                raise untrusted(storage.uri, IDENTITY, problem) from problem
            signed = False
        if not sealed and not data.startswith(_OLD_BEGINNING):
            raise DamagedFile("it does not begin as it was written")
        _check_version(storage, told)
        _check_facts(told)
    except DamagedFile as problem:
        raise ForeignCheckpoint(
            f"{IDENTITY} in {storage.uri} is damaged: {problem}. Bring it back from a copy, or "
            "start with a new checkpoint folder",
            uri=storage.uri,
            file=IDENTITY,
        ) from problem
    return told, sealed and signed


def _check_version(storage: Storage, told: dict[str, Any]) -> None:
    if told.get("format") not in READABLE or told.get("hash") not in HASHES:
        raise UnsupportedVersion(
            f"checkpoint {storage.uri} has format {told.get('format')} and hash "
            f"{told.get('hash')}; this headgate reads formats {READABLE} and hashes {HASHES}. "
            "Use the version that wrote it, or start with a new checkpoint folder",
            found=told.get("format"),
            supported=FORMAT,
        )


def _check_facts(told: dict[str, Any]) -> None:
    """One without a digest may hold anything; what is used of it must be there."""
    try:
        described = told["describe"]
        lists = (described["sources"], told.get("dropped", []), told.get("spark_sources", []))
        whole = isinstance(told["buckets"], int) and isinstance(described["flow"], str)
        whole = whole and all(isinstance(names, list) for names in lists)
        for operator in described["operators"].values():
            whole = whole and {"key", "state", "settings", "ttl_ms"} <= operator.keys()
        Identity.from_json(told)
    except (KeyError, TypeError, AttributeError, ValueError):
        whole = False
    if not whole:
        raise DamagedFile("it does not hold what it should")
