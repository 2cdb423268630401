"""Show the committed files of a Parquet or table sink to its readers, by renaming.

Tasks write into a hidden staging folder of the destination; the manifest names the files, and says
where they are staged if that is outside of the checkpoint: a sink whose path has changed since
still gets that epoch at the old one. Published names carry flow, sink and epoch, so that many may
share a folder. Publishing again changes nothing, wherever the last driver died.

A '-' inside a name is doubled: flow `a-b` with sink `c` is not flow `a` with sink `b-c`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from headgate.commit import faults
from headgate.errors import StateFileError, UnsafeName
from headgate.state.storage import Storage

STAGING = "_headgate"
STAGING_GRACE_EPOCHS = 8  # for tasks of old attempts that still write
_FILE = re.compile(r"e\d{9}-[^/]*\.parquet")
AT = "at"  # a file's entry in the manifest: where it is staged


def staging_uri(published_uri: str, flow: str, sink: str) -> str:
    """Where tasks put files; flows that share a destination do not share this."""
    return f"{published_uri}/{STAGING}/{flow}/{sink}"


def published_prefix(flow: str, sink: str) -> str:
    """How names of a sink's published files begin.

    Examples:
        >>> published_prefix("a-b", "c")
        'part-a--b-c-'
    """
    return "part-{}-{}-".format(flow.replace("-", "--"), sink.replace("-", "--"))


def published_glob(flow: str, sink: str) -> str:
    """Names of all files that a sink has published, as Hadoop globs."""
    return f"{published_prefix(flow, sink)}e{'[0-9]' * 9}-*.parquet"


def places_of(flow: str, sink: str, file: Mapping[str, Any], uri: str) -> list[tuple[Storage, str]]:
    """Where a committed file can be: staged (at `uri`, if it does not say), or published.

    Sinks that publish nothing have their files inside of the checkpoint, and nowhere else.
    """
    staged = str(file.get(AT, uri))
    places = [(Storage.at(staged), str(file["name"]))]
    if staged != uri or _is_staging(staged, flow, sink):
        places.append((Storage.at(_root(staged, flow, sink)), _final_name(flow, sink, file)))
    return places


def publish(flow: str, sink: str, epoch: int, files: Sequence[Mapping[str, Any]], uri: str) -> None:
    """Rename an epoch's files from where they are staged (`uri`, if they do not say)."""
    for staged in sorted({str(file.get(AT, uri)) for file in files}):
        root = _root(staged, flow, sink)
        final = {
            str(file["name"]): _final_name(flow, sink, file)
            for file in files
            if file.get(AT, uri) == staged
        }
        _rename(Storage.at(root), staged[len(root) + 1 :], sink, epoch, final)
    storage = Storage.at(uri)
    for name in storage.list():
        match = re.match(r"e(\d{9})-", name)
        if match and int(match[1]) < epoch - STAGING_GRACE_EPOCHS:
            storage.delete(name)


def _rename(place: Storage, staging: str, sink: str, epoch: int, names: Mapping[str, str]) -> None:
    for name, final in names.items():
        if place.exists(f"{staging}/{name}"):
            place.rename(f"{staging}/{name}", final)
            faults.reach("file-published", epoch)
        elif not place.exists(final):
            raise StateFileError(
                f"sink {sink!r} committed {name} in epoch {epoch}, but it is neither staged nor "
                f"published under {place.uri}: somebody deleted it",
                operator=sink,
                epoch=epoch,
                file=name,
            )
    place.flush(names.values())  # before it is marked as done


def _root(staged: str, flow: str, sink: str) -> str:
    """The destination of files that are staged there: a staging folder of this sink, wherever."""
    if not _is_staging(staged, flow, sink):
        raise _forged(sink, staged)
    return staged.removesuffix(f"/{STAGING}/{flow}/{sink}")


def _is_staging(uri: str, flow: str, sink: str) -> bool:
    return uri.endswith(f"/{STAGING}/{flow}/{sink}")


def _final_name(flow: str, sink: str, file: Mapping[str, Any]) -> str:
    """The name a file gets: never one that could be of anything else than this sink."""
    name = str(file["name"])
    if _FILE.fullmatch(name) is None:
        raise _forged(sink, name)
    return published_prefix(flow, sink) + name


def _forged(sink: str, name: str) -> UnsafeName:
    return UnsafeName(
        f"a manifest has files of sink {sink!r} published as or from {name!r}, which is no place "
        "of this sink: the manifest was forged. Nothing was published; restore the checkpoint from "
        "a copy that you trust",
        sink=sink,
        name=name,
    )
