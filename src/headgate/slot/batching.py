"""How rows become batch tuples: rows per tuple on each edge, and what several consumers share.

Inert data, part of an epoch's plan. Batching is transparent: no operator sees it and no result
depends on it. An edge without a number gets tuples as large as a payload may be.

Sax et al. 2013 batch for several consumers with different keys in one of two ways. *Distinct*: a
row goes into one buffer for each consumer. *Shared*: buffers form a matrix, a cell for every
combination of target slots; a row goes into one cell, whose batch is sent to all of them, and once
only to consumers in one slot. "auto" takes the cheaper, if a message costs `message_s` and a byte
`byte_s`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from headgate.errors import DeclarationError
from headgate.topology.declared import check_count
from headgate.topology.graph import Edge, FlowGraph

Scheme = Literal["auto", "distinct", "shared"]
BatchRows = int | Mapping[str, int] | None
# What a tuple and its bytes cost an exchange on two cores; `headgate calibrate` measures them.
MESSAGE_S = 150e-6
BYTE_S = 3e-9


@dataclass(frozen=True)
class Batching:
    """`rows[edge]` is how many rows a batch tuple of an edge holds (absent: all that fit)."""

    rows: Mapping[int, int] = field(default_factory=dict)
    scheme: Scheme = "auto"
    message_s: float = MESSAGE_S
    byte_s: float = BYTE_S

    def __post_init__(self) -> None:
        if self.scheme not in get_args(Scheme):
            known = ", ".join(map(repr, get_args(Scheme)))
            raise DeclarationError(f"sharing={self.scheme!r}; choose one of {known}")
        for rows in self.rows.values():
            check_count(rows, "rows of a batch")

    def rows_max(self, *edges: Edge) -> int | None:
        """Rows of a batch for all of these edges."""
        return min((self.rows[e.id] for e in edges if e.id in self.rows), default=None)


def batching_of(
    graph: FlowGraph,
    batch: BatchRows,
    sharing: Scheme = "auto",
    *,
    message_s: float = MESSAGE_S,
    byte_s: float = BYTE_S,
) -> Batching:
    """What was declared on the edges, then what is asked for: one number, or one per
    "producer->consumer".
    """
    rows = {e.id: e.grouping.batch_rows for e in graph.edges if e.grouping.batch_rows is not None}
    edges = {edge_name(graph, e): e for e in graph.edges if graph.exchanges(e)}
    if isinstance(batch, Mapping):
        for name, count in batch.items():
            if name not in edges:
                raise DeclarationError(
                    f"batch_rows= names {name!r}; edges that send batches are {', '.join(edges)}"
                )
            rows[edges[name].id] = count
    elif batch is not None:
        rows = {e.id: batch for e in edges.values()}
    return Batching(rows, sharing, message_s, byte_s)


def edge_name(graph: FlowGraph, edge: Edge) -> str:
    return f"{graph.nodes[edge.producer].name}->{graph.nodes[edge.consumer].name}"
