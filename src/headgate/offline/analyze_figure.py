"""Plots of an analysis: what stays local, how even the slots are, which pairs weigh most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, NullLocator

from headgate.offline.analyze_pairs import F64, I64
from headgate.offline.analyze_result import TopPair
from headgate.offline.drawing import INK, REFERENCE, SERIES, canvas, colour, legend, style, svg
from headgate.offline.drawing import tick as tick_text
from headgate.offline.figure import load_bars

_SHOWN_SLOTS = 32
_TEXT_SLOTS = 12


def locality_bars(by_plan: Mapping[str, Mapping[str, float]]) -> str:
    """Share of rows that stay, per edge: a bar per plan, hash routing first and the tables last."""
    width = 0.8 / len(by_plan)
    with style():
        figure, axes = canvas()
        for i, (label, shares) in enumerate(by_plan.items()):
            at = np.arange(len(shares)) + width * (i - (len(by_plan) - 1) / 2)
            ink = SERIES[-1] if i == 0 else SERIES[len(by_plan) - 1 - i]
            bars = axes.bar(at, list(shares.values()), 0.92 * width, color=ink, label=label)
            axes.bar_label(bars, [f"{share:.1%}" for share in shares.values()], padding=2)
        names = list(next(iter(by_plan.values())))
        axes.set_xticks(range(len(names)), [name.replace("->", " → ") for name in names])
        axes.set_xlim(-0.8, len(names) - 0.2)
        axes.set_ylim(0, 1)
        _percent(axes)
        legend(axes, len(by_plan))
        return svg(figure, "expected")


def loads(by_operator: Mapping[str, Sequence[int]], alpha: float) -> str:
    """Rows per slot against an even share, and the bound."""
    with style():
        figure, axes = canvas()
        load_bars(axes, by_operator)
        axes.axhline(alpha, **REFERENCE, label=f"alpha {alpha:g}")
        legend(axes, len(by_operator) + 1)
        return svg(figure, "analysed-loads")


def top_pairs(pairs: Sequence[TopPair]) -> str:
    """The heaviest pairs as bars: together in one slot, or apart, and where."""
    if not pairs:
        return ""
    with style(**{"axes.grid.axis": "x"}):
        figure, axes = canvas(13.2, 0.7 + 0.26 * len(pairs))
        for i, (label, ink) in enumerate((("in one slot", SERIES[0]), ("apart", SERIES[1]))):
            mine = [(at, p) for at, p in enumerate(pairs) if (p.slot_a == p.slot_b) == (i == 0)]
            if not mine:
                continue
            places = [at for at, _ in mine]
            bars = axes.barh(places, [p.rows for _, p in mine], 0.7, color=ink, label=label)
            axes.bar_label(bars, [_home(p) for _, p in mine], padding=4, fontsize=9)
        axes.set_yticks(range(len(pairs)), [f"{_cut(p.a)} → {_cut(p.b)}" for p in pairs])
        axes.tick_params(axis="y", labelsize=9)
        axes.invert_yaxis()
        axes.margins(x=0.1, y=0.02)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: tick_text(x)))
        axes.set_xlabel("rows")
        legend(axes, 2)
        return svg(figure, "top-pairs")


def slot_maps(hashed: I64, planned: I64, name: str) -> str:
    """Rows from slot to slot, hash beside tables; what is on the diagonal stays."""
    if len(planned) > _SHOWN_SLOTS:
        return ""
    with style(**{"axes.grid": False, "axes.spines.bottom": False}):
        figure = Figure(figsize=(6.4, 3.3), layout="constrained")
        left, right = figure.subplots(1, 2)
        darkest = float(max(hashed.max(), planned.max(), 1))
        for axes, matrix, title in ((left, hashed, "hash"), (right, planned, "tables")):
            _heat(axes, matrix / max(1, matrix.sum()), darkest / max(1, matrix.sum()))
            axes.set_title(title, fontsize=10.5)
            axes.set_xlabel("to slot")
        left.set_ylabel("from slot")
        return svg(figure, f"slots-{name}")


def edges_curve(curves: Mapping[str, Sequence[tuple[float, float]]], hashed: float | None) -> str:
    """Locality against the number of pairs that the planner knows, logarithmic."""
    if not any(len(points) > 1 for points in curves.values()):
        return ""
    with style():
        figure, axes = canvas()
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
        for i, (label, points) in enumerate(curves.items()):
            x, y = zip(*points, strict=True)
            axes.plot(x, y, color=colour(i), marker="o", markersize=4, label=label)
        if hashed is not None:
            axes.axhline(hashed, **REFERENCE, label="hash")
        axes.set_ylim(0, None)
        _percent(axes)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: tick_text(x)))
        axes.set_xlabel("heaviest pairs known")
        legend(axes, len(curves) + 1)
        return svg(figure, "edges-curve")


def _heat(axes: Axes, share: F64, darkest: float) -> None:
    slots = len(share)
    for i in range(slots):
        for j in range(slots):
            strength = 0.75 * float(share[i, j]) / darkest  # the text must stay readable
            axes.add_patch(
                Rectangle((j - 0.48, i - 0.48), 0.96, 0.96, color=SERIES[0], alpha=strength)
            )
            if slots <= _TEXT_SLOTS:
                said = f"{share[i, j]:.0%}" if share[i, j] >= 0.005 else ""
                axes.text(j, i, said, ha="center", va="center", fontsize=8, color=INK)
    axes.set_xlim(-0.5, slots - 0.5)
    axes.set_ylim(slots - 0.5, -0.5)
    axes.set_aspect("equal")
    if slots <= _TEXT_SLOTS:
        axes.set_xticks(range(slots))
        axes.set_yticks(range(slots))


def _percent(axes: Axes) -> None:
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:.0%}"))


def _home(pair: TopPair) -> str:
    if pair.slot_a == pair.slot_b:
        return f"slot {pair.slot_a}"
    return f"slots {pair.slot_a}, {pair.slot_b}"


def _cut(text: str, width: int = 28) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
