"""The cluster of namespaces, and what headgate relies on when Spark runs on several hosts."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.spark.jvm import DAEMONS, QUICK_JVM
from tests.waiting import PATIENCE_S, wait_until

from headgate_lab.cluster.namespace_cluster import (
    ClusterError,
    NamespaceCluster,
    available,
    remove_leftovers,
    stop_driver,
)
from headgate_lab.cluster.namespaces import Names, pids_in

pytestmark = pytest.mark.cluster

SLOTS, LEVELS, NUMBERS = 6, 3, 6000
EXPECTED = {"sum": sum(range(NUMBERS)) + LEVELS * NUMBERS, "rows": NUMBERS, "partitions": SLOTS}
CONF = {
    "spark.driver.extraJavaOptions": QUICK_JVM,
    "spark.executor.extraJavaOptions": QUICK_JVM,
    "spark.locality.wait.node": "120s",  # no slot leaves a host that is alive but slow
    "spark.ui.showConsoleProgress": "false",
}
SENDER = """
import socket, sys, time
with socket.create_connection((sys.argv[1], 7999)) as link:
    began = time.monotonic()
    link.sendall(bytes(int(sys.argv[2])))
    link.shutdown(socket.SHUT_WR)
    assert link.recv(100) == b"all there"
    print(time.monotonic() - began)
