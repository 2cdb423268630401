"""Start a declared flow on Spark: one streaming query, one `foreachBatch`."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from os import PathLike
from typing import Any, Literal

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from headgate.commit.checkpoint import Checkpoint
from headgate.commit.continuity import (
    TICK,
    check_sources,
    check_start,
    has_old_tick,
    spark_query_id,
)
from headgate.commit.coordinator import Coordinator
from headgate.commit.facts import DamageFacts, StartFacts
from headgate.commit.journal import KEEP_RECORDS
from headgate.commit.manifest import Manifest, SteadyClock
from headgate.commit.ownership import signer_of
from headgate.commit.planning import Decides
from headgate.commit.settings import Settings
from headgate.control.manager import plan_with
from headgate.control.settings import Manager
from headgate.errors import DeclarationError, EngineError
from headgate.planner.tuning.calibration import Calibration
from headgate.routing.table import BUCKETS, RoutingTable
from headgate.runtime.auto import Parallelism, checked_slots, resolve
from headgate.runtime.delivery import Delivery, sink_uris
from headgate.runtime.engine import SparkEngine
from headgate.runtime.epochs import Ticking
from headgate.runtime.exchange import with_conf
from headgate.runtime.query import FlowQuery
from headgate.runtime.session import lend_hadoop_client
from headgate.runtime.sources import Input, read_sources, takes_rows
from headgate.runtime.stream import IDLE_S, EpochStream
from headgate.slot.batching import BYTE_S, MESSAGE_S, BatchRows, Scheme
from headgate.slot.program import compile_flow
from headgate.topology.builder import FlowBuilder
from headgate.topology.declared import check_count
from headgate.topology.duration import duration_us
from headgate.topology.place import absolute, spark_uri

log = logging.getLogger("headgate")
BATCH_QUERY = "batch"
# A rate source cannot stop at what is available now, and Spark would read all in one batch then.
READ_ALL_AVAILABLE = {"spark.sql.streaming.triggerAvailableNowWrapper.enabled": "true"}


def start_flow(
    flow: FlowBuilder,
    spark: SparkSession,
    *,
    checkpoint: str | PathLike[str],
    slots: int | None = None,
    parallelism: Parallelism = None,
    slots_max: int | None = None,
    latency_s: float | None = None,
    calibration: Calibration | str | PathLike[str] | None = None,
    trigger: Mapping[str, Any] | None = None,
    tables: Mapping[str, RoutingTable] | None = None,
    manager: Manager | Decides | None = None,
    racks: Mapping[str, str] | None = None,
    batch: BatchRows | Literal["auto"] = None,
    rows_per_epoch: int | None = None,
    sharing: Scheme = "auto",
    warm_dir: str | None = None,
    buckets: int = BUCKETS,
    drop_state: Collection[str] = (),
    keep_manifests: int = 8,
    keep_journal: int = KEEP_RECORDS,
    durable: bool = True,
    key: str | bytes | None = None,
    trust_unsigned: bool = False,
    tick: bool | None = None,
    conf: Mapping[str, str] | None = None,
    clock_ms: Callable[[], int] | None = None,
) -> FlowQuery:
    """Start the flow; returns at once with a handle.

    Args:
        checkpoint: Folder (path, or URI such as s3://bucket/x) that all hosts see; Spark's
            checkpoint lies inside.
        slots: How many instances every operator has. May differ from the last start: state moves.
        parallelism: The same, or "auto": slots are chosen from what is measured, and changed while
            the flow runs.
        slots_max: With "auto", at most so many (default: a slot per core).
        latency_s: With "auto", the mean latency of a row to stay within, as far as the flow keeps
            up with what comes.
        calibration: With "auto", what the engine charges: a file of `headgate calibrate`, or what
            `calibrate` returned (default: the checkpoint's, or a probe of a dozen small jobs).
        trigger: As for `DataStreamWriter.trigger`, e.g. {"availableNow": True}.
        tables: Routing tables by operator; without one, an operator is hashed (or keeps the
            table it had).
        manager: `headgate.Manager(...)`: measure while the flow runs and move keys to where
            their rows are; without one the tables stay as they are.
        racks: Rack of each host, for a manager that should prefer near slots to far ones.
        batch: Rows per batch tuple, for all edges or by "producer->consumer" (default: as declared
            with `batched`, else as many as fit). Results do not depend on it. "auto": as many as
            fit, and rows per epoch are chosen too, for sources that can be told.
        rows_per_epoch: What sources that can be told (`Reader`, or a function of two arguments)
            are told at this start, whatever was measured.
        sharing: Batches for consumers with different keys: "distinct", "shared", or the cheaper.
        warm_dir: Folder on each host for warm copies of state (default: Spark's local dir;
            "off": none).
        buckets: Hash buckets per operator; a power of two, fixed for the life of a checkpoint.
        drop_state: Names of operators that are gone and whose state may be forgotten, and of sinks
            that are gone and whose undelivered rows may be. May stay at later starts.
        keep_manifests: How many epochs back the checkpoint can be read.
        keep_journal: How many records the journal keeps: one per epoch, and one per plan, change
            of slots and retry.
        durable: Flush an epoch's files to disk before it is committed, so that a crash of the
            machine loses none of them; only local disks (and mounts) need it.
        key: Signs the checkpoint, so that nobody without it can change it unnoticed (default: the
            environment's HEADGATE_KEY; without one nothing is signed).
        trust_unsigned: Take over a checkpoint that was written without a key, and sign it from now
            on.
        tick: Run epochs on an idle stream too (default: only if some operator has a TTL).
        conf: More Spark SQL settings for the epochs' session.
        clock_ms: Processing time, for tests.
    """
    _check_session(spark)
    lend_hadoop_client(spark)
    check_one_owner_of_slots(parallelism, manager)
    checkpoint = absolute(checkpoint)
    auto = None
    if "auto" in (parallelism, batch):
        auto = resolve(
            flow,
            spark,
            checkpoint=checkpoint,
            slots=slots,
            parallelism=parallelism,
            batch=batch,
            slots_max=slots_max,
            latency_s=latency_s,
            rows_per_epoch=rows_per_epoch,
            trigger=trigger,
            calibration=calibration,
        )
        slots = auto.slots
    slots = checked_slots(slots if slots is not None else parallelism)
    graph = flow.graph()
    program = compile_flow(graph)
    if tick is None:
        tick = any(node.spec.ttl is not None for node in program.stateful)
    if rows_per_epoch is None:
        rows_per_epoch = None if auto is None else auto.rows_per_epoch
    else:
        rows_per_epoch = check_count(rows_per_epoch, "rows_per_epoch=")
        if not takes_rows(graph):
            raise DeclarationError(
                f"rows_per_epoch={rows_per_epoch}: no source of this flow can be told. Declare a "
                "source with headgate.Reader, or as a function of (spark, rows_per_epoch); a "
                "DataFrame has its limit in its own options"
            )
    place = Checkpoint(checkpoint, signer_of(key, trust_unsigned=trust_unsigned))
    old_tick = has_old_tick(place, tick)
    read = partial(read_sources, spark, graph, program, old_tick=old_tick)
    source = read(rows_per_epoch=rows_per_epoch)
    uris = sink_uris(program, place)
    delivery = Delivery(spark, graph, place, uris)
    settings = Settings(
        slots=slots,
        buckets=buckets,
        warm_dir=warm_dir,
        tables=dict(tables or {}),
        drop_state=drop_state,
        keep_manifests=keep_manifests,
        keep_journal=keep_journal,
        durable=durable,
        racks=dict(racks or {}),
        batch=None if batch == "auto" else batch,
        sharing=sharing,
        message_s=MESSAGE_S if auto is None else auto.costs.message_s,
        byte_s=BYTE_S if auto is None else auto.costs.byte_s,
        last_epoch=None if source.streaming else 0,
    )
    if trigger is not None and not source.streaming:
        raise DeclarationError("trigger= is for streaming sources; a batch runs as one epoch")

    def check(last: Manifest | None) -> None:
        if source.streaming:
            names = [*(node.name for node in program.sources), *([TICK] if old_tick else [])]
            check_start(place, last, spark_query_id(place.storage))
            check_sources(place, names)

    planning = plan_with(manager, program, slots, racks=racks)
    coordinator = Coordinator(
        program,
        place,
        settings,
        delivery,
        clock_ms=clock_ms or SteadyClock(),
        sink_uris=uris,
        planning=planning,
        check=check,
    )
    engine = SparkEngine(spark, program, conf=conf)
    query = FlowQuery(coordinator, engine, delivery)
    if auto is not None:
        query.tune_with(auto)
    coordinator.journal.append(
        StartFacts(
            slots=slots,
            at_ms=_wall_clock_ms(),
            spark=spark.version,
            describe=program.describe(),
            tuned=None if auto is None else auto.facts(),
        )
    )
    for sink, gone in delivery.missing():
        reason = f"{len(gone)} published files are gone, the first is {gone[0]}"
        log.warning("sink %s: %s", sink, reason)
        done = "nothing: they are the user's"
        coordinator.journal.append(DamageFacts(gone[0], reason, done, sink=sink))
    if source.streaming:
        ends = bool(trigger and (trigger.get("availableNow") or trigger.get("once")))
        every_s = None if ends else tick_every_s(trigger)
        ticking = Ticking(source.frame.schema, source.tagged, tick and not old_tick, every_s)

        def start(rows: int | None) -> StreamingQuery:
            given = source if rows is None else read(rows_per_epoch=rows)
            return _start_stream(spark, query, stream, place, trigger, given)

        stream = EpochStream(query.name, start, spark.sparkContext, ends=ends)
        query.attach(stream, ticking)
    else:
        query.run_in_thread(
            lambda: query.run_epoch(
                source.frame, 0, BATCH_QUERY, tagged=source.tagged, streaming=False
            )
        )
    return query


def _start_stream(
    spark: SparkSession,
    query: FlowQuery,
    stream: EpochStream,
    place: Checkpoint,
    trigger: Mapping[str, Any] | None,
    source: Input,
) -> StreamingQuery:
    def epoch(batch: DataFrame, batch_id: int) -> None:
        query_id = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
        if query_id is None:
            raise EngineError("Spark did not tell the query id; is this a classic session?")
        stream.in_epoch(partial(query.run_epoch, batch, batch_id, query_id, tagged=source.tagged))

    writer = (
        source.frame.writeStream.queryName(query.name)
        .option("checkpointLocation", spark_uri(place.spark_uri))
        .foreachBatch(epoch)
    )
    if trigger is not None:
        writer = writer.trigger(**trigger)
    if not source.old_tick:
        return writer.start()
    with with_conf(source.frame.sparkSession, READ_ALL_AVAILABLE):
        started = writer.start()
        while started.isActive and started.status["message"].startswith("Initializing"):
            time.sleep(0.01)  # Spark reads the setting when it has made the sources
    return started


def tick_every_s(trigger: Mapping[str, Any] | None) -> float:
    """How long a stream is idle before it ticks: as long as between two of its triggers."""
    given = (trigger or {}).get("processingTime")
    try:
        return max(IDLE_S, 0.0 if given is None else duration_us(given) / 1e6)
    except DeclarationError:  # Spark knows more ways to say it
        return IDLE_S


def check_one_owner_of_slots(parallelism: Parallelism, manager: Manager | Decides | None) -> None:
    """Two loops that both ask for slots would undo each other's changes for ever."""
    if parallelism == "auto" and isinstance(manager, Manager) and manager.scaling is not None:
        raise DeclarationError(
            "parallelism='auto' and Manager(scaling=...) would both change the number of slots; "
            "keep one: slots=N with scaling= (by measured load), or parallelism='auto' with a "
            "manager without scaling= (by the cost model)"
        )


def _check_session(spark: SparkSession) -> None:
    if not hasattr(spark, "_jsparkSession"):
        raise EngineError(
            "headgate needs a classic SparkSession: Spark Connect has no SparkContext, and slots "
            "are made sticky through it"
        )
    version = tuple(int(part) for part in spark.version.split(".")[:2])
    if version < (4, 1):
        raise EngineError(
            f"headgate needs Spark 4.1 or later (partition-aware unions); this is {spark.version}"
        )


def _wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000
