"""The machine that figures were measured on: they mean little without it."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from importlib import metadata


@dataclass(frozen=True)
class Machine:
    """What the numbers were measured on."""

    cores: int
    system: str
    python: str
    spark: str
    pyarrow: str
    numpy: str

    @classmethod
    def here(cls) -> Machine:
        return cls(
            cores=len(os.sched_getaffinity(0)),
            system=platform.platform(),
            python=platform.python_version(),
            spark=_version("pyspark"),
            pyarrow=_version("pyarrow"),
            numpy=_version("numpy"),
        )


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "absent"
