"""Whose checkpoint a folder is: the flow named in `headgate.json`, the key, the driver of today.

With a key, whoever does not have it can change nothing unnoticed. It signs `headgate.json`, every
manifest and every mark (HMAC-SHA256 over the checkpoint's id, the file's name and its content).
Manifests name all other files by digest, which then are SHA-256, so state, the pickles in it,
routing tables and sink rows are covered too. Only the driver has the key: tasks check the digests
that the plan gives them.

A driver that starts claims the next generation, by creating a file that must not exist yet:

    generations/g000000007.json   who it is: host, process, when it started

It asks `hold` before everything that others can see: publishing, calling a sink, marking,
collecting, writing the journal. A driver that was paused for a while, and was overtaken, learns it
there and stops. Committing needs more than a question asked before, as a driver may be paused
between the two. So both sides write first and look second. A driver creates its manifest, under a
name that holds its generation, and then asks `hold`. A newcomer claims its generation, and then
lists the manifests. One of the two must see the other: either the newcomer goes on from that
manifest, or the old driver stops before anybody has seen its rows. If both happen, the newcomer's
manifest of the epoch, if it makes one, counts: it has the higher generation.
"""

from __future__ import annotations

import getpass
import hashlib
import hmac
import json
import os
import re
import socket
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from headgate.commit.manifest import check_format
from headgate.errors import (
    CheckpointError,
    DeclarationError,
    ForeignCheckpoint,
    Overtaken,
    UntrustedCheckpoint,
)
from headgate.routing.identity import KEY_HASH, Identity
from headgate.state.digest import DamagedFile, NotSigned, Sign, seal, unseal
from headgate.state.storage import Storage

VARIABLE = "HEADGATE_KEY"
KEY_BYTES_MIN = 16  # 128 bits cannot be guessed
IDENTITY = "headgate.json"
_OF_0_1 = b'{"buckets": '  # its entries were sorted by name, and it had no digest
CLAIMS_KEPT = 16  # older claims say nothing that a newer one does not
_NAME = re.compile(r"g(\d{9})\.json")


@dataclass(frozen=True)
class Signer:
    """`trust_unsigned`: take over what has no signature yet; what is written gets one."""

    key: bytes = field(repr=False)
    trust_unsigned: bool = False

    def of(self, checkpoint_id: str, name: str) -> Callable[[bytes], str]:
        """Signs the content of one file: neither another file nor another checkpoint may use it."""
        place = f"{checkpoint_id}/{name}\n".encode()
        return lambda body: hmac.new(self.key, place + body, hashlib.sha256).hexdigest()


def signer_of(given: str | bytes | None = None, *, trust_unsigned: bool = False) -> Signer | None:
    """From what the user gave, or the environment; None without a key."""
    key = os.environ.get(VARIABLE, "") if given is None else given
    key = key.encode() if isinstance(key, str) else key
    if not key and given is None:
        if trust_unsigned:
            raise DeclarationError(
                f"trust_unsigned=True is for checkpoints that get a key: give key=, or {VARIABLE}"
            )
        return None
    if len(key) < KEY_BYTES_MIN:
        raise DeclarationError(
            f"the key of a checkpoint has {len(key)} bytes; it must have at least {KEY_BYTES_MIN}. "
            "Make one with: openssl rand -hex 32"
        )
    return Signer(key, trust_unsigned)


def untrusted(uri: str, file: str, problem: Exception) -> UntrustedCheckpoint:
    return UntrustedCheckpoint(
        f"{file} in checkpoint {uri} cannot be trusted: {problem}. Give the key that it was made "
        f"with (key=, or {VARIABLE}); or, if it has none yet and nobody else could write to it, "
        "start once with trust_unsigned=True",
        uri=uri,
        file=file,
    )


def missing_key(uri: str) -> UntrustedCheckpoint:
    return UntrustedCheckpoint(
        f"checkpoint {uri} is signed, and this start has no key: what it writes could not be "
        f"trusted later. Give the key (key=, or {VARIABLE})",
        uri=uri,
    )


