"""Objects of S3, Google Cloud Storage or Azure, through the `obstore` client.

An object appears when its upload ends, so nothing needs a temporary name. `create` is a conditional
request (`If-None-Match: *`, or the store's own form of it): the store itself picks the winner. Each
attempt carries a token of its own. If the store did it but the answer was lost, the client's
retry finds the object there already, and the token tells whose it is.

Where place and credentials come from: docs/guide/operations.md, "Object stores".
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote

import obstore
import pyarrow as pa
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    PermissionDeniedError,
    UnauthenticatedError,
)
from obstore.store import AzureStore, GCSStore, S3Store
from pyarrow import fs

from headgate.errors import UnsafeName

CREATE_TRIES = 8  # each fails only if somebody deletes the object just then
WHOLE_BYTES_MAX = 4 << 20  # a smaller object is read at once: a range costs a request each
_WRITER = "writer"
_STORES: dict[str, Any] = {"s3": S3Store, "gs": GCSStore, "abfs": AzureStore, "abfss": AzureStore}


class ObjectFiles:
    """The objects under a prefix of a bucket or container."""

    def __init__(self, uri: str) -> None:
        scheme, _, place = uri.partition("://")
        self._uri = uri
        with self._as_os_errors(""):
            self._store = _STORES[scheme].from_url(
                f"{scheme}://{quote(place, safe='/@')}",  # it decodes what we never encoded
                client_options={"timeout": "120s", "allow_http": True},
                **(_s3_options(place.partition("/")[0]) if scheme == "s3" else {}),
            )

    def read(self, name: str) -> bytes:
        with self._as_os_errors(name):
            return bytes(obstore.get(self._store, name).bytes())

    def write(self, name: str, pieces: Sequence[Any], durable: bool) -> None:
        with self._as_os_errors(name):
            obstore.put(self._store, name, _body(pieces))

    def create(self, name: str, data: Any) -> bool:
        token, body = os.urandom(16).hex(), memoryview(data).cast("B") if len(data) else b""
        with self._as_os_errors(name):
            for _ in range(CREATE_TRIES):
                try:
                    obstore.put(self._store, name, body, mode="create", attributes={_WRITER: token})
                    return True
                except AlreadyExistsError:
                    writer = self._writer_of(name)
                except BaseError:  # it may have been done all the same
                    writer = self._writer_of(name)
                    if writer is None:
                        raise
                if writer is not None:
                    return writer == token
        raise OSError(f"{self._uri}/{name}: {CREATE_TRIES} times there, and gone when looked at")

    def _writer_of(self, name: str) -> str | None:
        """Whose object it is; '' if it has no token, None if there is no object."""
        try:
            return str(obstore.get(self._store, name).attributes.get(_WRITER, ""))
        except FileNotFoundError:
            return None

    def rename(self, name: str, new: str) -> None:
        with self._as_os_errors(name):
            obstore.rename(self._store, name, new)

    def exists(self, name: str) -> bool:
        try:
            self.size(name)
        except FileNotFoundError:
            return False
        return True

    def delete(self, names: Sequence[str]) -> None:
        with self._as_os_errors(", ".join(names)):
            try:
                obstore.delete(self._store, list(names))
            except FileNotFoundError:  # some stores mind; which of the names it was is not told
                for name in names:
                    with suppress(FileNotFoundError):
                        obstore.delete(self._store, name)

    def list(self, folder: str) -> Iterable[str]:
        with self._as_os_errors(folder):
            return [
                str(entry["path"])
                for entries in obstore.list(self._store, folder or None, chunk_size=1000)
                for entry in entries
            ]

    def size(self, name: str) -> int:
        with self._as_os_errors(name):
            return int(obstore.head(self._store, name)["size"])

    def modified_s(self, name: str) -> float:
        with self._as_os_errors(name):
            return obstore.head(self._store, name)["last_modified"].timestamp()

    def open_input(self, name: str) -> pa.NativeFile:
        with self._as_os_errors(name):
            found = obstore.get(self._store, name)
            if found.meta["size"] <= WHOLE_BYTES_MAX:
                return pa.BufferReader(bytes(found.bytes()))
            return pa.PythonFile(_Ranges(self, name, found.meta["size"]), "r")

    def read_range(self, name: str, start: int, end: int) -> Any:
        with self._as_os_errors(name):
            return obstore.get_range(self._store, name, start=start, end=end)

    def paths_to_flush(self, names: Iterable[str]) -> set[str]:
        return set()

    @contextmanager
    def _as_os_errors(self, name: str) -> Iterator[None]:
        """As the errors of any other file system, with the store's reason and without its trace."""
        try:
            yield
        except ValueError as error:  # control characters, which the client has no spelling for
            raise UnsafeName(f"{self._uri}: {error}", uri=self._uri, name=name) from error
        except BaseError as error:
            denied = isinstance(error, PermissionDeniedError | UnauthenticatedError)
            reason = str(error).partition("\n\nDebug source")[0]
            raise (PermissionError if denied else OSError)(
                f"{self._uri}/{name}: {reason}"
            ) from error


class _Ranges(io.RawIOBase):
    """Random access to a large object: each read is one request."""

    def __init__(self, files: ObjectFiles, name: str, size: int) -> None:
        self._files, self._name, self._size, self._at = files, name, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def readinto(self, into: Any) -> int:
        start, end = self._at, min(self._at + len(into), self._size)
        if end > start:
            into[: end - start] = self._files.read_range(self._name, start, end)
            self._at = end
        return max(0, end - start)


def _body(pieces: Sequence[Any]) -> Any:
    """One request for what is small; a large file goes in parts and is not copied together."""
    views = [memoryview(piece).cast("B") for piece in pieces if len(piece)]
    if sum(map(len, views)) <= WHOLE_BYTES_MAX:
        return b"".join(views)
    return views[0] if len(views) == 1 else views


def _s3_options(bucket: str) -> dict[str, Any]:
    """What the client does not find by itself: profiles, and the region of a bucket on AWS."""
    options: dict[str, Any] = {}
    told = os.environ.keys()
    if "AWS_ACCESS_KEY_ID" not in told and _has_profile():
        from obstore.auth.boto3 import Boto3CredentialProvider

        options["credential_provider"] = Boto3CredentialProvider()
    if not told & {"AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"}:
        with suppress(OSError):
            options["region"] = fs.resolve_s3_region(bucket)
    return options


def _has_profile() -> bool:
    """Is there a profile to read, and boto3 to read it with?"""
    named = "AWS_PROFILE" in os.environ
    files = ("AWS_SHARED_CREDENTIALS_FILE", "credentials"), ("AWS_CONFIG_FILE", "config")
    paths = [os.environ.get(name) or Path.home() / ".aws" / file for name, file in files]
    if not named and not any(os.path.exists(path) for path in paths):
        return False
    if find_spec("boto3") is None and named:
        raise OSError(
            f"AWS_PROFILE is {os.environ['AWS_PROFILE']!r}: to read a profile, install boto3 on "
            "driver and executors, or give AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    return find_spec("boto3") is not None
