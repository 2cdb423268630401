"""A journal as one HTML file: no script, no link, nothing to install; light and dark.

A figure without data is left out, so a journal without timings shows fewer figures.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch

from headgate.commit.facts import EpochFacts, StartFacts, StateSize, facts_of
from headgate.commit.facts_json import Json
from headgate.commit.inspection import Inspection
from headgate.offline import page
from headgate.offline.report_tiles import changes, tiles
from headgate.offline.views import (
    EPOCH_COLUMNS,
    EpochView,
    RunView,
    each_epoch,
    mean_error,
    percent,
    plan_views,
    short,
)

_SHOWN_EPOCHS = 200  # rows of a table, the newest; the journal has the others
_SHOWN_MOVES = 24
_REST = "Spark and waiting"


def write_report(
    checkpoint: str,
    out: Path,
    *,
    title: str | None = None,
    extras: Mapping[str, str] | None = None,
) -> Path:
    """Write the report of a checkpoint's journal; returns the file."""
    seen = Inspection(checkpoint)
    out.parent.mkdir(parents=True, exist_ok=True)
    text = render(seen.describe, seen.journal, title=title or seen.flow, extras=extras)
    out.write_text(text, encoding="utf-8")
    return out


def render(
    describe: Mapping[str, Any],
    journal: Sequence[Json],
    *,
    title: str,
    extras: Mapping[str, str] | None = None,
) -> str:
    """The whole page, from a flow's description and its journal.

    `extras` are sections that a command adds: HTML, already escaped, by heading.
    """
    epochs = each_epoch(journal)
    views = [EpochView.of(facts) for facts in epochs]
    run = RunView.of(views)
    rows = page.table(list(EPOCH_COLUMNS), [v.cells for v in views[-_SHOWN_EPOCHS:]], words=0)
    return page.render(
        title,
        _subtitle(describe, journal, views),
        tiles(views),
        {
            "The flow": page.card(_diagram(describe, epochs)),
            **(extras or {}),
            "Over time": _figures(epochs, views, run),
            "Operators": _operators(describe, epochs),
            "What the manager did": _plans(journal),
            "Events": _events(journal),
            "Epochs": f"<details><summary>All {len(views)} epochs as a table</summary>{rows}"
            "</details>",
        },
        "Made from the flow's journal by <code>headgate report</code>. Times are advisory: a task "
        "that Spark ran twice counts twice.",
    )


def _subtitle(
    describe: Mapping[str, Any], journal: Sequence[Json], views: Sequence[EpochView]
) -> str:
    parts = [f"flow {describe['flow']}"]
    if views:
        parts.append(f"epochs {views[0].epoch} to {views[-1].epoch}")
        parts.append(f"{views[-1].slots} slots")
    versions = [facts.spark for facts in facts_of(journal) if isinstance(facts, StartFacts)]
    return " · ".join([*parts, *(f"Spark {version}" for version in versions[-1:])])


# --- tables -----------------------------------------------------------------------------------
def _operators(describe: Mapping[str, Any], epochs: Sequence[EpochFacts]) -> str:
    head = ["operator", "kind", "key", "instances"]
    head += ["state rows", "state bytes", "rows in", "time per row"]
    last, rows = epochs[-1] if epochs else EpochFacts(0), []
    for name, operator in describe["operators"].items():
        state: dict[int, StateSize] = {}
        for facts in epochs:
            state |= facts.state.get(name, {})
        seen = sum(sum(facts.loads.get(name, ())) for facts in epochs)
        spent_ms = sum(sum(facts.operator_ms.get(name, ())) for facts in epochs)
        rows.append(
            [
                name,
                str(operator["settings"].get("operator", "")),
                ", ".join(operator["key"]) or "(one key)",
                str(len(last.instances.get(name, ())) or last.slots),
                short(sum(size.rows for size in state.values())),
                short(sum(size.bytes for size in state.values()), "B"),
                short(seen),
                f"{spent_ms * 1e6 / seen:.0f} ns" if seen and spent_ms else "–",
            ]
        )
    return page.table(head, rows, words=3) if rows else "<p>No stateful operator.</p>"


