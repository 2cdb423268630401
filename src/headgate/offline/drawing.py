"""Drawing for pages: SVG that follows the page around it, its font, its ink, its dark mode.

Matplotlib draws with stand-in colours, which become CSS variables afterwards.
"""

from __future__ import annotations

import io
import re
from contextlib import AbstractContextManager
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

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
