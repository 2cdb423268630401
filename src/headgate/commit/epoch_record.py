"""Add up what an epoch's tasks report: may it be committed, and what is known of it?

Rows sent must equal rows received for every pair of tasks. Spark may run a task again after others
have read its first output. If the two runs differ, some consumer holds rows that the accepted
producer never sent; the seals show it, whatever the reason (an impure operator, a source that reads
differently, a lost block).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from headgate.commit.facts import (
    BatchFacts,
    EdgeFacts,
    EngineFacts,
    EpochFacts,
    StateSize,
    TriggerFacts,
)
from headgate.commit.latency import ages_of
from headgate.errors import CustodyMismatch, EngineError
from headgate.planner.distance import CLASSES, Distances
from headgate.routing.route import Here, Shares
from headgate.slot.failure import from_record
from headgate.slot.plan import Control, EpochPlan, edge_name, parse_pair
from headgate.slot.program import Program
from headgate.slot.report import Timing
from headgate.slot.statistics import TaskStatistics
from headgate.topology.graph import TO_OWNERS


@dataclass(frozen=True)
class EpochResult:
    """What an engine brings back from an epoch."""

    controls: list[Control]
    timings: list[Timing] = field(default_factory=list)
    engine: EngineFacts = field(default_factory=EngineFacts)
    trigger: TriggerFacts = field(default_factory=TriggerFacts)
    statistics: Sequence[TaskStatistics] = ()


def settle(plan: EpochPlan, controls: Sequence[Control]) -> Control:
    """The epoch's one control record, or the reason why it may not be committed."""
    total = Control()
    for control in controls:
        total.absorb(control)
    if total.error is not None:
        raise from_record(total.error)
    check_tasks(plan, total)
    check_custody(plan, total)
    return total


def check_tasks(plan: EpochPlan, total: Control) -> None:
    """Every slot that has work in a level must have had one task there, and no other slot."""
    levels = len(plan.at_work) or max((level for level, _ in total.tasks), default=1)
    by_level: dict[int, list[int]] = {level: [] for level in range(1, levels + 1)}
    for level, slot in total.tasks:
        by_level.setdefault(level, []).append(slot)
    expected = list(plan.slots_at(levels))
    if sorted(by_level[levels]) != expected:
        raise EngineError(
            f"epoch {plan.epoch} ran on slots {sorted(by_level[levels])} instead of {expected}: "
            "the union of data and anchor did not keep its partitions; "
            "set spark.sql.unionOutputPartitioning=true and remove plugins that rewrite unions",
            epoch=plan.epoch,
        )
    for level, slots in by_level.items():
        if level > levels or sorted(slots) != list(plan.slots_at(level)):
            raise CustodyMismatch(
                f"epoch {plan.epoch}: there are records of level {level} from slots "
                f"{sorted(slots)}, and the plan gave tasks to others",
                epoch=plan.epoch,
                level=level,
            )
    if total.versions != [plan.routing_version]:
        raise EngineError(
            f"tasks of epoch {plan.epoch} used routing versions {total.versions}, "
            f"the plan has {plan.routing_version}",
            epoch=plan.epoch,
        )


def check_custody(plan: EpochPlan, total: Control) -> None:
    if total.sent == total.received:
        return
    pairs = sorted({*total.sent, *total.received})
    wrong = [p for p in pairs if total.sent.get(p) != total.received.get(p)]
    first = wrong[0]
    raise CustodyMismatch(
        f"epoch {plan.epoch}: {len(wrong)} of {len(pairs)} transfers differ between sender and "
        f"receiver; first is level:producer>slot {first}, sent {total.sent.get(first)}, "
        f"received {total.received.get(first)} (tuples, rows, seal, bytes)",
        epoch=plan.epoch,
        pairs=wrong,
    )


def epoch_facts(
    program: Program,
    plan: EpochPlan,
    total: Control,
    result: EpochResult,
    before: EpochFacts | None,
) -> EpochFacts:
    """What is known of one epoch, for the journal and for who decides about the next ones.

    State sizes of slots that had nothing to do are those of the epoch `before`.
    """
    edges = _edges(program, total)
    dispatches = {op: route.dispatch for op, route in sorted(plan.routes.items())}
    pairs = [parse_pair(name) for name in total.sent]
    slot_edges = [e for e in edges.values() if e.between_slots]
    local = sum(e.local_rows for e in slot_edges)
    remote = sum(e.remote_rows for e in slot_edges)
    loads = {
        op: tuple(by_slot.get(str(s), 0) for s in range(plan.slots))
        for op, by_slot in sorted(total.loads.items())
    }
    working = [t for t in result.timings if not t.is_moving]
    moving = [t for t in result.timings if t.is_moving]
    operator_rows: Counter[str] = Counter()
    for timing in working:
        operator_rows[timing.operator] += timing.rows
    return EpochFacts(
        epoch=plan.epoch,
        flow=program.graph.name,
        slots=plan.slots,
        rows=sum(total.source_rows.values()),
        source_rows=total.source_rows,
        source_tasks=len({producer for level, producer, _ in pairs if level == 0}),
        edges=edges,
        locality=local / (local + remote) if local + remote else None,
        bytes_shuffled=sum(e.remote_bytes for e in edges.values())
        + sum(total.merge_bytes.values()),
        bytes_local=sum(e.local_bytes for e in edges.values()),
        messages=sum(counts[0] for counts in total.sent.values()),
        message_bytes=sum(counts[3] for counts in total.sent.values()),
        batches=_batches(program, total),
        bytes_by_distance=_bytes_by_distance(plan, total, edges, result.engine.hosts),
        away_rows=_by_operator(total.away_rows),
        merge_rows=_by_operator(total.merge_rows),
        merge_bytes=total.merge_bytes,
        # folded where its rows are because the plan chose so
        split=tuple(
            op
            for op, may in sorted(program.dispatches.items())
            if may.be_folded and isinstance(dispatches.get(op), Here)
        ),
        spread_keys={
            op: len(by.spread.cut)
            for op, by in dispatches.items()
            if isinstance(by, Shares) and len(by.spread)
        },
        loads=loads,
        imbalance={
            op: imbalance([by_slot[s] for s in plan.slots_of(op)]) for op, by_slot in loads.items()
        },
        operator_ms=_operator_ms(working, plan.slots),
        moving_ms=_operator_ms(moving, plan.slots),
        operator_cpu_ms=_total_ms((t.operator, t.cpu_ns) for t in working),
        operator_wait_ms=_total_ms((t.operator, t.wait_ns) for t in working),
        operator_rows=dict(sorted(operator_rows.items())),
        state=_state_sizes(program, plan, total, {} if before is None else before.state),
        sink_rows={s: sum(f["rows"] for f in files) for s, files in total.sinks.items()},
        late_rows=total.late,
        dead_rows=total.dead,
        moved_rows=total.moved,
        routing_version=plan.routing_version,
        watermark_us=plan.clock.watermark_us,
        now_ms=plan.clock.now_ms,
        latency=ages_of(program, total),
        tasks=tuple(map(len, plan.at_work)),
        instances={op: route.slots for op, route in sorted(plan.routes.items()) if route.slots},
        engine=result.engine,
        trigger=result.trigger,
    )


