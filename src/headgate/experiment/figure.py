"""Plots of a journal as inline SVG that follows the page: its font, its ink, its dark mode.

Matplotlib draws with stand-in colours, which become CSS variables afterwards. A figure without
data is an empty string, so a journal without timings simply shows fewer figures.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import pairwise
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from headgate.experiment.epoch_view import EpochView
from headgate.experiment.number_text import short

Record = Mapping[str, Any]

_INK, _GRID = "#0d0c0b", "#0d0c0a"
_SERIES = tuple(f"#0d0d0{i}" for i in range(1, 7))
_CSS = {_INK: "currentColor", _GRID: "var(--grid)"} | {
    stand_in: f"var(--series-{i})" for i, stand_in in enumerate(_SERIES, start=1)
}
_REST = "Spark and waiting"
_REFERENCE: dict[str, Any] = {"color": _INK, "linewidth": 1.2, "linestyle": (0, (3, 2))}
_STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 10.5,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _GRID,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": _GRID,
    "grid.linewidth": 0.8,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "legend.fontsize": 10,
    "lines.linewidth": 2,
    "lines.solid_capstyle": "round",
}


def rows_per_second(views: Sequence[EpochView], median: float | None) -> str:
    """Throughput of every epoch, and the median."""
    points = [(v.epoch, v.rows_per_second) for v in views if v.rows_per_second is not None]
    if not points:
        return ""
    with _style():
        figure, axes = _axes(views)
        epochs, rates = zip(*points, strict=True)
        axes.bar(epochs, rates, 0.72, color=_SERIES[0])
        if median is not None:
            axes.axhline(median, **_REFERENCE, label=f"median {short(median)}")
            _legend(axes, 1)
        return _svg(figure, "rate")


def locality(records: Sequence[Record]) -> str:
    """Share of rows that stayed in their slot, per edge between slots."""
    edges: dict[str, list[tuple[int, float]]] = {}
    for record in records:
        for name, edge in record.get("edges", {}).items():
            if edge["between_slots"] and edge["locality"] is not None:
                edges.setdefault(name, []).append((record["epoch"], edge["locality"]))
    return _lines(records, edges, "locality", percent=True)


def imbalance(records: Sequence[Record]) -> str:
    """Busiest slot over the mean, per operator; 1 is even."""
    operators: dict[str, list[tuple[int, float]]] = {}
    for record in records:
        for name, ratio in record.get("imbalance", {}).items():
            if ratio is not None:
                operators.setdefault(name, []).append((record["epoch"], ratio))
    return _lines(records, operators, "imbalance", percent=False)


def bytes_moved(views: Sequence[EpochView]) -> str:
    """Bytes that went through the shuffle against bytes handed over in memory."""
    parts = {
        "shuffled": [float(v.bytes_shuffled) for v in views],
        "local, in memory": [float(v.bytes_local) for v in views],
    }
    return _stacked(views, parts, "bytes", unit="B")


def time_spent(records: Sequence[Record]) -> str:
    """Where an epoch's time goes: planning, the longest task of each level, and the rest."""
    timed = [r for r in records if r.get("job_ms") is not None]
    if not timed:
        return ""
    levels = sorted({level for r in timed for level in r.get("levels_ms", {})}, key=int)
    parts = {"planning": [r.get("plan_ms", 0.0) / 1e3 for r in timed]}
    for level in levels:
        name = "route (level 0)" if level == "0" else f"level {level}"
        parts[name] = [r.get("levels_ms", {}).get(level, 0.0) / 1e3 for r in timed]
    inside = [sum(r.get("levels_ms", {}).values()) for r in timed]
    parts[_REST] = [
        max(0.0, r["job_ms"] - known) / 1e3 for r, known in zip(timed, inside, strict=True)
    ]
    return _stacked([EpochView.of(r) for r in timed], parts, "time", unit="s")