"""
RECEIVER = """
import socket
door = socket.create_server(("", 7999))
print("open", flush=True)
peer, address = door.accept()
while peer.recv(1 << 16): pass
peer.sendall(b"all there")
print(address[0], flush=True)
"""


class Program:
    """The driver program of `cluster_fixture.py`, and the pipes to talk to it."""

    def __init__(self, cluster: NamespaceCluster, folder: Path) -> None:
        self.markers, self.log = folder, folder / "driver.log"
        script = Path(__file__).with_name("cluster_fixture.py")
        self.process = cluster.start(script, str(SLOTS), str(folder), log=self.log)

    def send(self, command: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        stdout = self.process.stdout
        assert stdout is not None
        ready, _, _ = select.select([stdout], [], [], PATIENCE_S)
        line = stdout.readline() if ready else ""
        assert line, f"no answer:\n{self.log.read_text()[-3000:]}"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, command: str) -> dict[str, Any]:
        self.send(command)
        return self.answer()


@pytest.fixture(scope="module")
def cluster() -> Iterator[NamespaceCluster]:
    with NamespaceCluster(hosts=3, conf=CONF, env=DAEMONS) as running:
        yield running


@pytest.fixture(scope="module")
def program(
    cluster: NamespaceCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Program]:
    running = Program(cluster, tmp_path_factory.mktemp("program"))
    yield running
    stop_driver(running.process)


def homes(job: dict[str, Any]) -> dict[int, set[str]]:
    """Slot -> every host that any level of it ran on; checks that the slot was the partition."""
    found: dict[int, set[str]] = {slot: set() for slot in range(SLOTS)}
    for _level, slot, partition, host, anchors in job["ran"]:
        assert slot == partition
        assert anchors == 2
        found[slot].add(host)
    return found


def facts(job: dict[str, Any]) -> dict[str, int]:
    return {name: job[name] for name in EXPECTED}


def test_every_worker_registers_under_its_own_address(cluster: NamespaceCluster) -> None:
    workers = cluster.master_state()["workers"]

    assert sorted(worker["host"] for worker in workers) == sorted(cluster.hosts.values())
    assert {worker["cores"] for worker in workers} == {1}


def test_a_program_that_takes_too_long_is_killed(cluster: NamespaceCluster, tmp_path: Path) -> None:
    script = tmp_path / "sleeper.py"
    script.write_text("import subprocess; subprocess.run(['sleep', '1000'])")

    with pytest.raises(subprocess.TimeoutExpired):
        cluster.run(script, timeout=0.5)

    listed = ["ip", "netns", "pids", cluster.namespace("driver")]
    wait_until(
        lambda: not _commands(subprocess.check_output(listed, text=True), "sleep 1000"),
        "the program's child to end",
    )


def test_every_slot_stays_where_the_driver_put_it(program: Program) -> None:
    """Six slots, three hosts, three levels: all 18 tasks at home, with the right result."""
    placed = program.ask("place")
    assert placed["found"] == placed["wanted"]
    assert set(Counter(placed["wanted"]).values()) == {SLOTS // 3}

    job = program.ask("job calm")

    assert facts(job) == EXPECTED
    assert len(job["ran"]) == SLOTS * LEVELS
    assert homes(job) == {slot: {host} for slot, host in enumerate(placed["wanted"])}


def test_a_job_survives_a_crash_of_an_executor_under_it(
    cluster: NamespaceCluster, program: Program
) -> None:
    """The crash takes cached anchors, outputs that others still need, and a running task."""
    before = program.ask("place")["wanted"]
    markers, victim = program.markers / "crash", cluster.hosts["host1"]
    program.send("job crash gate")
    wait_until(lambda: any(markers.glob(f"2 * {victim} *")), "the second level on host1")

    killed = cluster.kill_executor_jvm("host1")
    (markers / "go").touch()
    job = program.answer()

    assert len(killed) == 1
    assert facts(job) == EXPECTED
    ran = homes(job)
    assert all(ran[slot] == {host} for slot, host in enumerate(before) if host != victim)
    wait_until(lambda: cluster.executor_pids("host1"), "the Worker to start a new executor")
    assert not set(killed) & set(cluster.executor_pids("host1"))


def test_slots_of_a_lost_host_move_and_the_others_stay(
    cluster: NamespaceCluster, program: Program
) -> None:
    placed = program.ask("place")
    dead = cluster.hosts["host2"]
    cluster.kill_host("host2")
    cluster.wait_for_workers(2)

    moved = program.ask("job moved")
    assert facts(moved) == EXPECTED
    assert all(dead not in hosts for hosts in homes(moved).values())

    after = program.ask("place again")
    settled = program.ask("job settled")

    assert dead not in after["hosts"]
    stayed = [
        slot
        for slot, host in enumerate(placed["wanted"])
        if host != dead and after["wanted"][slot] == host
    ]
    assert len(stayed) >= SLOTS // 3  # evenness may ask for a few; the rest is at home
    assert set(Counter(after["wanted"]).values()) == {SLOTS // 2}
    assert facts(settled) == EXPECTED
    assert homes(settled) == {slot: {host} for slot, host in enumerate(after["found"])}


def test_a_throttled_cluster_beside_another_is_slow_as_asked_and_leaves_nothing(
    cluster: NamespaceCluster, tmp_path: Path
) -> None:
    """Two clusters with equal addresses; the second ends by an exception of its user.

    A busy machine can make it slower than asked, but never faster.
    """
    script = tmp_path / "sender.py"
    script.write_text(SENDER)
    payload_bytes, rate_mbit, burst_bytes = 2_000_000, 8, 256 * 1024
    try:
        with NamespaceCluster(1, link_mbit=rate_mbit, env=DAEMONS) as second:
            names = [second.namespace(role) for role in ("driver", "master", "host1")]
            folder = second.local_dir("host1")
            seconds = _seconds_to_send(second, script, payload_bytes)
            raise KeyError("the user's own mistake")
    except KeyError:
        pass

    least = (payload_bytes - 2 * burst_bytes) * 8 / (rate_mbit * 1e6)
    assert seconds > least * 0.9
    assert not set(names) & set(_namespaces())
    assert not folder.exists()
    assert not _commands(" ".join(_all_pids()), str(folder))
    assert cluster.namespace("host1") in _namespaces()  # the neighbour is untouched


def test_leftovers_of_a_dead_run_are_removed_and_of_a_live_one_kept() -> None:
    """Under a prefix of its own: any other run on this machine removes leftovers, too."""
    creator = subprocess.Popen(["true"])
    creator.wait()
    mine = f"test{os.getpid()}"
    dead = f"{mine}-{creator.pid}-1-1-host1"
    live = Names.fresh(mine).namespace("host1")
    for name in (dead, live):
        subprocess.run(["ip", "netns", "add", name], check=True)
    orphan = subprocess.Popen(["ip", "netns", "exec", dead, "sleep", "1000"])
    try:
        wait_until(lambda: orphan.pid in pids_in(dead), "the orphan to be inside")

        removed = remove_leftovers(mine)

        assert removed == [dead]
        assert orphan.wait(PATIENCE_S) == -signal.SIGKILL
        assert dead not in _namespaces() and live in _namespaces()
    finally:
        subprocess.run(["ip", "netns", "del", live], check=True)


def test_what_is_missing_is_said_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    available.cache_clear()
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    try:
        assert available() == "network namespaces need root"
        with pytest.raises(ClusterError, match="need root"), NamespaceCluster(hosts=1):
            pass
    finally:
        monkeypatch.undo()
        available.cache_clear()


def _seconds_to_send(cluster: NamespaceCluster, script: Path, payload_bytes: int) -> float:
    """Send bytes from the driver to host1, over a link that only they use."""
    inside = ["ip", "netns", "exec", cluster.namespace("host1"), sys.executable, "-c", RECEIVER]
    with subprocess.Popen(inside, stdout=subprocess.PIPE, text=True) as receiver:
        assert receiver.stdout is not None
        assert receiver.stdout.readline() == "open\n"
        sent = cluster.run(script, cluster.hosts["host1"], str(payload_bytes), timeout=PATIENCE_S)
        assert sent.returncode == 0, sent.stderr
        assert receiver.stdout.readline().strip() == cluster.driver_ip
    return float(sent.stdout)


def _namespaces() -> list[str]:
    listed = subprocess.check_output(["ip", "netns", "list"], text=True)
    return [line.split()[0] for line in listed.splitlines()]


def _all_pids() -> list[str]:
    return [entry.name for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _commands(pids: str, part: str) -> list[str]:
    """Command lines, among these processes, that contain a text."""
    found = []
    for pid in pids.split():
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        found += [line] if part in line else []
    return found
