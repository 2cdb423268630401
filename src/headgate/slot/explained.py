"""What a flow does, as lines of a table: for `print`, and for notebooks as HTML."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from headgate.slot.program import Program
from headgate.topology.expressions import Columns, Condition
from headgate.topology.graph import FlowGraph, Node
from headgate.topology.late import LateRows
from headgate.topology.lookup import Lookup
from headgate.topology.text import plain_text, without_addresses

WIDE_MAX = 60  # letters of a cell


@dataclass(frozen=True)
class Explained:
    """A title, a table and remarks; prints as text, and as HTML in a notebook."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    remarks: Sequence[str] = ()

    def __str__(self) -> str:
        table = [[plain_text(cell) for cell in row] for row in (self.header, *self.rows)]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in table
        ]
        return "\n".join([self.title, *(f"  {line}" for line in lines), *self.remarks])

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        def cells(row: Sequence[str], tag: str) -> str:
            inside = "".join(f"<{tag}>{escape(plain_text(cell))}</{tag}>" for cell in row)
            return f"<tr>{inside}</tr>"

        body = "".join(cells(row, "td") for row in self.rows)
        remarks = "".join(f"<p>{escape(plain_text(line))}</p>" for line in self.remarks)
        head = cells(self.header, "th")
        return f"<b>{escape(self.title)}</b><table>{head}{body}</table>{remarks}"


def explained_flow(graph: FlowGraph) -> Explained:
    """What was declared: a line for every source, operator and sink."""
    rows = [_declared(graph, node) for node in graph.nodes]
    return Explained(f"Flow {graph.name!r}", ("name", "what", "from", "rows"), rows)


def explained_run(
    program: Program,
    title: str,
    instances: Mapping[str, Sequence[int]],
    pins: Mapping[str, int],
    remarks: Iterable[str],
) -> Explained:
    """The same of a flow that runs, with where its operators are now."""
    rows = []
    for node in program.graph.nodes:
        slots, level, route = "", "", ""
        if node.kind not in ("source", "sink"):
            level = str(program.depth[node.id])
            slots = ", ".join(map(str, instances[node.name])) if node.name in instances else "all"
        if node.name in pins and node.kind == "stateful":
            route = f"{pins[node.name]} keys placed" if pins[node.name] else "by hash"
        rows.append([*_declared(program.graph, node), level, slots, route])
    header = ("name", "what", "from", "rows", "level", "slots", "route")
    return Explained(title, header, rows, tuple(remarks))


def _declared(graph: FlowGraph, node: Node) -> list[str]:
    sides = [
        f"{graph.nodes[edge.producer].name}{_way(edge.grouping)}" for edge in graph.inputs(node.id)
    ]
    columns = ", ".join(f"{field.name} {field.type}" for field in node.schema)
    return [node.name, _short(_what(node)), _short("; ".join(sides)), _short(columns)]


def _what(node: Node) -> str:
    if node.kind == "stateful":
        order = f", in order of {node.order_by}" if node.order_by else ""
        return f"{without_addresses(repr(node.spec))}{order}"
    if node.kind == "sink":
        return f"sink: {node.spec.kind} {node.spec.target or ''}".rstrip()
    if node.kind == "source":
        return f"source: {type(node.spec.frame).__name__}"
    function = node.spec.function
    if isinstance(function, Condition):
        return f"filter {function.text}"
    if isinstance(function, LateRows):
        return f"rows late for {function.of}"
    if isinstance(function, Columns):
        made = [f"{c.field.name} = {c.text}" for c in function.columns if c.expression is not None]
        return f"columns {', '.join(made or function.schema.names)}"
    if isinstance(function, Lookup):
        return f"lookup ({function.how}) in {function.text} by {', '.join(function.key)}"
    return f"{node.kind} {getattr(function, '__name__', type(function).__name__)}"


def _way(grouping: object) -> str:
    kind, key, by = (getattr(grouping, name) for name in ("kind", "key", "by"))
    if kind == "local":
        return ""
    how = f", {by}" if kind == "fields" and by != "auto" else ""
    names = {"fields": "by ", "cost": "by the cost of ", "all": "to all", "global": "to one"}
    return f" ({names.get(kind, kind)}{', '.join(key)}{how})"


def _short(text: str) -> str:
    return text if len(text) <= WIDE_MAX else text[: WIDE_MAX - 1] + "…"
