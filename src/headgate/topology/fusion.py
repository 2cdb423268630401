"""Leave out shuffles of rows that are spread evenly already.

A shuffle deals rows round robin over the slots. Stateless steps behind it keep about even numbers
in every slot, so a second shuffle behind them would cost an exchange (a round of tasks, and every
row's bytes) and even out nothing. Such an edge becomes a local one, and the steps run as a chain
in one task. It stays an exchange if rows come any other way too, or if the user gave it a batch
size. No result depends on it: stateless steps do not know their slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from headgate.topology.graph import Edge, Grouping, Node

STATELESS = ("map", "filter", "flat_map")


def without_needless_shuffles(nodes: Sequence[Node], edges: Sequence[Edge]) -> tuple[Edge, ...]:
    """The edges, in their order; nodes are declared before what they feed."""
    inputs: dict[int, list[Edge]] = {node.id: [] for node in nodes}
    for edge in edges:
        inputs[edge.consumer].append(edge)
    even: dict[int, bool] = {}
    for node in nodes:
        even[node.id] = (
            node.kind in STATELESS
            and bool(inputs[node.id])
            and all(_arrives_evenly(edge, even) for edge in inputs[node.id])
        )
    return tuple(
        replace(edge, grouping=Grouping("local")) if _is_needless(edge, even) else edge
        for edge in edges
    )


def _arrives_evenly(edge: Edge, even: dict[int, bool]) -> bool:
    kind = edge.grouping.kind
    return kind == "shuffle" or (kind == "local" and even.get(edge.producer, False))


def _is_needless(edge: Edge, even: dict[int, bool]) -> bool:
    grouping = edge.grouping
    return grouping.kind == "shuffle" and grouping.batch_rows is None and even[edge.producer]
