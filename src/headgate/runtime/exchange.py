"""The exchange between two levels: Python stages, and anchors that give each slot a host.

An anchor is a tiny cached DataFrame with one row per slot, hash-partitioned by the slot's label,
whose cached partition s lies on the host chosen for slot s. A stage of
`data.repartition(n, label) + anchor + anchor` has exactly n partitions on Spark >= 4.1 (its
union is partition-aware), and each prefers the host that caches its anchor partition. The anchor
is there twice to outvote the shuffle: the union takes the host that most parents prefer.

It is a hint and never a promise. The slot is read from the rows; a task that runs elsewhere is
slower, not wrong. Where the driver's process is the only executor (`local[n]`), there is no place
to choose: the exchange has no anchor then, and a task knows its slot by its partition. The plan is
made at the action, so `ANCHOR_CONF` must hold on the session of the data then: in `foreachBatch`
that is `df.sparkSession`, a clone of the outer session.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.pandas.functions import pandas_udf
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType
from pyspark.util import PythonEvalType

from headgate.slot.wire import TUPLE_SCHEMA, anchor_row

Stage = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
TUPLE_TYPE: StructType = from_arrow_schema(TUPLE_SCHEMA)
ANCHOR_CONF: Mapping[str, str] = {
    # Adaptive execution runs every exchange as a job of its own and may change the plan between
    # them. (4.3 kept n partitions with it on: an exchange with a stated number is left alone.)
    "spark.sql.adaptive.enabled": "false",
    # The default, but some vendors turn it off; without it a stage has 3n partitions.
    "spark.sql.unionOutputPartitioning": "true",
}

_SPARK_SEED = 42  # of the hash that partitions by a column
_MASK = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Anchor:
    """A home for every slot: the cached frame that holds it, and the hosts it was put on.

    `hosts[s]` is where the cached partition of slot s was when the anchor was built; "" stands
    for a slot that Spark could not cache. Without frames there is one place only.
    """

    frame: DataFrame | None
    twice: DataFrame | None
    hosts: tuple[str, ...]

    def release(self) -> None:
        """Drop the cached blocks; a plan that still uses the frame computes it again."""
        if self.frame is not None:
            self.frame.unpersist()


@lru_cache(maxsize=64)
def slot_labels(n: int) -> list[int]:
    """Labels that Spark's hash sends to partitions 0..n-1 of n: entry s goes to partition s.

    Each is the least such int >= 0, so equal n gives equal labels; about n ln n hashes.

    Examples:
        >>> slot_labels(4)
        [12, 6, 2, 0]
        >>> [_spark_hash(label) % 4 for label in slot_labels(4)]
        [0, 1, 2, 3]
    """
    labels: dict[int, int] = {}
    label = 0
    while len(labels) < n:
        labels.setdefault(_spark_hash(label) % n, label)  # Python's % is Spark's pmod
        label += 1
    return [labels[slot] for slot in range(n)]


def spread(slots: int, hosts: Sequence[str], previous: Sequence[str] = ()) -> tuple[str, ...]:
    """Give every slot a host, as evenly as can be, moving as few slots as evenness allows.

    Without a `previous` assignment this is round robin. With one, a slot stays where it was if
    that host still exists and has not its fair share already. No hosts, no preference: all "".

    Examples:
        >>> spread(5, ["a", "b", "c"])
        ('a', 'b', 'c', 'a', 'b')
        >>> spread(5, ["a", "c"], previous=("a", "b", "c", "a", "b"))
        ('a', 'a', 'c', 'a', 'c')
    """
    names = list(dict.fromkeys(hosts))
    if not names:
        return ("",) * slots
    held = Counter(previous[:slots])
    # The hosts that hold most already get the larger shares, so that fewer slots move.
    share, larger = divmod(slots, len(names))
    ranked = sorted(names, key=lambda host: -held[host])
    room = {host: share + (rank < larger) for rank, host in enumerate(ranked)}
    chosen = [""] * slots
    for slot, host in enumerate(previous[:slots]):
        if room.get(host, 0) > 0:
            chosen[slot] = host
            room[host] -= 1
    # Round robin over what room is left: the first free place of every host, then the second, ...
    left = sorted((place, rank) for rank, name in enumerate(names) for place in range(room[name]))
    free = (names[rank] for _, rank in left)
    return tuple(host or next(free) for host in chosen)


def build_anchor(
    spark: SparkSession,
    hosts: Sequence[str],
    slots: Sequence[int] | None = None,
    row: Callable[[int, int], tuple[Any, ...]] = anchor_row,
    schema: StructType = TUPLE_TYPE,
) -> Anchor:
    """Cache an anchor with `slots[i]` on `hosts[i]`; runs one small job, returns when it is done.

    Nothing is cached where all slots are in the driver's process anyway.

    Args:
        slots: The slots of its partitions (default: as many as there are hosts, from 0 on).
        hosts: One host per slot (see `spread`); "" leaves the place to Spark. Unknown hosts are
            no error: Spark waits `spark.locality.wait`, then takes another.
        row: The row of a slot, given the slot and its label.
        schema: The schema of the frames that `anchored` will be given, with a column "label".
    """
    count = len(hosts)
    if in_one_process(spark):
        return Anchor(None, None, tuple(hosts))
    named = range(count) if slots is None else slots
    rows = [row(slot, label) for slot, label in zip(named, slot_labels(count), strict=True)]
    with with_conf(spark, ANCHOR_CONF):
        frame = rows_on_hosts(spark, rows, hosts, schema).repartition(count, "label")
        frame.persist(StorageLevel.MEMORY_AND_DISK)
        frame.count()
        twice = frame.union(frame)  # made once: each union of the epoch costs an analysis
        return Anchor(frame, twice, preferred_hosts(frame, count))


def anchored(data: DataFrame, anchor: Anchor) -> DataFrame:
    """Exchange `data` by its label and bind each partition to its slot's host.

    Columns are matched by position. The result has the anchor's row of each slot twice among
    the slot's rows, so a slot without data still runs; the stage's function drops them. Spark's
    optimizer flattens the nested union. Where nothing is cached there is only the exchange.
    """
    exchanged = data.repartition(len(anchor.hosts), "label")
    return exchanged if anchor.twice is None else exchanged.union(anchor.twice)


def arrow_stage(function: Stage) -> Column:
    """A stage that turns rows of any frame into batch tuples, made once and applied every epoch.

    `DataFrame.mapInArrow` makes a new JVM function on every call: some 50 py4j round trips a level,
    and 14 more for every column. It uses the same two private names of PySpark as we do here. Spark
    sends a stage all columns of its frame, so it names none: to resolve 2,001 names took longer
    than the rest of the planning.
    """
    make: Any = pandas_udf
    udf = make(function, returnType=TUPLE_TYPE, functionType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    stage: Column = udf()
    return stage


def apply_stage(frame: DataFrame, stage: Column) -> DataFrame:
    """Run the stage on every partition of the frame."""
    java_frame: Any = frame._jdf
    java_stage: Any = stage._jc
    return DataFrame(java_frame.mapInArrow(java_stage, False, None), frame.sparkSession)


@contextmanager
def with_conf(spark: SparkSession, conf: Mapping[str, str]) -> Iterator[None]:
    """Hold settings on a session, and put back what was there."""
    before = {name: spark.conf.get(name, None) for name in conf}
    for name, value in conf.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)


def rows_on_hosts(
    spark: SparkSession, rows: Sequence[tuple[Any, ...]], hosts: Sequence[str], schema: StructType
) -> DataFrame:
    """A frame of one row per partition, each with a preferred host.

    `SparkContext.makeRDD(Seq[(T, Seq[String])])` is the one API with location preferences, and
    Scala only. The rows go as Object[], the form in which PySpark itself hands rows over, and
    `applySchemaToPythonRDD` turns py4j's ints into the schema's byte, int or long.
    """
    context: Any = spark.sparkContext
    jvm, gateway = context._jvm, context._gateway
    pairs = jvm.java.util.ArrayList()
    for row, host in zip(rows, hosts, strict=True):
        values = gateway.new_array(jvm.java.lang.Object, len(row))
        for i, value in enumerate(row):
            values[i] = bytearray(value) if isinstance(value, bytes) else value
        preferred = jvm.java.util.ArrayList()
        if host:
            preferred.add(host)
        pairs.add(jvm.scala.Tuple2(values, jvm.PythonUtils.toSeq(preferred)))
    any_ref = jvm.scala.reflect.ClassTag.AnyRef()
    placed = context._jsc.sc().makeRDD(jvm.PythonUtils.toSeq(pairs), any_ref)
    session: Any = spark._jsparkSession
    return DataFrame(session.applySchemaToPythonRDD(placed, schema.json()), spark)


def preferred_hosts(frame: DataFrame, partitions: int) -> tuple[str, ...]:
    """Where Spark would run each partition at this moment; one driver call per partition."""
    context: Any = frame.sparkSession.sparkContext._jsc.sc()
    plan: Any = frame._jdf.queryExecution()
    rdd = plan.toRdd()
    assert rdd.getNumPartitions() == partitions, "an anchor has one partition per slot"
    hosts = []
    for partition in range(partitions):
        places = context.getPreferredLocs(rdd, partition)
        hosts.append("" if places.isEmpty() else str(places.head().host()))
    return tuple(hosts)


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


def executors(spark: SparkSession) -> list[Executor]:
    """The live executors, in the order in which they came; in local mode that is the driver.

    As Spark's status has them, which lags a death by milliseconds.
    """
    context: Any = spark.sparkContext._jsc.sc()
    listed, is_local = context.statusStore().executorList(True), bool(context.isLocal())
    live = [
        Executor(str(e.id()), str(e.hostPort()).rpartition(":")[0], max(1, int(e.totalCores())))
        for e in (listed.apply(i) for i in range(listed.size()))
        if is_local or e.id() != "driver"
    ]
    return sorted(live, key=lambda e: (len(e.id), e.id))


def live_executors(spark: SparkSession) -> dict[str, str]:
    """The host of every live executor, by its id."""
    return {executor.id: executor.host for executor in executors(spark)}


def tasks_at_once(spark: SparkSession) -> int:
    """Tasks that can run at the same time on what Spark has now, local or cluster."""
    context: Any = spark.sparkContext._jsc.sc()
    profile = context.resourceProfileManager().defaultResourceProfile()
    return max(1, int(context.maxNumConcurrentTasks(profile)))


def in_one_process(spark: SparkSession) -> bool:
    """Is the driver the only executor?"""
    context: Any = spark.sparkContext._jsc.sc()
    return bool(context.isLocal())


def _spark_hash(value: int) -> int:
    """Spark's Murmur3 (x86, 32 bit) of one int column, as a signed int."""
    k1 = _rotate((value & _MASK) * 0xCC9E2D51 & _MASK, 15) * 0x1B873593 & _MASK
    h1 = (_rotate(_SPARK_SEED ^ k1, 13) * 5 + 0xE6546B64) & _MASK
    h1 ^= 4  # the length in bytes
    h1 = (h1 ^ h1 >> 16) * 0x85EBCA6B & _MASK
    h1 = (h1 ^ h1 >> 13) * 0xC2B2AE35 & _MASK
    h1 ^= h1 >> 16
    return h1 - (1 << 32) if h1 >> 31 else h1


def _rotate(value: int, bits: int) -> int:
    return (value << bits | value >> 32 - bits) & _MASK