def _by_operator(counts: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    return {op: sum(by_slot.values()) for op, by_slot in sorted(counts.items())}


def imbalance(loads: Sequence[int]) -> float | None:
    """Busiest instance over the mean; None without load."""
    total = sum(loads)
    return max(loads) * len(loads) / total if total else None


def _state_sizes(
    program: Program,
    plan: EpochPlan,
    total: Control,
    before: Mapping[str, Mapping[int, StateSize]],
) -> dict[str, dict[int, StateSize]]:
    sizes = {}
    for node in program.stateful:
        slots = plan.slots_of(node.name)
        by_slot = {s: size for s, size in before.get(node.name, {}).items() if s in slots}
        for slot, (rows, size) in total.state.get(node.name, {}).items():
            by_slot[int(slot)] = StateSize(rows, size)
        sizes[node.name] = by_slot
    return sizes


def _bytes_by_distance(
    plan: EpochPlan,
    total: Control,
    edges: Mapping[str, EdgeFacts],
    hosts: Sequence[str],
) -> dict[str, int]:
    """Bytes between slots: that never left the slot, its host, its rack, and the rest.

    As placed: a task that Spark ran elsewhere still counts where its slot belongs. Without hosts
    (no cluster) all slots are on one.
    """
    known = hosts if len(hosts) == plan.slots else ["here"] * plan.slots
    near = Distances.of(known, plan.racks or None).near
    spent = dict.fromkeys(CLASSES, 0)
    spent["slot"] = sum(e.local_bytes for e in edges.values() if e.between_slots)
    for name, counts in total.sent.items():
        level, producer, slot = parse_pair(name)
        if level > 0 and producer != slot:
            spent[CLASSES[near[producer, slot]]] += counts[3]
    return spent


def _edges(program: Program, total: Control) -> dict[str, EdgeFacts]:
    facts = {}
    for edge in program.graph.edges:
        counts, by = total.edges.get(str(edge.id)), edge.grouping
        if counts is None:
            continue
        local_rows, remote_rows, local_bytes, remote_bytes = counts
        facts[edge_name(program.graph, edge)] = EdgeFacts(
            local_rows=local_rows,
            remote_rows=remote_rows,
            local_bytes=local_bytes,
            remote_bytes=remote_bytes,
            locality=local_rows / (local_rows + remote_rows) if local_rows + remote_rows else None,
            between_slots=program.output_level[edge.producer] > 0,
            # its kind, or the way of a keyed one to deal with hot keys
            grouping=by.kind if by.by in (*TO_OWNERS, "partial") else by.by,
        )
    return facts


def _batches(program: Program, total: Control) -> dict[str, BatchFacts]:
    """Batch tuples of rows by edge; of shared ones by all the edges they are for."""
    facts = {}
    for name, (tuples, rows, size) in sorted(total.batches.items()):
        if name.startswith("s"):
            channel = int(name[1:])
            edges = program.shared_channels[channel].edges_of(channel)
            consumers = "+".join(program.graph.nodes[e.consumer].name for e in edges)
            name = f"{program.graph.nodes[edges[0].producer].name}->{consumers} (shared)"
        else:
            name = edge_name(program.graph, program.graph.edges[int(name)])
        facts[name] = BatchFacts(tuples, rows, size)
    return facts


def _total_ms(spent: Iterable[tuple[str, int]]) -> dict[str, float]:
    total: Counter[str] = Counter()
    for operator, nanoseconds in spent:
        total[operator] += nanoseconds
    return {op: round(ns / 1e6, 3) for op, ns in sorted(total.items()) if ns}


def _operator_ms(timings: Iterable[Timing], slots: int) -> dict[str, tuple[float, ...]]:
    spent: dict[str, list[float]] = {}
    for t in timings:
        by_slot = spent.setdefault(t.operator, [0.0] * slots)
        by_slot[t.producer % slots if t.level == 0 else t.producer] += t.nanoseconds / 1e6
    return {op: tuple(round(ms, 3) for ms in by_slot) for op, by_slot in sorted(spent.items())}
