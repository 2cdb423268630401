"""Loads the compiled loops of a room, if they were built; NumPy does the same without, slower.

A room's `kernels.c` is compiled when the package is installed, by whatever C compiler is there, and
called through `ctypes`, which lets other threads run meanwhile. Without a compiler the installation
goes on, and one line in the log says so. Both ways give the same numbers, so a checkpoint, and the
tasks of one epoch, may have been served by either.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

log = logging.getLogger("headgate")

POINTER, COUNT = ctypes.c_void_p, ctypes.c_int64
Signatures = Mapping[str, tuple[list[Any], Any]]


class Kernels:
    """The functions of a library, without the `hg_` of their names; arrays are contiguous."""

    def __init__(self, library: ctypes.CDLL, signatures: Signatures) -> None:
        for name, (arguments, result) in signatures.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, result
            setattr(self, name.removeprefix("hg_"), function)

    def __getattr__(self, name: str) -> Any:  # for type checkers: those it has are attributes
        raise AttributeError(name)


def load(folder: Path, signatures: Signatures, work: str) -> Kernels | None:
    """The library in a room's folder; None, and a line in the log, if it cannot be used.

    `work` is what NumPy does in its place.
    """
    for built in sorted(folder.glob("_kernels*.so")):
        try:
            return Kernels(ctypes.CDLL(str(built)), signatures)
        except (OSError, AttributeError) as problem:  # of another machine, or version
            log.info("%s cannot be used (%s): %s in NumPy, slower", built, problem, work)
            return None
    log.info(
        "headgate was installed without its compiled loops (no C compiler?): %s in NumPy, slower",
        work,
    )
    return None


def at(array: Any) -> int:
    """Where an array's data begins."""
    address: int = array.ctypes.data
    return address
