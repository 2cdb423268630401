"""Asking for executors and giving them back, on any cluster manager that lets a program do so.

Spark's scheduler backends of standalone clusters, YARN and Kubernetes are all clients of one
interface (`ExecutorAllocationClient`), the one that its dynamic allocation uses itself. What counts
is whether the backend is such a client, not what the master is called. In local mode it is not.

Dynamic allocation may be on. Its manager decides by tasks that wait and executors that idle; it
takes away no executor that caches a block, and each slot's anchor is one. So executors with a slot
stay, and more are asked for and given back here, within `spark.dynamicAllocation.maxExecutors` and
`minExecutors`. `SparkContext.killExecutors` refuses beside it, the backend does not. Somebody
else's tasks may run then, so an executor that is busy stays; the manager has it when it idles.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from py4j.java_gateway import is_instance_of
from pyspark.sql import SparkSession

from headgate.runtime.exchange import Executor, executors

CLIENT = "org.apache.spark.ExecutorAllocationClient"


def are_ours_to_change(spark: SparkSession) -> bool:
    """Can this flow ask for executors and give them back?"""
    context: Any = spark.sparkContext
    if str(context.master).startswith("local"):  # a local cluster has the executors it began with
        return False
    return bool(is_instance_of(context._gateway, context._jsc.sc().schedulerBackend(), CLIENT))


def ask_for(spark: SparkSession, total: int) -> int:
    """Ask for so many in all, or as many as there may be; returns how many that is.

    The total is absolute: a relative request counts from the last total asked for.
    """
    context: Any = spark.sparkContext
    total = min(total, _limit(spark, "max", total))
    nowhere = context._jvm.PythonUtils.toScalaMap(context._jvm.java.util.HashMap())
    context._jsc.sc().requestTotalExecutors(total, 0, nowhere)
    return total


def give_back(spark: SparkSession, needed: Iterable[Executor]) -> list[Executor]:
    """End all executors but these, if they are ours; returns those that go."""
    if not are_ours_to_change(spark):
        return []
    live, stay = executors(spark), {executor.id for executor in needed}
    leaving = [executor for executor in live if executor.id not in stay]
    leaving = leaving[max(0, _limit(spark, "min", 0) - len(live) + len(leaving)) :]
    if not leaving:
        return []
    context: Any = spark.sparkContext
    ids = context._jvm.java.util.ArrayList()
    for executor in leaving:
        ids.add(executor.id)
    backend, names = context._jsc.sc().schedulerBackend(), context._jvm.PythonUtils.toSeq(ids)
    # Not replaced, tasks that are lost with them do not count, and busy ones only if all is ours.
    going = backend.killExecutors(names, True, False, not is_dynamic(spark))
    told = {str(going.apply(i)) for i in range(going.size())}
    return [executor for executor in leaving if executor.id in told]


def enough_for(slots_on: Mapping[str, int], live: Iterable[Executor]) -> list[Executor]:
    """The first executors of each host that have a core for each of its slots.

    Examples:
        >>> live = [Executor("0", "a", 2), Executor("1", "a", 2), Executor("2", "b", 2)]
        >>> [executor.id for executor in enough_for({"a": 2}, live)]
        ['0']
    """
    room = dict(slots_on)
    stay = []
    for executor in live:
        if room.get(executor.host, 0) > 0:
            room[executor.host] -= executor.cores
            stay.append(executor)
    return stay


def cores_in(live: Iterable[Executor]) -> int:
    return sum(executor.cores for executor in live)


def is_dynamic(spark: SparkSession) -> bool:
    """Does Spark's own manager add and remove executors too?"""
    context: Any = spark.sparkContext
    return bool(context._jsc.sc().executorAllocationManager().isDefined())


def _limit(spark: SparkSession, which: str, default: int) -> int:
    """`minExecutors` or `maxExecutors` of dynamic allocation, where it is on."""
    if not is_dynamic(spark):
        return default
    name = f"spark.dynamicAllocation.{which}Executors"
    found = str(spark.sparkContext.getConf().get(name, str(default)))
    return int(found) if found.isdigit() else default
