"""Executors of a Spark standalone cluster, asked for and given back while a flow runs.

Elsewhere (local mode, dynamic allocation, other cluster managers) the executors are not ours to
change: then there are as many as there are, and only slots change.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Executor:
    """A live executor of this application."""

    id: str
    host: str
    cores: int


class Executors:
    """What Spark has for us, and how to have more or less of it."""

    def __init__(self, spark: SparkSession) -> None:
        self._context: Any = spark.sparkContext
        conf = spark.sparkContext.getConf()
        dynamic = conf.get("spark.dynamicAllocation.enabled", "false") == "true"
        self.ours_to_change = str(self._context.master).startswith("spark://") and not dynamic

    def live(self) -> list[Executor]:
        """In the order in which they came; without the driver."""
        listed = self._context._jsc.sc().statusStore().executorList(True)
        found = [listed.apply(i) for i in range(listed.size())]
        return sorted(
            (
                Executor(
                    str(e.id()), str(e.hostPort()).rpartition(":")[0], max(1, int(e.totalCores()))
                )
                for e in found
                if e.id() != "driver"
            ),
            key=lambda e: (len(e.id), e.id),
        )

    def have_room_for(
        self, slots: int, *, timeout_s: float, clock: Callable[[], float] = time.monotonic
    ) -> int:
        """Ask for a core per slot and wait for them; returns the cores there are in the end.

        The total is absolute: a relative request counts from the last total that was asked for.
        """
        live = self.live()
        if not self.ours_to_change or not live:
            return sum(e.cores for e in live)
        wanted = -(-slots // live[0].cores)
        if wanted > len(live):
            jvm = self._context._jvm
            nowhere = jvm.PythonUtils.toScalaMap(jvm.java.util.HashMap())
            self._context._jsc.sc().requestTotalExecutors(wanted, 0, nowhere)
            until = clock() + timeout_s
            while len(live) < wanted and clock() < until:
                time.sleep(POLL_SECONDS)
                live = self.live()
        return sum(e.cores for e in live)

    def give_back(self, keep_hosts: dict[str, int]) -> list[Executor]:
        """End executors beyond those that `keep_hosts` (host -> slots there) needs."""
        if not self.ours_to_change:
            return []
        room = dict(keep_hosts)
        leaving = []
        for executor in self.live():
            if room.get(executor.host, 0) > 0:
                room[executor.host] -= executor.cores
            else:
                leaving.append(executor)
        if leaving:
            jvm = self._context._jvm
            ids = jvm.java.util.ArrayList()
            for executor in leaving:
                ids.add(executor.id)
            self._context._jsc.sc().killExecutors(jvm.PythonUtils.toSeq(ids))
        return leaving
