"""Programs and plans made by hand, for tests that need one task and no engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from headgate import Flow
from headgate.operator.rows import EpochClock
from headgate.routing.identity import Identity
from headgate.routing.route import TO_OWNER, Dispatch, Route
from headgate.routing.table import RoutingTable, hash_table
from headgate.slot.compile import compile_flow
from headgate.slot.plan import EpochPlan
from headgate.slot.program import Program
from headgate.topology.stream import Stream

BUCKETS = 16


def nothing(*_: Any) -> Any:
    raise AssertionError("not to be called")


def source(flow: Flow, schema: Any = "k bigint, v string", **options: Any) -> Stream:
    return flow.source(nothing, schema=schema, **options)


def plan_for(
    program: Program,
    slots: int = 3,
    tables: dict[str, RoutingTable] | None = None,
    dispatch: Mapping[str, Dispatch] | None = None,
    **options: Any,
) -> EpochPlan:
    keyed = {
        n.name
        for n in program.graph.nodes
        if any(e.grouping.keyed for e in program.graph.inputs(n.id))
    }
    chosen = {name: hash_table(slots, BUCKETS) for name in keyed} | (tables or {})
    usual = {name: may.usual for name, may in program.dispatches.items()} | (dispatch or {})
    given: dict[str, Any] = {
        "epoch": 4,
        "slots": slots,
        "clock": EpochClock(4, 0),
        "routes": {op: Route(chosen[op], usual.get(op, TO_OWNER)) for op in keyed},
        "chains": {},
        "storage_uri": "/nowhere",
        "warm_dir": None,
        "buckets": BUCKETS,
        "sink_uris": {},
        "identity": Identity(bytes(16)),
    }
    return EpochPlan(**given | options)


def compiled(flow: Flow) -> Program:
    return compile_flow(flow.graph())


def batch(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)
