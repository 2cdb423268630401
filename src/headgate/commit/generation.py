"""Who may change a checkpoint: the driver that claimed it last.

A driver that starts claims the next generation, by creating a file that must not exist yet:

    generations/g000000007.json   who it is: host, process, when it started

It asks `hold` before everything that others can see: publishing, calling a sink, marking,
collecting, writing the journal. A driver that was paused for a while, and was overtaken, learns it
there and stops; the checkpoint and the sinks are the other one's.

Committing needs more than a question asked before, as a driver may be paused between the two. So
both sides write first and look second. A driver creates its manifest, under a name that holds its
generation, and then asks `hold`. A newcomer claims its generation, and then lists the manifests.
One of the two must see the other: either the newcomer goes on from that manifest, or the old
driver stops before anybody has seen its rows. If both happen, the newcomer's manifest of the epoch,
if it makes one, counts: it has the higher generation.
"""

from __future__ import annotations

import getpass
import json
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from headgate.errors import CheckpointError, Overtaken
from headgate.state.storage import Storage

KEPT = 16  # older claims say nothing that a newer one does not
_NAME = re.compile(r"g(\d{9})\.json")


@dataclass(frozen=True)
class Generation:
    """A driver's claim on a checkpoint. Numbers only grow; the highest one holds."""

    storage: Storage
    number: int

    @classmethod
    def claim(cls, storage: Storage, now_ms: int) -> Generation:
        """Take over from whoever holds it; of two that claim at once each gets its own number."""
        told = json.dumps(_who_am_i(now_ms)).encode()
        while True:
            number = max(_numbers(storage), default=0) + 1
            made = storage.create(_name(number), told)
            taken = sorted(_numbers(storage))
            if made and taken[-1] == number:  # else another came in between, perhaps long ago
                break
        for old in taken[:-KEPT]:
            storage.delete(_name(old))
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
            f"another driver took over checkpoint {uri}: {_said_of(self.storage, newest)} holds "
            f"generation {newest}, this one had {self.number}. This driver stopped before {doing}; "
            "the other one goes on from what was committed, and nothing is lost or doubled. If "
            "two drivers were not meant, stop one of them",
            uri=uri,
            generation=self.number,
            newest=newest,
        )


def _name(number: int) -> str:
    return f"g{number:09d}.json"


def _numbers(storage: Storage) -> list[int]:
    found = (_NAME.fullmatch(name) for name in storage.list())
    return [int(match[1]) for match in found if match]


def _who_am_i(now_ms: int) -> Mapping[str, str | int]:
    return {
        "host": socket.gethostname(),
        "process": os.getpid(),
        "user": _user(),
        "started": datetime.fromtimestamp(now_ms / 1000, UTC).isoformat(timespec="seconds"),
    }


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return str(os.getuid())


def _said_of(storage: Storage, number: int) -> str:
    """A driver in words; a claim that cannot be read holds all the same."""
    try:
        told = json.loads(storage.read(_name(number)))
        return (
            f"process {told['process']} of {told['user']} on {told['host']}, started "
            f"{told['started']},"
        )
    except (OSError, ValueError, KeyError, TypeError):
        return "a driver whose claim cannot be read"
