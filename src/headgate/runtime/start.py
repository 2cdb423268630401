"""Start a declared flow on Spark: one streaming query, one `foreachBatch`."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from os import PathLike
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from headgate.commit.changed_state import Changes
from headgate.commit.checkpoint import Checkpoint
from headgate.commit.continuity import check_sources, check_start, spark_query_id
from headgate.commit.coordinator import Coordinator
from headgate.commit.facts import DamageFacts, StartFacts
from headgate.commit.manifest import Manifest, SteadyClock
from headgate.commit.ownership import signer_of
from headgate.commit.planning import Decides
from headgate.commit.settings import Options, Settings
from headgate.control.loop import plan_with
from headgate.control.settings import Manager, Scaling, slots_for
from headgate.errors import DeclarationError, EngineError
from headgate.runtime.auto import cores_of, costs_of, resolve
from headgate.runtime.checkpoint_files import wait_for_sources, without_processes
from headgate.runtime.connectors import Delivery, read_sources, takes_rows
from headgate.runtime.engine import SparkEngine
from headgate.runtime.named_sources import come_back, names_for_spark, naming
from headgate.runtime.query import FlowQuery
from headgate.runtime.session import lend_hadoop_client
from headgate.runtime.stream import IDLE_S, Epochs, EpochStream
from headgate.slot.compile import compile_flow
from headgate.topology.arguments import absolute, check_count, duration_us, spark_uri
from headgate.topology.builder import FlowBuilder

log = logging.getLogger("headgate")


def start_flow(
    flow: FlowBuilder,
    spark: SparkSession,
    *,
    checkpoint: str | PathLike[str],
    slots: int | Scaling | None = None,
    trigger: Mapping[str, Any] | None = None,
    manager: Manager | Decides | None = None,
    latency_s: float | None = None,
    rows_per_epoch: int | None = None,
    parallelism: Mapping[str, int] | None = None,
    options: Options | None = None,
) -> FlowQuery:
    """Start a flow, or one that a command has changed; `Flow.start` says what all this means."""
    _check_session(spark)
    lend_hadoop_client(spark)
    options = options or Options()
    checkpoint = absolute(checkpoint)
    graph = flow.graph(parallelism or {})
    program = compile_flow(graph)
    chooses_rows = takes_rows(graph) and rows_per_epoch is None
    if rows_per_epoch is not None:
        rows_per_epoch = check_count(rows_per_epoch, "rows_per_epoch=")
        if not takes_rows(graph):
            raise DeclarationError(
                f"rows_per_epoch={rows_per_epoch}: no source of this flow can be told. Declare a "
                "source with headgate.Reader, or as a function of (spark, rows_per_epoch); a "
                "DataFrame has its limit in its own options"
            )
    limits = slots_for(slots, options.tables, graph.parallelism)
    if isinstance(limits, Scaling) and limits.max_slots is None:
        limits = replace(limits, max_slots=max(cores_of(spark), limits.min_slots))
    scaling = None
    if isinstance(slots, Scaling) and isinstance(manager, Manager) and manager.places_units:
        assert isinstance(limits, Scaling)
        scaling, limits = limits, limits.within(cores_of(spark))
    chooses = isinstance(limits, Scaling) or chooses_rows
    if latency_s is not None and not chooses:
        raise DeclarationError(
            f"latency_s={latency_s}: nothing is left to choose for it; leave out slots=, or "
            "rows_per_epoch= if a source can be told"
        )
    auto = None
    if chooses or options.calibration is not None:
        auto = resolve(
            program,
            spark,
            checkpoint=checkpoint,
            slots=limits,
            batch_rows=options.batch_rows,
            latency_s=latency_s,
            rows_per_epoch=rows_per_epoch,
            chooses_rows=chooses_rows,
            trigger=trigger,
            calibration=options.calibration,
        )
        limits = auto.slots
        rows_per_epoch = auto.rows_per_epoch
    assert isinstance(limits, int)
    tick = options.tick
    if tick is None:
        tick = any(node.spec.ttl is not None or node.spec.by_clock for node in program.stateful)
    place = Checkpoint(checkpoint, signer_of(options.key, trust_unsigned=options.trust_unsigned))
    names = names_for_spark(spark, graph, place, options.renamed)
    with naming(spark, names):
        source = read_sources(spark, graph, program, rows_per_epoch, names)
    streaming = source.isStreaming
    if trigger is not None and not streaming:
        raise DeclarationError("trigger= is for streaming sources; a batch runs as one epoch")
    delivery = Delivery(spark, graph, place)
    costs = costs_of(spark, place.storage) if auto is None else auto.costs
    settings = Settings(
        **vars(options),
        slots=limits,
        message_s=costs.message_s,
        byte_s=costs.byte_s,
        last_epoch=None if streaming else 0,
        chosen_batch_rows={} if auto is None else auto.batch_rows,
        chosen_instances={} if auto is None else auto.instances,
    )

    def check(last: Manifest | None) -> None:
        if streaming:
            check_start(place, last, spark_query_id(place.storage))
            sources = [node.own_name for node in program.sources]
            renamed = Changes(renamed=options.renamed).names_of("source")
            check_sources(place, sources, renamed, come_back(graph))

    coordinator = Coordinator(
        program,
        place,
        settings,
        delivery,
        clock_ms=options.clock_ms or SteadyClock(),
        sink_uris=delivery.uris,
        planning=plan_with(
            manager,
            program,
            limits,
            racks=options.racks,
            scaling=scaling,
            sizing=None if auto is None else auto.tuner,
        ),
        check=check,
    )
    program = coordinator.program  # it knows how older state files are read
    engine = SparkEngine(spark, program, source.schema, streaming=streaming, conf=options.conf)
    coordinator.journal.append(
        StartFacts(
            slots=limits,
            at_ms=time.time_ns() // 1_000_000,
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

    def start_query(rows: int | None) -> StreamingQuery:
        with naming(spark, names), without_processes(spark, place.storage) as must_wait:
            frame = source if rows is None else read_sources(spark, graph, program, rows, names)
            writer = (
                frame.writeStream.queryName(graph.name)
                .option("checkpointLocation", spark_uri(place.spark_uri))
                .foreachBatch(
                    lambda rows, batch: stream.in_epoch(
                        partial(epochs.run_micro_batch, rows, batch)
                    )
                )
            )
            query = (writer if trigger is None else writer.trigger(**trigger)).start()
            if must_wait:
                wait_for_sources(query)
            return query

    ends = bool(trigger and (trigger.get("availableNow") or trigger.get("once")))
    context = spark.sparkContext
    stream = EpochStream(graph.name, start_query if streaming else None, context, ends=ends)
    every_s = None if ends else tick_every_s(trigger)
    epochs = Epochs(coordinator, engine, stream, auto=auto, tick=tick, tick_every_s=every_s)
    query = FlowQuery(epochs, delivery)
    first = epochs.settle if streaming else partial(epochs.run_batch, source)
    stream.begin(first, epochs.tick_if_idle, epochs.tick_at_rest)
    return query


def tick_every_s(trigger: Mapping[str, Any] | None) -> float:
    """How long a stream is idle before it ticks: as long as between two of its triggers."""
    given = (trigger or {}).get("processingTime")
    try:
        return max(IDLE_S, 0.0 if given is None else duration_us(given) / 1e6)
    except DeclarationError:  # Spark knows more ways to say it
        return IDLE_S


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