def read_identity(storage: Storage, signer: Signer | None = None) -> dict[str, Any] | None:
    """What it says; None in a new folder."""
    try:
        data = storage.read(IDENTITY)
    except FileNotFoundError:
        return None
    if data.startswith(_OF_0_1):
        check_format(f"checkpoint {storage.uri}", None)
    try:
        stored = unseal(data)
        check_format(f"checkpoint {storage.uri}", stored.get("format"))
        check_format(f"checkpoint {storage.uri}", stored.get("hash"), KEY_HASH)
        if signer is not None and not (signer.trust_unsigned and not stored.get("signed")):
            unseal(data, _signs_identity(signer))
        Identity.from_json(stored)
    except NotSigned as problem:
        raise untrusted(storage.uri, IDENTITY, problem) from problem
    except (DamagedFile, ValueError) as problem:
        raise ForeignCheckpoint(
            f"{IDENTITY} in {storage.uri} is damaged: {problem}. Bring it back from a copy, or "
            "start with a new checkpoint folder",
            uri=storage.uri,
            file=IDENTITY,
        ) from problem
    return stored


def create_identity(storage: Storage, signer: Signer | None, **facts: Any) -> bool:
    """Say for the first time whose folder it is; False if another start was first."""
    facts = {"id": uuid.uuid4().hex, "signed": signer is not None, **facts}
    return storage.create(IDENTITY, seal(facts, _signs_identity(signer)))


def update_identity(storage: Storage, signer: Signer | None = None, **facts: Any) -> None:
    """Add facts, or change them; written only if something changes."""
    stored = read_identity(storage, signer)
    assert stored is not None, f"{IDENTITY} is made by the first start"
    changed = {**stored, "signed": signer is not None, **facts}
    if stored != changed:
        storage.write(IDENTITY, seal(changed, _signs_identity(signer)), True)


def _signs_identity(signer: Signer | None) -> Sign | None:
    return None if signer is None else signer.of("", IDENTITY)


@dataclass(frozen=True)
class Generation:
    """A driver's claim on a checkpoint. Numbers only grow; the highest one holds."""

    storage: Storage
    number: int

    @classmethod
    def claim(cls, storage: Storage, now_ms: int) -> Generation:
        """Take over from whoever holds it; of two that claim at once each gets its own number."""
        claim = json.dumps(_who_am_i(now_ms)).encode()
        while True:
            number = max(_numbers(storage), default=0) + 1
            made = storage.create(_claim_name(number), claim)
            taken = sorted(_numbers(storage))
            if made and taken[-1] == number:  # else another came in between, perhaps long ago
                break
        for old in taken[:-CLAIMS_KEPT]:
            storage.delete(_claim_name(old))
        return cls(storage, number)

    def hold(self, doing: str) -> None:
        """Raise `Overtaken` if another driver has claimed the checkpoint since."""
        newest = max(_numbers(self.storage), default=0)
        if newest == self.number:
            return
        uri = self.storage.uri.rpartition("/")[0]
        if newest < self.number:
            raise CheckpointError(
                f"the claim of this driver on checkpoint {uri} (generation {self.number}) is gone: "
                "somebody deleted or replaced the folder while the flow was running. The flow "
                f"stopped before {doing}",
                uri=uri,
            )
        raise Overtaken(
            f"another driver took over checkpoint {uri}: {_holder(self.storage, newest)} holds "
            f"generation {newest}, this one had {self.number}. This driver stopped before {doing}; "
            "the other one goes on from what was committed, and nothing is lost or doubled. If "
            "two drivers were not meant, stop one of them",
            uri=uri,
            generation=self.number,
            newest=newest,
        )


def _claim_name(number: int) -> str:
    return f"g{number:09d}.json"


def _numbers(storage: Storage) -> list[int]:
    found = (_NAME.fullmatch(name) for name in storage.list())
    return [int(match[1]) for match in found if match]


def _who_am_i(now_ms: int) -> Mapping[str, str | int]:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = str(os.getuid())
    return {
        "host": socket.gethostname(),
        "process": os.getpid(),
        "user": user,
        "started": datetime.fromtimestamp(now_ms / 1000, UTC).isoformat(timespec="seconds"),
    }


def _holder(storage: Storage, number: int) -> str:
    """A driver in words; a claim that cannot be read holds all the same."""
    try:
        claim = json.loads(storage.read(_claim_name(number)))
        return "process {process} of {user} on {host}, started {started},".format(**claim)
    except (OSError, ValueError, KeyError, TypeError):
        return "a driver whose claim cannot be read"
