"""Warm copies of runs that were killed, removed by the next run on the same host.

Spark deletes its local folders when a JVM ends, but one that is killed leaves them, and our warm
copies in them. So the folder of a JVM says whose it is, and who comes later removes the warm copies
of a JVM that is gone. What cannot be told stays: other users' folders, processes of another
container, a file that is not whole.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path

OWNER = "headgate.owner"


def claim(local_dir: str) -> None:
    """Say whose this local folder of Spark's is, and remove what dead JVMs left beside it.

    Every Python worker calls it, once; it reads one small file for each JVM that uses the disk.
    """
    mine = Path(local_dir)
    with suppress(OSError):  # a file that is there already, a disk that is full: slower, not wrong
        told = json.dumps(_identity(_jvm()))
        with open(mine / OWNER, "x") as file:
            file.write(told)
    for folder in mine.parent.glob("blockmgr-*"):
        with suppress(OSError, ValueError, KeyError, TypeError):
            if _is_own(folder) and _is_dead(json.loads((folder / OWNER).read_text())):
                for warm in folder.glob("headgate-*"):
                    shutil.rmtree(warm)
                (folder / OWNER).unlink()


def born(pid: int) -> str | None:
    """Start time of a process in clock ticks since boot: tells a pid from its reuse."""
    try:
        told = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return told.rpartition(")")[2].split()[19]  # field 22; the name in field 2 may hold spaces


def _jvm() -> int:
    """The process above this worker that is no Python: Spark may fork workers from a daemon."""
    pid, python = os.getpid(), os.readlink("/proc/self/exe")
    while os.readlink(f"/proc/{pid}/exe") == python:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid


def _identity(pid: int) -> dict[str, str | int | None]:
    return {"boot": _boot(), "namespace": _namespace(), "pid": pid, "born": born(pid)}


def _is_dead(owner: dict[str, str | int]) -> bool:
    if owner["boot"] != _boot():
        return True
    return owner["namespace"] == _namespace() and born(int(owner["pid"])) != owner["born"]


def _is_own(folder: Path) -> bool:
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text()


def _namespace() -> str:
    return os.readlink("/proc/self/ns/pid")
