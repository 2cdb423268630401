"""What the paper's optimizer asks for (Sax et al. 2013), as measured on a flow that runs on Spark.

- ppt: an operator's time per row that it takes in, from the epochs of a probe. What an epoch takes
  in it without rows is left out, where epochs of two sizes tell.
- t: bytes of a row on an edge, from the batch tuples that were sent. Edges inside a task send none;
  there it is what the step's output takes in Arrow, from a sample that is run by hand.
- the spout's rate: rows of an epoch by the time of its longest source task, which reads them, turns
  them into Arrow and into batch tuples.
- n and s: of `headgate calibrate`.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from headgate.commit.facts import EpochFacts
from headgate.control.epoch_lines import line_of
from headgate.planner.tuning.cost_model import FlowModel, Step, Stream
from headgate.slot.plan import edge_name
from headgate.topology.graph import STATELESS, FlowGraph, Node
from headgate_lab.bench.probing import Known, ppt_s
from headgate_lab.bench.tune_flows import SPOUT, BenchFlow

SAMPLE_ROWS = 500


def measured_inputs(known: Known, flow: BenchFlow) -> FlowModel:
    """Steps and streams of the flow without its sinks."""
    graph = flow.program.graph
    seen = [epoch for epoch in known.epochs if epoch.rows]
    rows_in = {n.name: float(_rows_into(n.name, seen)) for n in graph.nodes}
    inside = [n for n in graph.nodes if n.kind not in ("source", "sink")]
    steps = [Step(SPOUT, source_rate=spout_rate(seen), source_dop=known.model.source_tasks)]
    steps += [Step(n.name, ppt_s(seen, n.name)) for n in inside]
    sampled = _sampled_bytes(graph, flow.make(SAMPLE_ROWS, 0).to_batches()[0])
    kept = {step.name for step in steps}
    streams = []
    for edge in graph.edges:
        producer, consumer = graph.nodes[edge.producer].name, graph.nodes[edge.consumer].name
        if consumer not in kept:
            continue
        facts = [e.edges[name] for e in seen if (name := edge_name(graph, edge)) in e.edges]
        rows = float(sum(f.rows for f in facts)) or rows_in[consumer]
        size = sum(f.local_bytes + f.remote_bytes for f in facts)
        streams.append(
            Stream(
                producer,
                consumer,
                rows_per_row=rows / rows_in[producer] if rows_in[producer] else 0.0,
                row_bytes=size / rows if size else sampled.get(producer, 0.0),
            )
        )
    return FlowModel(tuple(steps), tuple(streams))


def spout_rate(seen: Sequence[EpochFacts]) -> float:
    """Rows per second that the source tasks bring together, while the longest of them runs."""
    sizes = [epoch.rows for epoch in seen]
    spent = [epoch.engine.levels_ms.get(0, 0.0) / 1e3 for epoch in seen]
    row_s = line_of(sizes, spent).row_s or sum(spent) / sum(sizes)
    return 1.0 / row_s


def _rows_into(name: str, seen: Sequence[EpochFacts]) -> int:
    """A source takes in what it brings."""
    return sum(e.source_rows.get(name, 0) or e.operator_rows.get(name, 0) for e in seen)


def _sampled_bytes(graph: FlowGraph, rows: pa.RecordBatch) -> dict[str, float]:
    """Bytes of a row that a step puts out, as far as stateless steps follow the source."""
    made: dict[int, pa.RecordBatch] = {}
    for node in graph.nodes:
        if node.kind == "source":
            made[node.id] = rows
        elif node.kind in STATELESS and (into := graph.inputs(node.id)):
            before = made.get(into[0].producer)
            if before is not None and not node.spec.per_row:
                made[node.id] = _run(node, before)
    return {graph.nodes[i].name: b.nbytes / b.num_rows for i, b in made.items() if b.num_rows}


def _run(node: Node, rows: pa.RecordBatch) -> pa.RecordBatch:
    answer = node.spec.function(rows)
    if node.kind == "filter":
        return rows.filter(answer if isinstance(answer, pa.Array) else pa.array(answer))
    if node.kind == "flat_map":
        answer = answer[0]
    if isinstance(answer, dict):
        columns = [answer[name] for name in node.schema.names]
        return pa.RecordBatch.from_arrays(columns, schema=node.schema)
    return answer
