"""From a declared flow to a program, on the driver: levels, columns, the clocks of an epoch.

Columns that no later operator wants never leave the source.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pyarrow as pa

from headgate.errors import DeclarationError
from headgate.operator.rows import EpochClock
from headgate.routing.route import end_level, last_fold
from headgate.slot.program import ORDER, Program, arriving, is_ordered, usual_dispatch
from headgate.topology.expressions import Columns, Condition
from headgate.topology.files import Files
from headgate.topology.graph import STATELESS, FlowGraph, Node
from headgate.topology.late import LateRows
from headgate.topology.lookup import Lookup

_PICKLER = "_headgate_cloudpickle"


def compile_flow(graph: FlowGraph) -> Program:
    """Depths, column pruning and lineage of a flow; linear in its size."""
    edge_columns, wanted = _prune(graph)
    levels: dict[str, Any] = dict(_levels(graph))
    schemas: dict[int, pa.Schema] = {}
    pruned: dict[int, Node] = {}
    for node in (graph.nodes[index] for index in graph.order):
        schema = node.schema
        if node.kind == "source":
            kept = [f for f in schema if f.name in wanted[node.id]] or [schema.field(0)]
            schema = pa.schema(kept)
        elif node.kind == "stateful":
            given = arriving(graph, node.id, edge_columns, schemas)
            schema = node.spec.output_schema(given, node.key)
        elif node.kind in STATELESS:
            pruned[node.id] = _only(
                node, wanted[node.id], arriving(graph, node.id, edge_columns, schemas)
            )
            schema = pruned[node.id].schema
        schemas[node.id] = schema
    nodes = tuple(pruned.get(node.id, node) for node in graph.nodes)
    return Program(
        _without_engine_objects(replace(graph, nodes=nodes)),
        **levels,
        edge_columns=edge_columns,
        node_schema=schemas,
        lineage=(ORDER,) if any(is_ordered(n) for n in graph.nodes) else (),
    )


def _levels(graph: FlowGraph) -> dict[str, dict[int, int]]:
    """For every node: in which level rows are with the owners of their keys, in which it ends, in
    which it processes its last rows, and in which it may put out the last.
    """
    home: dict[int, int] = {}
    depth: dict[int, int] = {}
    rows: dict[int, int] = {}
    output: dict[int, int] = {}
    for node in (graph.nodes[index] for index in graph.order):
        steps = [output[e.producer] + e.grouping.exchanges for e in graph.inputs(node.id)]
        dispatch = usual_dispatch(graph, node)
        home[node.id] = max(steps, default=0)
        depth[node.id] = end_level(dispatch, home[node.id])
        folded = last_fold(dispatch, home[node.id])
        rows[node.id] = home[node.id] if folded is None else folded
        passes_on = folded is not None and not node.spec.emits_at_end
        output[node.id] = rows[node.id] if passes_on else depth[node.id]
    return {"home_level": home, "depth": depth, "rows_level": rows, "output_level": output}


def _prune(graph: FlowGraph) -> tuple[dict[int, tuple[str, ...]], dict[int, set[str]]]:
    """Walk backwards: which columns does each edge, and so each node's output, have to carry?"""
    wanted: dict[int, set[str]] = {n.id: set() for n in graph.nodes}
    columns: dict[int, tuple[str, ...]] = {}
    for index in reversed(graph.order):
        node = graph.nodes[index]
        if node.kind == "source":
            wanted[index] |= {node.spec.event_time, node.spec.arrival} - {None}
        inputs = graph.inputs(index)
        for edge in inputs:
            # Of a union the columns are in the order of the first stream.
            first = next(e for e in inputs if e.side == edge.side)
            produced = graph.nodes[first.producer].schema
            needed = set(produced.names)
            if node.kind == "stateful" and node.spec.sides is not None:
                needed = node.spec.sides.needs(edge.side, wanted[index])
            elif node.kind == "stateful":
                needed = set(node.spec.needs(produced, node.key, wanted[index]))
            elif node.kind in STATELESS:
                needed = node.spec.needs(produced.names, wanted[index])
            needed |= set(edge.grouping.key) | ({node.order_by} if node.order_by else set())
            columns[edge.id] = tuple(name for name in produced.names if name in needed)
            wanted[edge.producer] |= needed
    return columns, wanted


def _only(node: Node, wanted: set[str], given: pa.Schema) -> Node:
    """A stateless operator that makes no column that nobody wants, if it is one that can tell."""
    function = node.spec.function
    if isinstance(function, Condition | LateRows):
        return replace(node, schema=given)
    if isinstance(function, Lookup):
        function = function.only(given, wanted)
        schema = function.output(given)
        return replace(node, schema=schema, spec=replace(node.spec, function=function))
    if isinstance(function, Columns):
        function = function.only(wanted)
        return replace(node, schema=function.schema, spec=replace(node.spec, function=function))
    return node


