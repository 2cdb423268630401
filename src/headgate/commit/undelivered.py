"""Sink files between commit and delivery: every byte is checked before anybody gets it.

A file is where it was staged, or, if a driver died while it published, where it was published to.
Its digest is in its name, and the manifest vouches for the name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headgate.commit.publishing import places_of
from headgate.errors import StateFileError
from headgate.state.digest import DamagedFile, check_named

Files = Sequence[Mapping[str, Any]]


def damaged_files(flow: str, sink: str, files: Files, uri: str) -> dict[str, str]:
    """What is wrong with the files that are not as they were committed, by name."""
    found = {}
    for file in files:
        reason = "it is missing"
        for storage, name in places_of(flow, sink, file, uri):
            if storage.exists(name):
                try:
                    check_named(storage, name)
                    reason = ""
                except DamagedFile as problem:
                    reason = str(problem)
                break
        if reason:
            found[str(file["name"])] = reason
    return found


def refuse(sink: str, epoch: int, damaged: Mapping[str, str], uri: str) -> StateFileError:
    """Nothing of the epoch may reach the sink."""
    name, reason = next(iter(damaged.items()))
    more = f" (and {len(damaged) - 1} more)" if len(damaged) > 1 else ""
    return StateFileError(
        f"file {name}{more} with rows of epoch {epoch} for sink {sink!r}, committed and not yet "
        f"delivered, cannot be used: {reason}. None of the epoch's rows were given to the sink. "
        f"Bring the file back from a copy of {uri}, or start with drop_state=[{sink!r}] if the "
        "rows of damaged files may be lost",
        operator=sink,
        sink=sink,
        epoch=epoch,
        file=name,
        files=sorted(damaged),
    )
