"""Plots of a journal as inline SVG. A figure without data is an empty string, so a journal
without timings simply shows fewer figures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from headgate.commit.facts import EpochFacts
from headgate.offline.drawing import (
    INK,
    REFERENCE,
    SERIES,
    canvas,
    colour,
    legend,
    style,
    svg,
    tick,
)
from headgate.offline.epoch_view import EpochView
from headgate.offline.number_text import short

_REST = "Spark and waiting"


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
    totals: dict[str, list[int]] = {}
    for facts in epochs:
        for name, loads in facts.loads.items():
            if len(loads) == slots:
                before = totals.get(name, [0] * slots)
                totals[name] = [a + b for a, b in zip(before, loads, strict=True)]
    totals = {name: loads for name, loads in totals.items() if sum(loads)}
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
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:.0%}"))


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
            axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:.0%}"))
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
        floor = [0.0] * len(epochs)
        for i, (label, values) in enumerate(parts.items()):
            ink = SERIES[-1] if label == _REST else colour(i)
            axes.bar(epochs, values, 0.72, bottom=floor, color=ink, label=label)
            floor = [a + b for a, b in zip(floor, values, strict=True)]
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