def _plans(journal: Sequence[Json]) -> str:
    """What the manager moved and why, what it promised and what that achieved."""
    plans = plan_views(journal)
    if not plans:
        return ""
    rows = [
        [
            str(plan.epoch),
            plan.why,
            f"{plan.moved_keys:,}",
            percent(plan.predicted_locality),
            percent(plan.achieved_locality),
        ]
        for plan in plans[-_SHOWN_EPOCHS:]
    ]
    html = page.table(
        ["epoch", "why", "keys moved", "predicted locality", "achieved"], rows, words=2
    )
    if (error := mean_error(plans)) is not None:
        html += f'<p class="aside">Mean error of the predicted locality: {error:.3f}.</p>'
    moves = [line for plan in plans for line in plan.top_moves][:_SHOWN_MOVES]
    if moves:
        items = "".join(f"<li>{escape(line)}</li>" for line in moves)
        html += f'<p class="aside">The heaviest moves, first plans first:</p><ul>{items}</ul>'
    return html


def _events(journal: Sequence[Json]) -> str:
    """Everything but epochs, starts and plans: retries, scalings."""
    others = [r for r in journal if r["kind"] not in ("epoch", "start", "plan", "outcome")]
    hidden = ("schema", "kind", "epoch")
    rows = [
        [
            str(r.get("epoch", "")),
            str(r["kind"]),
            ", ".join(f"{k}={str(v)[:120]}" for k, v in r.items() if k not in hidden)[:400],
        ]
        for r in others[-_SHOWN_EPOCHS:]
    ]
    return page.table(["epoch", "kind", "facts"], rows, words=3) if rows else ""


# --- figures ----------------------------------------------------------------------------------
def _figures(epochs: Sequence[EpochFacts], views: Sequence[EpochView], run: RunView) -> str:
    changed = changes(views)

    def over_epochs(axes: Axes) -> None:
        axes.set_xlabel("epoch")
        for epoch in changed:
            axes.axvline(epoch - 0.5, **page.REFERENCE | {"linewidth": 1})

    def rates(axes: Axes) -> None:
        over_epochs(axes)
        axes.bar(list(rate), list(rate.values()), 0.72, color=page.SERIES[0])
        median = run.rows_per_second_median
        if median is not None:
            axes.axhline(median, **page.REFERENCE, label=f"median {short(median)}")

    def shares(axes: Axes) -> None:
        over_epochs(axes)
        page.lines(axes, stayed)
        axes.set_ylim(0, 1)
        page.y_ticks(axes, "%")

    def ratios(axes: Axes) -> None:
        over_epochs(axes)
        page.lines(axes, uneven)
        axes.set_ylim(1, max(1.25, axes.get_ylim()[1]))
        page.y_ticks(axes, "×")

    def latencies(axes: Axes) -> None:
        over_epochs(axes)
        page.lines(axes, late)
        axes.set_ylim(bottom=0)
        page.y_ticks(axes, "s")

    def loads(axes: Axes) -> None:
        page.load_bars(axes, busy)
        axes.axhline(1, **page.REFERENCE)

    def stacked(name: str, parts: Mapping[str, Mapping[int, float]], unit: str) -> str:
        def paint(axes: Axes) -> None:
            over_epochs(axes)
            floor: Counter[int] = Counter()
            for i, (label, values) in enumerate(parts.items()):
                ink = page.SERIES[-1] if label == _REST else page.SERIES[i % len(page.SERIES)]
                bottom = [floor[epoch] for epoch in values]
                axes.bar(list(values), list(values.values()), 0.72, bottom, color=ink, label=label)
                floor.update(values)
            page.y_ticks(axes, unit)

        return page.figure(name, paint) if any(any(v.values()) for v in parts.values()) else ""

    rate = {v.epoch: v.rows_per_second for v in views if v.rows_per_second is not None}
    stayed: dict[str, list[tuple[float, float]]] = {}
    uneven: dict[str, list[tuple[float, float]]] = {}
    for facts in epochs:
        for name, edge in facts.edges.items():
            if edge.between_slots and edge.locality is not None:
                stayed.setdefault(name, []).append((facts.epoch, edge.locality))
        for name, ratio in facts.imbalance.items():
            if ratio is not None:
                uneven.setdefault(name, []).append((facts.epoch, ratio))
    moved = {
        "shuffled": {v.epoch: float(v.bytes_shuffled) for v in views},
        "local, in memory": {v.epoch: float(v.bytes_local) for v in views},
    }
    busy, late = _loads(epochs), _latencies(epochs)
    drawn = page.figures(
        [
            (
                "Rows per second",
                "Source rows over an epoch's planning and job.",
                page.figure("rate", rates) if rate else "",
            ),
            (
                "Latency of rows",
                "From their arrival at the source, or at least from the beginning of their epoch, "
                "to the commit of the last sink.",
                page.figure("latency", latencies) if late else "",
            ),
            (
                "Where the time goes",
                "The longest task of each level, as measured inside the Python workers.",
                stacked("time", _time_spent(epochs), "s"),
            ),
            (
                "Locality",
                "Rows whose next key lives in the slot they are in: they skip the shuffle.",
                page.figure("locality", shares) if stayed else "",
            ),
            (
                "Imbalance",
                "The busiest slot's rows over the mean of all slots; 1× is even.",
                page.figure("imbalance", ratios) if uneven else "",
            ),
            (
                "Bytes moved",
                "Through Spark's shuffle, or in memory from operator to operator.",
                stacked("bytes", moved, "B"),
            ),
            (
                "Load per slot",
                "Rows over the whole run against an even share.",
                page.figure("loads", loads) if busy else "",
            ),
        ]
    )
    if not changed or not drawn:
        return drawn
    said = "Dashed upright lines: from there on keys are in other slots, or there are other slots."
    return f'{drawn}<p class="aside">{said}</p>'


