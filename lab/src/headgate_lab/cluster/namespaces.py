"""Network namespaces and the processes in them: made, throttled, killed and swept up.

Every name carries its creator's pid and start time, so what a dead run left can be told from what a
living one uses, and is removed by the next.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from headgate.runtime.worker import born
from headgate_lab.cluster.host_cpu import quota_names, remove_quota

PREFIX = "headgate"
ENDED_WITHIN_S = 120.0
POLL_SECONDS = 0.1
_serials = itertools.count(1)


class ClusterError(RuntimeError):
    """The cluster could not be built, did not come up, or was asked for what it has not."""


@functools.cache
def available() -> str | None:
    """Say why no cluster can be built here, or None if one can; asks the kernel once."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            return f"the command {tool!r} is missing (Debian package iproute2)"
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        return "no Java was found (neither on the PATH nor in JAVA_HOME)"
    if importlib.util.find_spec("pyspark") is None:
        return "pyspark is not installed"
    return _probe_kernel()


def _probe_kernel() -> str | None:
    probe = Names.fresh().namespace("probe")
    steps = (
        ["ip", "netns", "add", probe],
        ["ip", "-n", probe, "link", "add", "br0", "type", "bridge"],
        ["ip", "-n", probe, "link", "add", "v0", "type", "veth", "peer", "name", "v1"],
        throttle_command(probe, "v0", 100),
    )
    try:
        for step in steps:
            done = subprocess.run(step, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                return f"the kernel refuses `{' '.join(step)}`: {done.stderr.strip()}"
        return None
    finally:
        delete_namespace(probe)


@dataclass(frozen=True, slots=True)
class Names:
    """Names of one cluster: its creator's pid and start time, and a serial number."""

    stem: str

    @classmethod
    def fresh(cls, prefix: str = PREFIX) -> Names:
        return cls(f"{prefix}-{os.getpid()}-{born(os.getpid())}-{next(_serials)}")

    def namespace(self, role: str) -> str:
        return f"{self.stem}-{role}"

    @property
    def directory(self) -> Path:
        return Path(tempfile.gettempdir()) / self.stem


def remove_leftovers(prefix: str = PREFIX) -> list[str]:
    """Remove what dead creators left: processes, namespaces, files; returns the namespaces.

    Several runs may do so at once: what is gone already is no error.
    """
    listed = json.loads(call(["ip", "-j", "netns", "list"]) or "[]")
    dead = [entry["name"] for entry in listed if _is_leftover(entry["name"], prefix)]
    kill_all_in(dead)
    for namespace in dead:
        delete_namespace(namespace)
    for group in quota_names():
        if _is_leftover(group, prefix):
            remove_quota(group)
    for directory in Path(tempfile.gettempdir()).glob(f"{prefix}-*"):
        if _is_leftover(directory.name, prefix):
            shutil.rmtree(directory, ignore_errors=True)
    return dead


def _is_leftover(name: str, prefix: str) -> bool:
    match = re.match(rf"{re.escape(prefix)}-(?P<pid>\d+)-(?P<born>\d+)-\d+(-|$)", name)
    return match is not None and born(int(match["pid"])) != match["born"]


def throttle_command(namespace: str, device: str, rate_mbit: int) -> list[str]:
    # The bucket holds 10 ms of traffic and at least four of the 64 kB packets that veth passes.
    burst_bytes = max(256 * 1024, rate_mbit * 1_000_000 // 8 // 100)
    return [
        "tc",
        "-n",
        namespace,
        "qdisc",
        "add",
        "dev",
        device,
        "root",
        "tbf",
        "rate",
        f"{rate_mbit}mbit",
        "burst",
        str(burst_bytes),
        "latency",
        "50ms",
    ]


def call(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ClusterError(f"`{' '.join(command)}` failed: {done.stderr.strip()}")
    return done.stdout


def pids_in(namespace: str) -> list[int]:
    done = subprocess.run(
        ["ip", "netns", "pids", namespace], capture_output=True, text=True, check=False
    )
    return [int(pid) for pid in done.stdout.split()] if done.returncode == 0 else []


def cmdline(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it may have ended by itself
        os.kill(pid, signal.SIGKILL)


def kill_all_in(namespaces: list[str], timeout: float = ENDED_WITHIN_S) -> None:
    """Kill until the namespaces are empty: a Worker may start an executor while it dies."""
    deadline = time.monotonic() + timeout
    while pids := [pid for namespace in namespaces for pid in pids_in(namespace)]:
        for pid in pids:
            kill(pid)
        if time.monotonic() > deadline:
            raise ClusterError(f"processes {pids} do not end")
        time.sleep(POLL_SECONDS)


def delete_namespace(namespace: str) -> None:
    """Delete it and, with it, its links; not an error if it is gone."""
    subprocess.run(["ip", "netns", "del", namespace], capture_output=True, check=False)
