"""Executors of a Spark standalone cluster, asked for and given back while a flow runs.

Elsewhere (local mode, dynamic allocation, other cluster managers) the executors are not ours to
change: then there are as many as there are, and only slots change.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

DRIVER = "driver"  # what Spark calls itself in local mode
POLL_SECONDS = 0.05  # each look is a few py4j calls; executors take seconds to come


@dataclass(frozen=True)
class Executor:
    """A live executor of this application; one that came just now may have no host yet."""

    id: str
    host: str
    cores: int

    @property
    def name(self) -> str:
        return f"{self.id} on {self.host}"

    @property
    def place(self) -> str:
        """The name under which a task can prefer it to any other."""
        return f"executor_{self.host}_{self.id}"


class Executors:
    """What Spark has for us, and how to have more or less of it."""

    def __init__(self, spark: SparkSession) -> None:
        self._context: Any = spark.sparkContext
        conf = spark.sparkContext.getConf()
        dynamic = conf.get("spark.dynamicAllocation.enabled", "false") == "true"
        self.ours_to_change = str(self._context.master).startswith("spark://") and not dynamic

    def live(self) -> list[Executor]:
        """In the order in which they came; without the driver."""
        found = [e for e in _listed(self._context) if e.id != DRIVER]
        return sorted(found, key=lambda e: (len(e.id), e.id))

    @property
    def cores(self) -> int:
        return sum(e.cores for e in self.live())

    def running_tasks(self) -> dict[str, int]:
        """Tasks by executor, as the scheduler counts them: Spark's status may lag by seconds."""
        running = self._context._jsc.sc().taskScheduler().runningTasksByExecutors()
        counts = self._context._jvm.scala.jdk.javaapi.CollectionConverters.asJava(running)
        return {str(executor): int(count) for executor, count in dict(counts).items()}

    def bring(
        self,
        slots: int,
        arrived: Callable[[list[Executor]], Callable[[], None]],
        *,
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Ask for a core per slot, some executors at a time, and hand over those that come.

        Each round asks for at most half as many again as there are: JVMs that start all at once
        would be felt where hosts are shared. `arrived` says how to wait until they are ready; the
        next round begins after that. Ends when there is enough, or when no executor comes any
        more.
        """
        live = self.live()
        if not self.ours_to_change or not live:
            return
        wanted = -(-slots // live[0].cores)
        known = {executor.id for executor in live}
        while len(live) < wanted:
            total = min(wanted, len(live) + max(1, len(live) // 2))
            self._ask_for(total)
            until, ready = clock() + timeout_s, list[Callable[[], None]]()
            while len(live) < total and clock() < until:
                time.sleep(POLL_SECONDS)
                live = self.live()
                new = [executor for executor in live if executor.id not in known]
                if new:
                    known |= {executor.id for executor in new}
                    ready.append(arrived(new))
            for wait in ready:
                wait()
            if len(live) < total:
                return

    def give_back(self, needed: Iterable[Executor]) -> list[Executor]:
        """End all executors but these; returns those that go."""
        if not self.ours_to_change:
            return []
        stays = {executor.id for executor in needed}
        leaving = [executor for executor in self.live() if executor.id not in stays]
        if leaving:
            jvm = self._context._jvm
            ids = jvm.java.util.ArrayList()
            for executor in leaving:
                ids.add(executor.id)
            self._context._jsc.sc().killExecutors(jvm.PythonUtils.toSeq(ids))
        return leaving

    def _ask_for(self, total: int) -> None:
        """The total is absolute: a relative request counts from the last total asked for."""
        jvm = self._context._jvm
        nowhere = jvm.PythonUtils.toScalaMap(jvm.java.util.HashMap())
        self._context._jsc.sc().requestTotalExecutors(total, 0, nowhere)


def live_executors(spark: SparkSession) -> dict[str, str]:
    """The host of every live executor, by its id; in local mode that is the driver."""
    context: Any = spark.sparkContext
    local = bool(context._jsc.sc().isLocal())
    return {e.id: e.host for e in _listed(context) if local or e.id != DRIVER}


def tasks_at_once(context: Any) -> int:
    """Tasks that can run at the same time on what this context has now, local or cluster."""
    scheduler = context._jsc.sc()
    profile = scheduler.resourceProfileManager().defaultResourceProfile()
    return max(1, int(scheduler.maxNumConcurrentTasks(profile)))


def enough_for(slots_on: dict[str, int], live: Iterable[Executor]) -> list[Executor]:
    """The first executors of each host that have a core for each of its slots.

    Examples:
        >>> live = [Executor("0", "a", 2), Executor("1", "a", 2), Executor("2", "b", 2)]
        >>> [executor.id for executor in enough_for({"a": 2}, live)]
        ['0']
    """
    room = dict(slots_on)
    stays = []
    for executor in live:
        if room.get(executor.host, 0) > 0:
            room[executor.host] -= executor.cores
            stays.append(executor)
    return stays


def _listed(context: Any) -> list[Executor]:
    """All that live, as Spark's status has them: it lags a death by milliseconds."""
    listed = context._jsc.sc().statusStore().executorList(True)
    found = (listed.apply(i) for i in range(listed.size()))
    return [
        Executor(str(e.id()), str(e.hostPort()).rpartition(":")[0], max(1, int(e.totalCores())))
        for e in found
    ]
