"""Plots as inline SVG that follows the page around it: its font, its ink, its dark mode.

Matplotlib draws with stand-in colours, which become CSS variables afterwards. Figures of a journal
are here; one without data is an empty string, so a journal without timings shows fewer figures.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import pairwise
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from headgate.arrays import I64
from headgate.commit.facts import EpochFacts
from headgate.offline.views import EpochView, short

_REST = "Spark and waiting"
INK, GRID = "#0d0c0b", "#0d0c0a"
SERIES = tuple(f"#0d0d0{i}" for i in range(1, 7))
_CSS = {INK: "currentColor", GRID: "var(--grid)"} | {
    stand_in: f"var(--series-{i})" for i, stand_in in enumerate(SERIES, start=1)
}
REFERENCE: dict[str, Any] = {"color": INK, "linewidth": 1.2, "linestyle": (0, (3, 2))}
_STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 10.5,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": GRID,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "legend.fontsize": 10,
    "legend.borderaxespad": 0.2,
    "legend.borderpad": 0,
    "legend.handlelength": 0.9,
    "legend.handleheight": 0.9,
    "legend.handletextpad": 0.5,
    "legend.columnspacing": 1.2,
    "lines.linewidth": 2,
    "lines.solid_capstyle": "round",
}


def style(**more: Any) -> AbstractContextManager[None]:
    settings: Any = _STYLE | more
    return mpl.rc_context(settings)


def canvas(width: float = 6.4, height: float = 2.9) -> tuple[Figure, Axes]:
    """An empty plot with few, round ticks; inches at the size of the page's column."""
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    axes.xaxis.set_major_locator(MaxNLocator(10, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: tick(y)))
    return figure, axes


def legend(axes: Axes, count: int) -> None:
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=min(count, 5))


def percent_axis(axes: Axes) -> None:
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:.0%}"))


def tick(value: float, unit: str = "") -> str:
    """Like `short`, without the zeros that say nothing on a round tick."""
    if unit == "s":
        return f"{value:g} s"
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g} {letter}{unit}"
    return f"{value:g} {unit}".strip()


def colour(number: int) -> str:
    return SERIES[number % len(SERIES)]


def svg(figure: Figure, name: str) -> str:
    """SVG for the inside of a page: no prolog, no links, the page's colours and font."""
    out = io.StringIO()
    with style(**{"svg.hashsalt": name}):
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


# --- figures of a journal -------------------------------------------------------------------
def rows_per_second(views: Sequence[EpochView], median: float | None) -> str:
    """Throughput of every epoch, and the median."""
    points = [(v.epoch, v.rows_per_second) for v in views if v.rows_per_second is not None]
    if not points:
        return ""
    with style():
        figure, axes = _axes(views)
        epochs, rates = zip(*points, strict=True)
        axes.bar(epochs, rates, 0.72, color=SERIES[0])
        if median is not None:
            axes.axhline(median, **REFERENCE, label=f"median {short(median)}")
            legend(axes, 1)
        return svg(figure, "rate")


def locality(epochs: Sequence[EpochFacts]) -> str:
    """Share of rows that stayed in their slot, per edge between slots."""
    edges: dict[str, list[tuple[int, float]]] = {}
    for facts in epochs:
        for name, edge in facts.edges.items():
            if edge.between_slots and edge.locality is not None:
                edges.setdefault(name, []).append((facts.epoch, edge.locality))
    return _lines(epochs, edges, "locality", percent=True)


def imbalance(epochs: Sequence[EpochFacts]) -> str:
    """Busiest slot over the mean, per operator; 1 is even."""
    operators: dict[str, list[tuple[int, float]]] = {}
    for facts in epochs:
        for name, ratio in facts.imbalance.items():
            if ratio is not None:
                operators.setdefault(name, []).append((facts.epoch, ratio))
    return _lines(epochs, operators, "imbalance", percent=False)


def bytes_moved(views: Sequence[EpochView]) -> str:
    """Bytes that went through the shuffle against bytes handed over in memory."""
    parts = {
        "shuffled": [float(v.bytes_shuffled) for v in views],
        "local, in memory": [float(v.bytes_local) for v in views],
    }
    return _stacked(views, parts, "bytes", unit="B")


