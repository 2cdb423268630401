"""Hosts on one machine: apart from each other while they live, and gone without a trace."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from headgate_lab.cluster.emulated_hosts import EmulatedHosts
from headgate_lab.cluster.host_cpu import make_quota, quota_names, quotas_available
from headgate_lab.cluster.namespaces import ClusterError, pids_in, remove_leftovers

pytestmark = pytest.mark.cluster

ADDRESSES = {"left": "198.51.100.21", "right": "198.51.100.22"}
LISTENS = """
import socket, sys
with socket.create_server((sys.argv[1], 7777)) as door:
    print("ready", flush=True)
    with door.accept()[0] as other:
        while other.recv(65536):
            pass
"""
SENDS = """
import socket, sys
with socket.create_connection((sys.argv[1], 7777), timeout=30) as other:
    other.sendall(bytes(10_000))
    other.shutdown(socket.SHUT_WR)
    other.recv(1)
"""


@pytest.fixture
def quotas() -> None:
    if reason := quotas_available():
        pytest.skip(f"quotas: {reason}")


@pytest.fixture
def hosts(quotas: None) -> Iterator[EmulatedHosts]:
    made = EmulatedHosts(ADDRESSES, cpus={"left": 0.25})
    try:
        made.build()
        yield made
    finally:
        made.close([])


def output(hosts: EmulatedHosts, host: str, command: list[str]) -> str:
    return subprocess.check_output(hosts.inside(host, command), text=True)


def test_a_process_is_on_its_host_and_within_its_share(hosts: EmulatedHosts) -> None:
    for host, address in ADDRESSES.items():
        assert address in output(hosts, host, ["ip", "-br", "addr", "show", "eth0"])
    assert hosts.namespace("left") in output(hosts, "left", ["cat", "/proc/self/cgroup"])
    assert hosts.namespace("right") not in output(hosts, "right", ["cat", "/proc/self/cgroup"])


def test_what_runs_keeps_its_pid_and_ends_with_the_hosts(hosts: EmulatedHosts) -> None:
    process = subprocess.Popen(hosts.inside("left", ["sleep", "1000"]))
    while process.pid not in hosts.pids("left"):
        assert process.poll() is None
    names = [hosts.namespace(host) for host in ADDRESSES]

    hosts.close([process])

    assert process.returncode is not None
    assert not any(pids_in(name) for name in names)
    assert not set(names) & set(quota_names())
    assert not hosts.folder("left").exists()


def test_only_what_leaves_a_rack_is_on_its_trunk_wherever_hosts_are_plugged_in() -> None:
    addresses = {name: f"198.51.100.{30 + i}" for i, name in enumerate("abc")}
    hosts = EmulatedHosts(addresses, racks={"a": "left", "b": "left", "c": "right"}, trunk_mbit=100)

    def carried(one: str, other: str) -> int:
        """Bytes out of the rack `left` while one host sends another 10,000."""
        before, listens = hosts.bytes_from_rack("left"), [sys.executable, "-c", LISTENS]
        with subprocess.Popen(
            hosts.inside(other, [*listens, addresses[other]]), stdout=subprocess.PIPE, text=True
        ) as listener:
            assert listener.stdout is not None and listener.stdout.readline() == "ready\n"
            output(hosts, one, [sys.executable, "-c", SENDS, addresses[other]])
        return hosts.bytes_from_rack("left") - before

    try:
        hosts.build()
        near, far = carried("a", "b"), carried("a", "c")
        hosts.move_to_racks({"b": "right", "c": "left"})
        apart, together = carried("a", "b"), carried("a", "c")
    finally:
        hosts.close([])
    assert max(near, together) < 1_000
    assert min(far, apart) > 10_000


def test_quotas_of_a_dead_run_are_removed(quotas: None) -> None:
    creator = subprocess.Popen(["true"])
    creator.wait()
    mine = f"test{os.getpid()}"  # any other run on this machine removes leftovers, too
    dead = f"{mine}-{creator.pid}-1-1-host1"
    make_quota(dead, 0.5)

    remove_leftovers(mine)

    assert dead not in quota_names()


def test_what_is_missing_is_said_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    quotas_available.cache_clear()
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    try:
        assert quotas_available() == "cgroups need root"
        with pytest.raises(ClusterError, match="quota here: cgroups need root"):
            EmulatedHosts(ADDRESSES, cpus={"left": 0.5}).build()
    finally:
        monkeypatch.undo()
        quotas_available.cache_clear()