def slot_loads(records: Sequence[Record]) -> str:
    """Rows per slot over the run, as a share of an even load, per operator."""
    if not records:
        return ""
    slots = records[-1]["slots"]
    totals: dict[str, list[int]] = {}
    for record in records:
        for name, loads in record.get("loads", {}).items():
            if len(loads) == slots:
                before = totals.get(name, [0] * slots)
                totals[name] = [a + b for a, b in zip(before, loads, strict=True)]
    totals = {name: loads for name, loads in totals.items() if sum(loads)}
    if not totals:
        return ""
    with _style():
        figure, axes = _axes(())
        width = 0.78 / len(totals)
        for i, (name, loads) in enumerate(totals.items()):
            even = sum(loads) / slots
            at = [slot - 0.39 + width * (i + 0.5) for slot in range(slots)]
            heights = [load / even for load in loads]
            axes.bar(at, heights, width * 0.92, color=_colour(i), label=name)
        axes.axhline(1, **_REFERENCE)
        axes.set_xlabel("slot")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:.0%}"))
        axes.yaxis.set_major_locator(MaxNLocator(5))
        _legend(axes, len(totals))
        return _svg(figure, "loads")


# --- inside ---------------------------------------------------------------------------------
def _lines(
    records: Sequence[Record],
    series: Mapping[str, Sequence[tuple[int, float]]],
    name: str,
    *,
    percent: bool,
) -> str:
    if not series:
        return ""
    with _style():
        figure, axes = _axes([EpochView.of(r) for r in records])
        for i, (label, points) in enumerate(series.items()):
            marker = "o" if len(points) < 40 else ""
            x, y = zip(*points, strict=True)
            label = label.replace("->", " → ")
            axes.plot(x, y, color=_colour(i), marker=marker, markersize=4, label=label)
        if percent:
            axes.set_ylim(0, 1)
            axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:.0%}"))
        else:
            axes.set_ylim(1, max(1.25, axes.get_ylim()[1]))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:.2f}×"))
        _legend(axes, len(series))
        return _svg(figure, name)


def _stacked(
    views: Sequence[EpochView], parts: Mapping[str, Sequence[float]], name: str, *, unit: str
) -> str:
    if not any(sum(values) for values in parts.values()):
        return ""
    with _style():
        figure, axes = _axes(views)
        epochs = [v.epoch for v in views]
        floor = [0.0] * len(epochs)
        for i, (label, values) in enumerate(parts.items()):
            colour = _SERIES[-1] if label == _REST else _colour(i)
            axes.bar(epochs, values, 0.72, bottom=floor, color=colour, label=label)
            floor = [a + b for a, b in zip(floor, values, strict=True)]
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: _tick(y, unit)))
        _legend(axes, len(parts))
        return _svg(figure, name)


def _style(**more: Any) -> AbstractContextManager[None]:
    settings: Any = _STYLE | more
    return mpl.rc_context(settings)


def _axes(views: Sequence[EpochView]) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(6.4, 2.9), layout="constrained")
    axes = figure.subplots()
    axes.xaxis.set_major_locator(MaxNLocator(10, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: _tick(y)))
    if views:
        axes.set_xlabel("epoch")
    for before, after in pairwise(views):
        if (before.slots, before.routing_version) != (after.slots, after.routing_version):
            axes.axvline(after.epoch - 0.5, color=_INK, linewidth=1, linestyle=(0, (1, 2)))
    return figure, axes


def _legend(axes: Axes, count: int) -> None:
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(0, 1.0),
        ncols=min(count, 5),
        borderaxespad=0.2,
        borderpad=0,
        handlelength=0.9,
        handleheight=0.9,
        handletextpad=0.5,
        columnspacing=1.2,
    )


def _tick(value: float, unit: str = "") -> str:
    """Like `short`, without the zeros that say nothing on a round tick."""
    if unit == "s":
        return f"{value:g} s"
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g} {letter}{unit}"
    return f"{value:g} {unit}".strip()


def _colour(number: int) -> str:
    return _SERIES[number % len(_SERIES)]


def _svg(figure: Figure, name: str) -> str:
    """SVG for the inside of a page: no prolog, no links, the page's colours and font."""
    out = io.StringIO()
    with _style(**{"svg.hashsalt": name}):
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", text)
    text = re.sub(r'<svg [^>]*?viewBox="([^"]*)"[^>]*>', r'<svg viewBox="\1" role="img">', text)
    text = re.sub(r"font:\s*([\d.]+px)[^;\"]*", r"font: \1 var(--font)", text)
    text = re.sub(r'\sid="[\w.]+_\d+"', "", text)  # the others are hashed with the name
    for stand_in, css in _CSS.items():
        text = text.replace(stand_in, css)
    return text
