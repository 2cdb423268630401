"""Hosts on one Linux machine: a network namespace, an address, a folder and, if asked for, a quota.

The hosts are joined by a bridge in one more namespace, so the root namespace is never touched.
Links can be throttled both ways. Nothing here knows of Spark; `namespace_cluster` does.

Invariant: after `close`, however it came to it, no process, namespace, cgroup or folder of these
hosts is left. What a killed run leaves behind is removed by the next one: see `namespaces`.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from headgate_lab.cluster.host_cpu import joining, make_quota, quotas_available, remove_quota
from headgate_lab.cluster.namespaces import (
    ClusterError,
    Names,
    call,
    delete_namespace,
    kill,
    kill_all_in,
    pids_in,
    throttle_command,
)

BRIDGE = "bridge"


class EmulatedHosts:
    """Hosts by name, each with an address in one subnet.

    Args:
        addresses: Name of each host -> its address.
        link_mbit: Rate of the link of some hosts, each way; others are unthrottled.
        cpus: Cores' worth of time for some hosts; others share what the machine has.
    """

    def __init__(
        self,
        addresses: Mapping[str, str],
        *,
        link_mbit: Mapping[str, int] | None = None,
        cpus: Mapping[str, float] | None = None,
    ) -> None:
        self.addresses = dict(addresses)
        self._link_mbit, self._cpus = dict(link_mbit or {}), dict(cpus or {})
        self._names = Names.fresh()
        self._quotas: dict[str, Path] = {}

    def build(self) -> None:
        """Make all of it; on an error, `close` removes what there is."""
        if self._cpus and (reason := quotas_available()) is not None:
            raise ClusterError(f"hosts cannot have a quota here: {reason}")
        bridge = self._names.namespace(BRIDGE)
        call(["ip", "netns", "add", bridge])
        call(["ip", "-n", bridge, "link", "add", "br0", "type", "bridge"])
        call(["ip", "-n", bridge, "link", "set", "br0", "up"])
        for port, (host, address) in enumerate(self.addresses.items()):
            self.folder(host).mkdir(parents=True)
            self._join(bridge, f"port{port}", host, address)
        for host, cpus in self._cpus.items():
            self._quotas[host] = make_quota(self._names.namespace(host), cpus)

    def close(self, started: Sequence[subprocess.Popen[bytes] | subprocess.Popen[str]]) -> None:
        """End every process on the hosts, reap those we started, remove all; idempotent."""
        namespaces = [self._names.namespace(host) for host in (*self.addresses, BRIDGE)]
        kill_all_in(namespaces)
        for process in started:
            process.wait()
        for namespace in namespaces:
            delete_namespace(namespace)
        for host in self._quotas:
            remove_quota(self._names.namespace(host))
        shutil.rmtree(self._names.directory, ignore_errors=True)

    # --- use ----------------------------------------------------------------------------------
    def namespace(self, host: str) -> str:
        if host not in self.addresses:
            raise ClusterError(f"no host {host!r} here; there are {', '.join(self.addresses)}")
        return self._names.namespace(host)

    def folder(self, host: str) -> Path:
        """The directory that stands for the host's disk."""
        return self._names.directory / host

    def inside(self, host: str, command: list[str]) -> list[str]:
        """The command that runs this one on a host; all of it ends in `exec`, so the pid stays."""
        there = ["ip", "netns", "exec", self.namespace(host), *command]
        return joining(self._quotas[host], there) if host in self._quotas else there

    def pids(self, host: str) -> list[int]:
        return pids_in(self.namespace(host))

    def kill(self, pids: Sequence[int]) -> list[int]:
        for pid in pids:
            kill(pid)
        return list(pids)

    def bytes_sent(self, host: str) -> int:
        """Bytes that a host has sent over its link since it began."""
        command = ["ip", "-j", "-s", "-n", self.namespace(host), "link", "show", "eth0"]
        return int(json.loads(call(command))[0]["stats64"]["tx"]["bytes"])

    # --- parts --------------------------------------------------------------------------------
    def _join(self, bridge: str, port: str, host: str, address: str) -> None:
        there = self._names.namespace(host)
        call(["ip", "netns", "add", there])
        pair = ["type", "veth", "peer", "name", "eth0", "netns", there]
        call(["ip", "-n", bridge, "link", "add", port, *pair])
        call(["ip", "-n", bridge, "link", "set", port, "master", "br0", "up"])
        call(["ip", "-n", there, "addr", "add", f"{address}/24", "dev", "eth0"])
        call(["ip", "-n", there, "link", "set", "lo", "up"])
        call(["ip", "-n", there, "link", "set", "eth0", "up"])
        if (rate := self._link_mbit.get(host)) is not None:
            call(throttle_command(there, "eth0", rate))  # what it sends
            call(throttle_command(bridge, port, rate))  # what it gets
