"""Hosts on one Linux machine: a network namespace, an address, a folder and, if asked for, a quota.

The hosts are joined by a bridge in one more namespace, so the root namespace is never touched.
Hosts of a rack have a bridge of their own there, and a trunk leads from it to the others. Links and
trunks can be throttled both ways. Nothing here knows of Spark; `namespace_cluster` does.

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
        racks: Rack of some hosts; the others are on the bridge that trunks lead to.
        trunk_mbit: Rate of the trunk of every rack, each way; None leaves them unthrottled.
    """

    def __init__(
        self,
        addresses: Mapping[str, str],
        *,
        link_mbit: Mapping[str, int] | None = None,
        cpus: Mapping[str, float] | None = None,
        racks: Mapping[str, str] | None = None,
        trunk_mbit: int | None = None,
    ) -> None:
        self.addresses = dict(addresses)
        self._racks, self._trunk_mbit = dict(racks or {}), trunk_mbit
        self._number = {rack: i for i, rack in enumerate(sorted(set(self._racks.values())))}
        self._link_mbit, self._cpus = dict(link_mbit or {}), dict(cpus or {})
        self._names = Names.fresh()
        self._quotas: dict[str, Path] = {}

    def build(self) -> None:
        """Make all of it; on an error, `close` removes what there is."""
        if self._cpus and (reason := quotas_available()) is not None:
            raise ClusterError(f"hosts cannot have a quota here: {reason}")
        bridge = self._names.namespace(BRIDGE)
        call(["ip", "netns", "add", bridge])
        self._make_bridge(bridge, "br0")
        for rack in self._number.values():
            self._make_bridge(bridge, f"rack{rack}")
            self._join_bridges(bridge, rack)
        for host, address in self.addresses.items():
            self.folder(host).mkdir(parents=True)
            self._join(bridge, self._port(host), host, address)
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

    def bytes_from_rack(self, rack: str) -> int:
        """Bytes that a rack has sent over its trunk since it began."""
        bridge, trunk = self._names.namespace(BRIDGE), f"up{self._number[rack]}"
        found = json.loads(call(["ip", "-j", "-s", "-n", bridge, "link", "show", trunk]))
        return int(found[0]["stats64"]["tx"]["bytes"])

    def move_to_racks(self, racks: Mapping[str, str]) -> None:
        """Plug hosts into other racks while they run; their connections stay."""
        there = self._names.namespace(BRIDGE)
        self._racks |= racks
        for host in racks:
            to = self._bridge_of(host)
            call(["ip", "-n", there, "link", "set", self._port(host), "master", to])
        for bridge in ("br0", *(f"rack{rack}" for rack in self._number.values())):
            # They would send to where a host was until it speaks again.
            call(["ip", "-n", there, "link", "set", bridge, "type", "bridge", "fdb_flush"])

    # --- parts --------------------------------------------------------------------------------
    def _port(self, host: str) -> str:
        return f"port{list(self.addresses).index(host)}"

    def _bridge_of(self, host: str) -> str:
        rack = self._racks.get(host)
        return "br0" if rack is None else f"rack{self._number[rack]}"

    def _make_bridge(self, there: str, name: str) -> None:
        call(["ip", "-n", there, "link", "add", name, "type", "bridge"])
        call(["ip", "-n", there, "link", "set", name, "up"])

    def _join_bridges(self, there: str, rack: int) -> None:
        """The trunk of a rack: `up` sends what leaves it, `down` what comes to it."""
        pair = ["type", "veth", "peer", "name", f"down{rack}"]
        call(["ip", "-n", there, "link", "add", f"up{rack}", *pair])
        for end, bridge in ((f"up{rack}", f"rack{rack}"), (f"down{rack}", "br0")):
            call(["ip", "-n", there, "link", "set", end, "master", bridge, "up"])
            if self._trunk_mbit is not None:
                call(throttle_command(there, end, self._trunk_mbit))

    def _join(self, bridge: str, port: str, host: str, address: str) -> None:
        there = self._names.namespace(host)
        call(["ip", "netns", "add", there])
        pair = ["type", "veth", "peer", "name", "eth0", "netns", there]
        call(["ip", "-n", bridge, "link", "add", port, *pair])
        call(["ip", "-n", bridge, "link", "set", port, "master", self._bridge_of(host), "up"])
        call(["ip", "-n", there, "addr", "add", f"{address}/24", "dev", "eth0"])
        call(["ip", "-n", there, "link", "set", "lo", "up"])
        call(["ip", "-n", there, "link", "set", "eth0", "up"])
        if (rate := self._link_mbit.get(host)) is not None:
            call(throttle_command(there, "eth0", rate))  # what it sends
            call(throttle_command(bridge, port, rate))  # what it gets
