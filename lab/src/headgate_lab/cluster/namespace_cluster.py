"""A real Spark standalone cluster of several hosts on one Linux machine.

Every host is a network namespace with an address of its own (`emulated_hosts`). Each worker host
runs one Spark Worker with its own local directory; the master and the driver have a host each.
Links can be throttled, and worker hosts can have a share of the processor of their own; without
that, CPU, memory and disk are shared and only the network is real.

Invariant: when the context ends, however it ends, no process, namespace or file of the cluster
is left.

    with NamespaceCluster(hosts=3, link_mbit=100) as cluster:
        done = cluster.run("program.py", "an argument", timeout=60)

The program needs no settings: `SparkSession.builder.getOrCreate()` finds the cluster.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from headgate_lab.cluster.emulated_hosts import EmulatedHosts
from headgate_lab.cluster.namespaces import (
    POLL_SECONDS,
    ClusterError,
    available,
    cmdline,
    remove_leftovers,
)
from headgate_lab.cluster.spark_environment import environment_on, spark_home

_SUBNET = "198.51.100"  # TEST-NET-2: documentation addresses, seen only inside the namespaces
_DRIVER, _MASTER = "driver", "master"
_FIRST_HOST = 11  # host1 is 198.51.100.11
_HOSTS_MAX = 100
_MASTER_PORT, _MASTER_UI_PORT = 7077, 8080


class NamespaceCluster:
    """Spark standalone on `hosts` network namespaces; use it as a context manager.

    Args:
        hosts: Number of worker hosts, named host1, host2, ...
        cores_per_host: Task slots that each Worker offers; the machine's cores are shared.
        memory: Memory of each Worker, all of it given to its one executor.
        link_mbit: Rate of the link of every worker host and of the driver, each way; None
            leaves them unthrottled.
        host_cpus: Cores' worth of time for each worker host, so that what one does is not felt by
            the others; None lets all share what the machine has. Needs cgroups (`host_cpu`).
        racks: Rack of each worker host, by name; driver and master are in none.
        trunk_mbit: Rate of the trunk between a rack and all others, each way.
        conf: Further Spark settings for every driver program.
        env: Further environment of every process, executors and Python workers included.
        start_timeout: Seconds that the Workers have to register.
    """

    def __init__(
        self,
        hosts: int = 3,
        cores_per_host: int = 1,
        memory: str = "1g",
        link_mbit: int | None = None,
        *,
        host_cpus: float | None = None,
        racks: Mapping[str, str] | None = None,
        trunk_mbit: int | None = None,
        conf: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
        start_timeout: float = 300.0,
    ) -> None:
        if not 1 <= hosts <= _HOSTS_MAX:
            raise ValueError(f"a cluster has 1 to {_HOSTS_MAX} hosts, not {hosts}")
        self.hosts: Mapping[str, str] = {
            f"host{i + 1}": f"{_SUBNET}.{_FIRST_HOST + i}" for i in range(hosts)
        }
        self.driver_ip, self.master_ip = f"{_SUBNET}.2", f"{_SUBNET}.3"
        self.master_url = f"spark://{self.master_ip}:{_MASTER_PORT}"
        self._cores, self._memory = cores_per_host, memory
        self._conf, self._env = dict(conf or {}), dict(env or {})
        self._start_timeout = start_timeout
        self._emulated = EmulatedHosts(
            {_DRIVER: self.driver_ip, _MASTER: self.master_ip, **self.hosts},
            link_mbit={} if link_mbit is None else dict.fromkeys([_DRIVER, *self.hosts], link_mbit),
            cpus={} if host_cpus is None else dict.fromkeys(self.hosts, host_cpus),
            racks=racks,
            trunk_mbit=trunk_mbit,
        )
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._drivers: list[subprocess.Popen[str]] = []

    # --- life ---------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        reason = available()
        if reason is not None:
            raise ClusterError(f"no cluster can be built here: {reason}")
        remove_leftovers()
        try:
            self._emulated.build()
            self._write_settings()
            self._start_master()
            for host in self.hosts:
                self._start_worker(host)
            self.wait_for_workers(len(self.hosts), self._start_timeout)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End every process of the cluster, then remove its namespaces and files; idempotent."""
        self._emulated.close([*self._daemons.values(), *self._drivers])

    # --- use ----------------------------------------------------------------------------------

    def start(
        self,
        script: str | Path,
        *args: str,
        env: Mapping[str, str] | None = None,
        log: Path | None = None,
    ) -> subprocess.Popen[str]:
        """Start a driver program in the driver's namespace and return at once.

        Its input and output are pipes. So is its error stream, unless a `log` file takes it:
        a caller that talks to the program would otherwise have to drain Spark's warnings.
        """
        with contextlib.ExitStack() as stack:
            errors = subprocess.PIPE if log is None else stack.enter_context(log.open("w"))
            process = subprocess.Popen(
                self._emulated.inside(_DRIVER, [sys.executable, str(script), *args]),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=self._environment(_DRIVER) | dict(env or {}),
                start_new_session=True,
            )
        self._drivers.append(process)
        return process

    def run(
        self,
        script: str | Path,
        *args: str,
        env: Mapping[str, str] | None = None,
        timeout: float = 120.0,
    ) -> subprocess.CompletedProcess[str]:
        """Run a driver program to its end; on a timeout it and its JVM are killed.

        Raises:
            subprocess.TimeoutExpired: with the output so far.
        """
        process = self.start(script, *args, env=env)
        try:
            output, errors = process.communicate(timeout=timeout)
        except BaseException:
            stop_driver(process)
            raise
        return subprocess.CompletedProcess(process.args, process.returncode, output, errors)

    def kill_executor_jvm(self, host: str) -> list[int]:
        """SIGKILL the executors on a host, as a crash would; its Worker starts new ones."""
        return self._emulated.kill(self.executor_pids(host))

    def kill_host(self, host: str) -> list[int]:
        """SIGKILL all that runs on a host, its Worker first; nothing comes back there.

        The kernel still closes the sockets, so peers notice at once; a power cut is quieter.
        """
        pids = self._emulated.pids(host)
        self._emulated.kill([pid for pid in pids if pid == self._daemons[host].pid])
        return self._emulated.kill(self._emulated.pids(host))

    def executor_pids(self, host: str) -> list[int]:
        """Pids of the executor JVMs that run on a host now."""
        pids = self._emulated.pids(host)
        return [pid for pid in pids if "CoarseGrainedExecutorBackend" in cmdline(pid)]

    def namespace(self, role: str) -> str:
        """The network namespace of a host, "driver" or "master", for `ip netns exec`."""
        return self._emulated.namespace(role)

    def local_dir(self, host: str) -> Path:
        """The directory that stands for a host's disk: Spark's local dir, work dir and logs."""
        return self._emulated.folder(host)

    def bytes_sent(self, host: str) -> int:
        """Bytes that a host (or the driver) has sent over its link since the cluster began."""
        return self._emulated.bytes_sent(host)

    def bytes_from_rack(self, rack: str) -> int:
        """Bytes that a rack has sent over its trunk since the cluster began."""
        return self._emulated.bytes_from_rack(rack)

    def move_to_racks(self, racks: Mapping[str, str]) -> None:
        """Plug hosts into other racks, of those there are, while all runs."""
        self._emulated.move_to_racks(racks)

    def wait_for_workers(self, count: int, timeout: float = 300.0) -> None:
        """Return once the master counts exactly `count` Workers alive."""
        deadline = time.monotonic() + timeout
        alive: list[str] = []
        while time.monotonic() < deadline:
            self._check_daemons()
            alive = [
                w["host"] for w in self.master_state().get("workers", []) if w["state"] == "ALIVE"
            ]
            if len(alive) == count:
                return
            time.sleep(POLL_SECONDS)
        raise ClusterError(
            f"after {timeout:g} s the master has {len(alive)} live workers {sorted(alive)}, "
            f"not {count}\n{self.log_tail(_MASTER)}"
        )

    def master_state(self) -> dict[str, Any]:
        """The master's own account of workers and applications; empty while it starts."""
        url = f"http://{self.master_ip}:{_MASTER_UI_PORT}/json/"
        read = f"import urllib.request as u; print(u.urlopen({url!r}, timeout=5).read().decode())"
        done = subprocess.run(
            self._emulated.inside(_MASTER, [sys.executable, "-I", "-S", "-c", read]),
            capture_output=True,
            text=True,
            check=False,
        )
        state: dict[str, Any] = {}
        # Its page is there a moment before what it tells: an answer may be empty, or no JSON.
        with contextlib.suppress(ValueError):
            state = json.loads(done.stdout) if done.returncode == 0 else {}
        return state

    def log_tail(self, role: str, lines: int = 20) -> str:
        """The last lines that a host's (or the master's) daemon wrote."""
        log = self.local_dir(role) / "daemon.log"
        if not log.exists():
            return f"{role} has written no log"
        return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])

    # --- parts --------------------------------------------------------------------------------

    def _start_master(self) -> None:
        ports = ["--port", str(_MASTER_PORT), "--webui-port", str(_MASTER_UI_PORT)]
        main_class = "org.apache.spark.deploy.master.Master"
        self._start_daemon(_MASTER, main_class, ["--host", self.master_ip, *ports])

    def _start_worker(self, host: str) -> None:
        offers = ["--cores", str(self._cores), "--memory", self._memory]
        folder = ["--work-dir", str(self.local_dir(host) / "work")]
        main_class = "org.apache.spark.deploy.worker.Worker"
        arguments = ["--host", self.hosts[host], *offers, *folder, self.master_url]
        self._start_daemon(host, main_class, arguments)

    def _write_settings(self) -> None:
        """The settings of every driver program."""
        settings = {
            "spark.master": self.master_url,
            "spark.driver.host": self.driver_ip,
            "spark.driver.bindAddress": self.driver_ip,
            "spark.sql.warehouse.dir": str(self.local_dir(_DRIVER) / "warehouse"),
            "spark.executor.memory": self._memory,
            "spark.executor.cores": str(self._cores),
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": f"{self._start_timeout:.0f}s",
            "spark.cores.max": str(self._cores * len(self.hosts)),
            "spark.ui.enabled": "false",
            **self._conf,
        }
        text = "".join(f"{name} {value}\n" for name, value in settings.items())
        self._settings.write_text(text)

    @property
    def _settings(self) -> Path:
        return self.local_dir(_DRIVER) / "settings.conf"

    def _environment(self, role: str) -> dict[str, str]:
        address = self._emulated.addresses[role]
        given = environment_on(self.local_dir(role), address) | self._env
        if role == _DRIVER:
            settings = shlex.quote(str(self._settings))
            given["PYSPARK_SUBMIT_ARGS"] = f"--properties-file {settings} pyspark-shell"
        return given

    def _start_daemon(self, role: str, main_class: str, arguments: list[str]) -> None:
        command = [str(spark_home() / "bin" / "spark-class"), main_class, *arguments]
        with (self.local_dir(role) / "daemon.log").open("wb") as log:
            # `inside` and `spark-class` both exec, so this pid is the JVM's.
            self._daemons[role] = subprocess.Popen(
                self._emulated.inside(role, command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment(role),
                cwd=self.local_dir(role),
                start_new_session=True,
            )

    def _check_daemons(self) -> None:
        for role, process in self._daemons.items():
            if process.poll() not in (None, -signal.SIGKILL):
                raise ClusterError(f"the daemon of {role} ended\n{self.log_tail(role)}")


def stop_driver(process: subprocess.Popen[str]) -> None:
    """Kill a driver program from `start` with its JVM, and close its pipes."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)  # its own session: see start
    process.communicate()


__all__ = ["ClusterError", "NamespaceCluster", "available", "remove_leftovers", "stop_driver"]
