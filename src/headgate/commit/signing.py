"""A checkpoint with a key: whoever does not have the key can change nothing in it unnoticed.

The key signs `headgate.json`, every manifest and every mark (HMAC-SHA256 over the checkpoint's id,
the file's name and its content). Manifests name all other files by digest, which then are SHA-256,
so state, the pickles in it, routing tables and sink rows are covered too. Only the driver has the
key: tasks check the digests that the plan gives them.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Callable
from dataclasses import dataclass, field

from headgate.errors import DeclarationError, UntrustedCheckpoint

VARIABLE = "HEADGATE_KEY"
KEY_BYTES_MIN = 16


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