def _time_spent(epochs: Sequence[EpochFacts]) -> dict[str, dict[int, float]]:
    """Seconds of planning, of the longest task of each level, and of the rest, by epoch."""
    timed = {f.epoch: f.engine for f in epochs if f.engine.job_ms is not None}
    parts = {"planning": {e: (engine.plan_ms or 0.0) / 1e3 for e, engine in timed.items()}}
    for level in sorted({level for engine in timed.values() for level in engine.levels_ms}):
        name = "route (level 0)" if level == 0 else f"level {level}"
        parts[name] = {e: engine.levels_ms.get(level, 0.0) / 1e3 for e, engine in timed.items()}
    parts[_REST] = {
        e: max(0.0, (engine.job_ms or 0.0) - sum(engine.levels_ms.values())) / 1e3
        for e, engine in timed.items()
    }
    return parts


def _latencies(epochs: Sequence[EpochFacts]) -> dict[str, list[tuple[float, float]]]:
    """Seconds by epoch, a line per quantile; one line where rows have no times of arrival."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for facts in epochs:
        if facts.latency is None:
            continue
        at = facts.latency
        found = {"p99": at.p99_ms, "p95": at.p95_ms, "p50": at.p50_ms}
        if at.since == "trigger":
            found = {"at least": at.p50_ms}
        for name, ms in found.items():
            lines.setdefault(name, []).append((facts.epoch, ms / 1e3))
    return lines


def _loads(epochs: Sequence[EpochFacts]) -> dict[str, list[int]]:
    """Rows per slot of each operator, over the epochs with the last number of slots."""
    sums: dict[str, list[int]] = {}
    for facts in epochs:
        for name, loads in facts.loads.items():
            if len(loads) == epochs[-1].slots:
                so_far = sums.get(name, [0] * len(loads))
                sums[name] = [a + b for a, b in zip(so_far, loads, strict=True)]
    return {name: loads for name, loads in sums.items() if any(loads)}


# --- the flow ---------------------------------------------------------------------------------
def _diagram(describe: Mapping[str, Any], epochs: Sequence[EpochFacts]) -> str:
    """Sources left, sinks right, and on each edge the rows that it carried."""
    notes, shown = dict.fromkeys(describe["stateless"], "stateless"), dict[str, str]()
    for name, operator in describe["operators"].items():
        kind, key = operator["settings"].get("operator", "stateful"), ", ".join(operator["key"])
        notes[name] = f"{kind} by {key or 'one key'}"
    ends = [(name, "source", "source") for name in describe["sources"]]
    ends += [(name, "sink", f"{kind} sink") for name, kind in describe["sinks"].items()]
    for name, kind, note in ends:  # edges tell them apart from an operator, or a source, so
        inside = f"{name} ({kind})" if name in notes else name
        notes[inside], shown[inside] = note, name
    edges = [(edge["producer"], edge["consumer"]) for edge in describe["edges"]]
    column = dict.fromkeys(notes, 0)
    for _ in notes:  # the longest way from a source; a flow has no cycles, so this ends
        for producer, consumer in edges:
            column[consumer] = max(column[consumer], column[producer] + 1)
    members: dict[int, list[str]] = {}
    for name, at in column.items():
        members.setdefault(at, []).append(name)
    place = {
        name: (2.5 * at, 0.85 * ((len(names) - 1) / 2 - row))
        for at, names in members.items()
        for row, name in enumerate(names)
    }
    height = 0.85 * max(map(len, members.values()))
    width = max(page.WHOLE, 2.5 * len(members))

    def paint(axes: Axes) -> None:
        for producer, consumer in edges:
            (x1, y1), (x2, y2) = place[producer], place[consumer]
            arrow = {"arrowstyle": "-|>", "color": page.SERIES[-1], "linewidth": 1.2}
            axes.annotate("", (x2 - 0.77, y2), (x1 + 0.77, y1), arrowprops=arrow)
            above, below = _carried(f"{producer}->{consumer}", shown.get(consumer), epochs)
            middle = ((x1 + x2) / 2, (y1 + y2) / 2)
            axes.annotate(above, middle, (0, 4), textcoords="offset points", ha="center", size=9)
            axes.annotate(below, middle, (0, -12), textcoords="offset points", ha="center", size=9)
        for name, (x, y) in place.items():
            stateful = name in describe["operators"]
            box = _rounded(x, y, page.SERIES[0] if stateful else page.GRID)
            axes.add_patch(box)
            title = page.cut(shown.get(name, name), 18)
            axes.text(x, y + 0.04, title, ha="center", va="bottom", weight="bold")
            axes.text(x, y - 0.04, page.cut(notes[name], 24), ha="center", va="top", size=9)
        axes.set_axis_off()
        centre = 2.5 * (len(members) - 1) / 2
        axes.set_xlim(centre - width / 2, centre + width / 2)
        axes.set_ylim(-height / 2, height / 2)

    return page.figure("flow", paint, (width, height))


def _rounded(x: float, y: float, ink: str) -> FancyBboxPatch:
    style = "round,pad=0,rounding_size=0.1"
    corner = (x - 0.75, y - 0.28)
    return FancyBboxPatch(
        corner, 1.5, 0.56, boxstyle=style, fill=False, edgecolor=ink, linewidth=1.6
    )


def _carried(edge: str, sink: str | None, epochs: Sequence[EpochFacts]) -> tuple[str, str]:
    """How many rows went along an edge, perhaps to a sink, and which share stayed in their slot."""
    if sink is not None:
        rows = sum(epoch.sink_rows.get(sink, 0) for epoch in epochs)
        return (f"{short(rows)} rows" if rows else ""), ""
    facts = [epoch.edges[edge] for epoch in epochs if edge in epoch.edges]
    local = sum(f.local_rows for f in facts)
    rows = local + sum(f.remote_rows for f in facts)
    if not rows:
        return "", ""
    between = any(f.between_slots for f in facts)
    return f"{short(rows)} rows", f"{local / rows:.0%} stay" if between else ""
