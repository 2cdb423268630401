"""Make files and folders durable, several at once.

A file survives a crash of the machine when its bytes and its name have reached the disk: the name
is part of its folder. Flushes that wait together share the disk's work, so they run in threads.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

THREADS_MAX = 8


def flush_all(paths: Collection[str]) -> None:
    """Flush files or folders; one that is not there (any more) is passed over."""
    if len(paths) > 1:
        with ThreadPoolExecutor(min(THREADS_MAX, len(paths))) as threads:
            list(threads.map(_flush, sorted(paths)))
    for path in paths if len(paths) == 1 else ():
        _flush(path)


def folders_above(path: str, root: str) -> list[str]:
    """The folders in which the names on the way to a path stand, innermost first, to `root`'s."""
    last, folder = os.path.dirname(root.rstrip("/")) or "/", os.path.dirname(path)
    found = [folder]
    while folder != last and len(folder) > len(last):
        folder = os.path.dirname(folder)
        found.append(folder)
    return found


def _flush(path: str) -> None:
    with suppress(FileNotFoundError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
