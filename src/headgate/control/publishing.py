"""Show the committed files of a Parquet or table sink to its readers, by renaming.

Tasks write into a hidden staging folder of the destination; the manifest names the files, and says
where they are staged if that is outside of the checkpoint: a sink whose path has changed since
still gets that epoch at the old one. Published names carry flow, sink and epoch. Publishing again
changes nothing, wherever the last driver died.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from headgate.control.faults import reach
from headgate.errors import StateFileError
from headgate.state.storage import Storage

STAGING = "_headgate"
STAGING_GRACE_EPOCHS = 8
AT = "at"


def staging_uri(published_uri: str, flow: str, sink: str) -> str:
    """Where tasks put files; flows that share a destination do not share this."""
    return f"{published_uri}/{STAGING}/{flow}/{sink}"


def staged_at(uri: str, files: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The files with the place where they are staged, for the manifest."""
    return [{**file, AT: uri} for file in files]


def publish(flow: str, sink: str, epoch: int, files: Sequence[Mapping[str, Any]], uri: str) -> None:
    """Rename an epoch's files from where they are staged (`uri`, if they do not say)."""
    for staged in sorted({str(file.get(AT, uri)) for file in files}):
        root = staged.removesuffix(f"/{STAGING}/{flow}/{sink}")
        mine = [str(file["name"]) for file in files if file.get(AT, uri) == staged]
        _rename(Storage.at(root), staged[len(root) + 1 :], flow, sink, epoch, mine)
    storage = Storage.at(uri)
    for name in storage.list():
        match = re.match(r"e(\d{9})-", name)
        if match and int(match[1]) < epoch - STAGING_GRACE_EPOCHS:
            storage.delete(name)


def _rename(
    place: Storage, staging: str, flow: str, sink: str, epoch: int, names: Sequence[str]
) -> None:
    for name in names:
        final = f"part-{flow}-{sink}-{name}"
        if place.exists(f"{staging}/{name}"):
            place.rename(f"{staging}/{name}", final)
            reach("file-published", epoch)
        elif not place.exists(final):
            raise StateFileError(
                f"sink {sink!r} committed {name} in epoch {epoch}, but it is neither staged nor "
                f"published under {place.uri}: somebody deleted it",
                operator=sink,
                epoch=epoch,
                file=name,
            )
    place.flush(f"part-{flow}-{sink}-{name}" for name in names)  # before it is marked as done