def time_spent(epochs: Sequence[EpochFacts]) -> str:
    """Where an epoch's time goes: planning, the longest task of each level, and the rest."""
    views = [EpochView.of(facts) for facts in epochs if facts.engine.job_ms is not None]
    timed = [facts.engine for facts in epochs if facts.engine.job_ms is not None]
    if not timed:
        return ""
    parts = {"planning": [(engine.plan_ms or 0.0) / 1e3 for engine in timed]}
    for level in sorted({level for engine in timed for level in engine.levels_ms}):
        name = "route (level 0)" if level == 0 else f"level {level}"
        parts[name] = [engine.levels_ms.get(level, 0.0) / 1e3 for engine in timed]
    parts[_REST] = [
        max(0.0, (engine.job_ms or 0.0) - sum(engine.levels_ms.values())) / 1e3 for engine in timed
    ]
    return _stacked(views, parts, "time", unit="s")


def slot_loads(epochs: Sequence[EpochFacts]) -> str:
    """Rows per slot over the run, as a share of an even load, per operator."""
    if not epochs:
        return ""
    slots = epochs[-1].slots
    sums: dict[str, I64] = {}
    for facts in epochs:
        for name, loads in facts.loads.items():
            if len(loads) == slots:
                sums[name] = sums.get(name, np.zeros(slots, np.int64)) + loads
    totals = {name: loads.tolist() for name, loads in sums.items() if loads.any()}
    if not totals:
        return ""
    with style():
        figure, axes = canvas()
        load_bars(axes, totals)
        axes.axhline(1, **REFERENCE)
        legend(axes, len(totals))
        return svg(figure, "loads")


def load_bars(axes: Axes, loads: Mapping[str, Sequence[float]]) -> None:
    """A bar per slot and operator, as a share of the operator's mean over slots."""
    width = 0.78 / len(loads)
    for i, (name, by_slot) in enumerate(loads.items()):
        even = sum(by_slot) / len(by_slot)
        at = [slot - 0.39 + width * (i + 0.5) for slot in range(len(by_slot))]
        axes.bar(at, [x / even for x in by_slot], width * 0.92, color=colour(i), label=name)
    axes.set_xlabel("slot")
    percent_axis(axes)


# --- inside ---------------------------------------------------------------------------------
def _lines(
    epochs: Sequence[EpochFacts],
    series: Mapping[str, Sequence[tuple[int, float]]],
    name: str,
    *,
    percent: bool,
) -> str:
    if not series:
        return ""
    with style():
        figure, axes = _axes([EpochView.of(facts) for facts in epochs])
        for i, (label, points) in enumerate(series.items()):
            marker = "o" if len(points) < 40 else ""
            x, y = zip(*points, strict=True)
            label = label.replace("->", " → ")
            axes.plot(x, y, color=colour(i), marker=marker, markersize=4, label=label)
        if percent:
            axes.set_ylim(0, 1)
            percent_axis(axes)
        else:
            axes.set_ylim(1, max(1.25, axes.get_ylim()[1]))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:.2f}×"))
        legend(axes, len(series))
        return svg(figure, name)


def _stacked(
    views: Sequence[EpochView], parts: Mapping[str, Sequence[float]], name: str, *, unit: str
) -> str:
    if not any(sum(values) for values in parts.values()):
        return ""
    with style():
        figure, axes = _axes(views)
        epochs = [v.epoch for v in views]
        floor = np.zeros(len(epochs))
        for i, (label, values) in enumerate(parts.items()):
            ink = SERIES[-1] if label == _REST else colour(i)
            axes.bar(epochs, values, 0.72, bottom=floor, color=ink, label=label)
            floor = floor + values
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: tick(y, unit)))
        legend(axes, len(parts))
        return svg(figure, name)


def _axes(views: Sequence[EpochView]) -> tuple[Figure, Axes]:
    figure, axes = canvas()
    if views:
        axes.set_xlabel("epoch")
    for before, after in pairwise(views):
        if (before.slots, before.routing_version) != (after.slots, after.routing_version):
            axes.axvline(after.epoch - 0.5, color=INK, linewidth=1, linestyle=(0, (1, 2)))
    return figure, axes
