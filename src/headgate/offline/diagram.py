"""A flow as a small drawing: sources left, sinks right, each edge with what it carried.

Nodes come from the checkpoint's description; edges from it too if it has them, else from what the
journal counted. Plain SVG with CSS classes; the page decides how it looks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from headgate.commit.facts import EpochFacts
from headgate.offline.views import short

# Pixels; a box has room for 18 letters of a name, a gap for "123 k rows".
_BOX_W, _BOX_H, _GAP_X, _GAP_Y, _PAD = 148, 54, 132, 26, 10


@dataclass(frozen=True)
class Box:
    name: str
    kind: str
    note: str


@dataclass(frozen=True)
class Arrow:
    producer: str
    consumer: str
    above: str = ""
    below: str = ""


def draw(describe: Mapping[str, Any], epochs: Sequence[EpochFacts]) -> str:
    """The SVG of a flow and of the rows that went along its edges."""
    boxes = _boxes(describe)
    arrows = _arrows(describe, epochs, boxes)
    column = _columns(boxes, arrows)
    place = _places(boxes, column)
    width = (max(column.values(), default=0) + 1) * (_BOX_W + _GAP_X) - _GAP_X + 2 * _PAD
    height = max(y for _, y in place.values()) + _BOX_H + _PAD
    body = [_arrow(a, *place[a.producer], *place[a.consumer]) for a in arrows]
    body += [_box(box, *place[name]) for name, box in boxes.items()]
    head = (
        '<defs><marker id="flow-tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M0 0 8 4 0 8z" class="tip"/></marker></defs>'
    )
    return (
        f'<svg class="flow" viewBox="0 0 {width} {height}" style="max-width:{width}px" '
        f'role="img" aria-label="flow {escape(str(describe["flow"]))}">{head}{"".join(body)}</svg>'
    )


def _boxes(describe: Mapping[str, Any]) -> dict[str, Box]:
    boxes = {name: Box(name, "source", "source") for name in describe["sources"]}
    for name in describe["stateless"]:
        boxes[name] = Box(name, "stateless", "stateless")
    for name, operator in describe["operators"].items():
        kind = operator["settings"].get("operator", "stateful")
        key = ", ".join(operator["key"]) or "one key"
        boxes[name] = Box(name, "stateful", f"{kind} by {key}")
    for name, kind in describe["sinks"].items():
        boxes[name] = Box(name, "sink", f"{kind} sink")
    return boxes


def _arrows(
    describe: Mapping[str, Any], epochs: Sequence[EpochFacts], boxes: Mapping[str, Box]
) -> list[Arrow]:
    counted: dict[tuple[str, str], list[int]] = {}
    between = set()
    for facts in epochs:
        for name, edge in facts.edges.items():
            producer, _, consumer = name.partition("->")
            total = counted.setdefault((producer, consumer), [0, 0])
            total[0] += edge.local_rows
            total[1] += edge.remote_rows
            if edge.between_slots:
                between.add((producer, consumer))
    pairs = [(e["producer"], e["consumer"]) for e in describe.get("edges", ())] or list(counted)
    pairs = [pair for pair in pairs if pair[0] in boxes and pair[1] in boxes]
    if "edges" not in describe:
        leaves = [b.name for b in boxes.values() if b.kind != "sink"]
        leaves = [name for name in leaves if name not in {producer for producer, _ in pairs}]
        if len(leaves) == 1:  # only then is it certain where the sinks hang
            pairs += [(leaves[0], b.name) for b in boxes.values() if b.kind == "sink"]
    written: dict[str, int] = {}
    for facts in epochs:
        for sink, rows in facts.sink_rows.items():
            written[sink] = written.get(sink, 0) + rows
    arrows = []
    for pair in dict.fromkeys(pairs):
        local, remote = counted.get(pair, [0, 0])
        rows = local + remote or written.get(pair[1], 0)
        share = f"{local / (local + remote):.0%} stay" if pair in between and rows else ""
        arrows.append(Arrow(*pair, f"{short(rows)} rows" if rows else "", share))
    return arrows


def _columns(boxes: Mapping[str, Box], arrows: Sequence[Arrow]) -> dict[str, int]:
    """The longest way from a source; a flow has no cycles, so this ends."""
    column = dict.fromkeys(boxes, 0)
    for _ in boxes:
        for arrow in arrows:
            column[arrow.consumer] = max(column[arrow.consumer], column[arrow.producer] + 1)
    return column


def _places(boxes: Mapping[str, Box], column: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    members: dict[int, list[str]] = {}
    for name in boxes:
        members.setdefault(column[name], []).append(name)
    tallest = max(len(names) for names in members.values())
    place = {}
    for number, names in members.items():
        top = _PAD + (tallest - len(names)) * (_BOX_H + _GAP_Y) // 2
        for row, name in enumerate(names):
            place[name] = (_PAD + number * (_BOX_W + _GAP_X), top + row * (_BOX_H + _GAP_Y))
    return place


def _box(box: Box, x: int, y: int) -> str:
    middle = x + _BOX_W // 2
    return (
        f'<g class="box {box.kind}"><title>{escape(box.name)}: {escape(box.note)}</title>'
        f'<rect x="{x}" y="{y}" width="{_BOX_W}" height="{_BOX_H}" rx="9"/>'
        f'<text x="{middle}" y="{y + 23}" class="name">{escape(_cut(box.name, 18))}</text>'
        f'<text x="{middle}" y="{y + 41}" class="note">{escape(_cut(box.note, 22))}</text></g>'
    )


def _arrow(arrow: Arrow, x1: int, y1: int, x2: int, y2: int) -> str:
    x1, y1, y2 = x1 + _BOX_W, y1 + _BOX_H // 2, y2 + _BOX_H // 2
    bend = (x2 - x1) // 2
    at_x, at_y = x1 + bend, (y1 + y2) // 2
    return (
        f'<path class="edge" marker-end="url(#flow-tip)" '
        f'd="M{x1} {y1}C{x1 + bend} {y1} {x2 - bend} {y2} {x2 - 2} {y2}"/>'
        f'<text x="{at_x}" y="{at_y - 8}" class="carried">{escape(arrow.above)}</text>'
        f'<text x="{at_x}" y="{at_y + 18}" class="carried">{escape(arrow.below)}</text>'
    )


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
