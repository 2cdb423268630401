"""A share of the processor for every emulated host, so that one cannot take what is another's.

Hosts in network namespaces share the machine's cores: a JVM that starts on one of them slows all
others down, as it would not on machines of their own. A quota per host (cgroup v1, controller
`cpu`) ends that. It makes every host slower than a core, all alike, and quieter.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from pathlib import Path

PERIOD_US = 20_000  # short, so that a host which has used its share waits milliseconds, not 0.1 s
_MOUNTS = Path("/proc/self/mounts")
_REMOVED_WITHIN_S = 5.0


@functools.cache
def quotas_available() -> str | None:
    """Say why hosts cannot have a quota here, or None if they can; asks the kernel once."""
    if os.geteuid() != 0:
        return "cgroups need root"
    root = _controller()
    if root is None:
        return "the cgroup v1 controller 'cpu' is not mounted"
    probe = root / f"headgate-probe-{os.getpid()}"
    try:
        probe.mkdir()
        (probe / "cpu.cfs_quota_us").write_text(str(PERIOD_US))
    except OSError as problem:
        return f"cgroups cannot be made in {root}: {problem.strerror}"
    finally:
        with contextlib.suppress(OSError):
            probe.rmdir()
    return None


def make_quota(name: str, cpus: float) -> Path:
    """A group that has so many cores' worth of time; returns the file that takes pids."""
    root = _controller()
    assert root is not None, "ask quotas_available first"
    group = root / name
    group.mkdir()
    (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
    (group / "cpu.cfs_quota_us").write_text(str(round(cpus * PERIOD_US)))
    return group / "cgroup.procs"


def joining(procs: Path, command: list[str]) -> list[str]:
    """The command, started as a member of the group; the pid is the command's."""
    return ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(procs), *command]


def remove_quota(name: str) -> None:
    """Remove a group without processes; not an error if there is none."""
    root = _controller()
    if root is None:
        return
    until = time.monotonic() + _REMOVED_WITHIN_S
    while (root / name).exists() and time.monotonic() < until:
        with contextlib.suppress(OSError):  # busy until the last process is gone for good
            (root / name).rmdir()
            return
        time.sleep(0.02)


def quota_names() -> list[str]:
    """The names of all groups at the top."""
    root = _controller()
    return [] if root is None else [entry.name for entry in root.iterdir() if entry.is_dir()]


@functools.cache
def _controller() -> Path | None:
    with contextlib.suppress(OSError):
        for line in _MOUNTS.read_text().splitlines():
            _device, place, kind, options, *_ = line.split()
            if kind == "cgroup" and "cpu" in options.split(","):
                return Path(place)
    return None