def _without_engine_objects(graph: FlowGraph) -> FlowGraph:
    def strip(node: Node) -> Node:
        if node.kind == "source" and not isinstance(node.spec.frame, Files):
            return replace(node, spec=replace(node.spec, frame=None))
        if node.kind == "sink" and node.spec.kind == "function":
            return replace(node, spec=replace(node.spec, target=None))
        return node

    return replace(graph, nodes=tuple(strip(n) for n in graph.nodes))


# --- the way to the workers --------------------------------------------------------------------


def packed(program: Program, dumps: Callable[[Any], bytes]) -> bytes:
    """The program, pickled by `dumps`."""
    try:
        return bytes(dumps(program))
    except Exception as problem:
        for node in program.order:
            try:
                dumps(node)
            except Exception as reason:
                raise DeclarationError(
                    f"{node.kind} {node.name!r} cannot be sent to Spark's workers: "
                    f"{type(reason).__name__}: {reason}. What it is given or refers to must be "
                    "picklable; make locks, clients and open files inside the function, at its "
                    "first call",
                    operator=node.name,
                ) from reason
        raise DeclarationError(
            f"the flow cannot be sent to Spark's workers: {type(problem).__name__}: {problem}"
        ) from problem


def check_travels(program: Program) -> None:
    """Refuse what Spark could not send to its workers; says nothing where Spark is not installed.

    Spark's pickler is one file that imports nothing of Spark, and is loaded as that file: pyspark
    itself is not imported.
    """
    if _PICKLER not in sys.modules:
        spark = find_spec("pyspark")
        if spark is None or spark.origin is None:
            return
        path = Path(spark.origin).parent / "cloudpickle" / "cloudpickle.py"
        spec = spec_from_file_location(_PICKLER, path)
        if not path.exists() or spec is None or spec.loader is None:
            return
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules[_PICKLER] = module
    packed(program, sys.modules[_PICKLER].dumps)


# --- event time behind windows -----------------------------------------------------------------
# What a window emits is as old as the window: measured by the flow's watermark it would be late for
# the next window. So the watermark of an operator is what its inputs still hold back: the flow's at
# a source, the start of the first open window behind a window, the least where streams merge. A
# window closes in the same epoch as the windows before it, once these have handed over their rows;
# it takes rows of every window that it has not closed in an earlier epoch. So nothing is lost, and
# all follows from the two watermarks that the last manifest names.


def clocks_behind_windows(program: Program, clock: EpochClock) -> dict[str, EpochClock]:
    """The clocks of the operators whose time is not the flow's, by name.

    Examples:
        >>> import headgate as hg
        >>> from headgate.slot.compile import compile_flow
        >>> from headgate.testing import ListSource
        >>> flow = hg.Flow("f")
        >>> rows = flow.source(ListSource("k string, t timestamp", []), event_time="t")
        >>> hours = rows.key_by("k").process(hg.Count(window=hg.Tumbling("1 hour", time="t")))
        >>> days = hg.Sum("count", window=hg.Tumbling("1 day", time="window_start"))
        >>> _ = hours.globally().process(days, name="days")
        >>> program = compile_flow(flow.graph())
        >>> clocks_behind_windows(program, EpochClock(1, 0, 3_600_000_007))["days"].watermark_us
        3600000000
    """
    if clock.watermark_us is None:
        return {}
    now = _marks(program, clock.watermark_us)
    before: dict[int, int] = {}
    if clock.previous_watermark_us is not None:
        before = _marks(program, clock.previous_watermark_us)
    return {
        node.name: replace(
            clock,
            watermark_us=now[node.id],
            previous_watermark_us=before.get(node.id),
        )
        for node in program.stateful
        if node.id in now
    }


def is_closing_due(program: Program, used_us: int | None, known_us: int | None) -> bool:
    """Would an epoch without rows emit windows, with the watermark that is known by now?

    `used_us` is the watermark that the last epoch went by. An operator that acts at the end of
    every epoch and does not say what it holds back may act whenever the watermark has moved.
    """
    if known_us is None or known_us == used_us:
        return False
    ending = [node for node in program.stateful if node.spec.ends_epochs]
    if used_us is None:
        return bool(ending)
    before, now = _marks(program, used_us), _marks(program, known_us)
    for node in ending:
        held = node.spec.held_from(now.get(node.id, known_us))
        if held is None or held != node.spec.held_from(before.get(node.id, used_us)):
            return True
    return False


def _marks(program: Program, watermark_us: int) -> dict[int, int]:
    """Up to where the input of each operator behind a window is complete, if the flow's is here."""
    behind: dict[int, int] = {}
    held_back: dict[int, int] = {}
    for node in program.order:
        producers = [edge.producer for edge in program.graph.inputs(node.id)]
        mark = watermark_us
        if any(producer in held_back for producer in producers):
            mark = min(held_back.get(producer, watermark_us) for producer in producers)
            behind[node.id] = held_back[node.id] = mark
        if node.kind == "stateful":
            held = node.spec.held_from(mark)
            if node.holds_back:  # rows that waited, and what timers emit, are as old as that
                held = mark if held is None else min(held, mark)
            if held is not None:
                held_back[node.id] = held
    return behind
