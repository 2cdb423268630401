"""How reports are made: one page (`page.html`), its tables and tiles, and figures as inline SVG.

Figures follow the page around them: its font, its ink, its dark mode. Matplotlib draws in the style
of `page.mplstyle` with stand-in colours, which become CSS variables afterwards.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from html import escape
from importlib.resources import files
from string import Template
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
HALF, WHOLE = 6.4, 13.2  # inches: one of two columns of the page, or its width

_HOME = files("headgate.offline")


# --- HTML -------------------------------------------------------------------------------------
def render(
    title: str,
    subtitle: str,
    tiles: Sequence[tuple[str, str, str]],
    sections: Mapping[str, str],
    footer: str,
) -> str:
    """The whole page: tiles are (name, value, note), sections HTML by heading; empty ones go."""
    tiles_html = "".join(
        f"<div class='tile'><dt>{escape(name)}</dt><dd>{escape(value)}</dd>"
        f"<p>{escape(note)}</p></div>"
        for name, value, note in tiles
    )
    return Template((_HOME / "page.html").read_text(encoding="utf-8")).substitute(
        title=escape(title),
        subtitle=escape(subtitle),
        tiles=tiles_html,
        sections="".join(
            f"<section><h2>{escape(name)}</h2>{html}</section>"
            for name, html in sections.items()
            if html
        ),
        footer=footer,
    )


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, words: int = 1) -> str:
    """A table whose first `words` columns are text and whose others are numbers."""

    def line(tag: str, values: Sequence[str]) -> str:
        kinds = ["" if i < words else ' class="number"' for i in range(len(head))]
        cells = zip(kinds, values, strict=True)
        return f"<tr>{''.join(f'<{tag}{kind}>{escape(v)}</{tag}>' for kind, v in cells)}</tr>"

    body = "".join(line("td", row) for row in rows)
    return (
        f'<div class="scroll"><table><thead>{line("th", head)}</thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def card(html: str) -> str:
    return f'<div class="card">{html}</div>'


def figures(drawn: Sequence[tuple[str, str, str]]) -> str:
    """Figures as (heading, note, SVG), side by side; one without data is left out."""
    shown = "".join(
        f"<figure><figcaption><h3>{escape(name)}</h3><p>{escape(note)}</p></figcaption>{svg}"
        "</figure>"
        for name, note, svg in drawn
        if svg
    )
    return f'<div class="figures">{shown}</div>' if shown else ""


# --- figures ----------------------------------------------------------------------------------
def figure(
    name: str,
    paint: Callable[[Axes], None],
    size: tuple[float, float] = (HALF, 2.9),
    **style: Any,
) -> str:
    """What `paint` draws, with few, round ticks and a legend if anything has a label."""

    def on_axes(canvas: Figure) -> None:
        axes = canvas.subplots()
        axes.xaxis.set_major_locator(MaxNLocator(10, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(5))
        axes.yaxis.set_major_formatter(FuncFormatter(tick))
        paint(axes)
        if labels := axes.get_legend_handles_labels()[1]:
            axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=min(len(labels), 5))

    return svg(name, on_axes, size, **style)


def svg(name: str, paint: Callable[[Figure], None], size: tuple[float, float], **style: Any) -> str:
    """SVG for the inside of a page, in its colours: no prolog, no links. CSS sets the font."""
    out = io.StringIO()
    settings: Any = {"svg.hashsalt": name, **style}
    with mpl.rc_context(settings, fname=str(_HOME / "page.mplstyle")):
        canvas = Figure(figsize=size, layout="constrained")
        paint(canvas)
        canvas.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", text)
    text = re.sub(r'<svg [^>]*?viewBox="([^"]*)"[^>]*>', r'<svg viewBox="\1" role="img">', text)
    text = re.sub(r'\sid="[\w.]+_\d+"', "", text)  # the others are hashed with the name
    for stand_in, css in _CSS.items():
        text = text.replace(stand_in, css)
    return text


def tick(value: float, _: object = None, unit: str = "") -> str:
    """A round number with a prefix: 20 k, 1.5 MB, 2 s."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if unit != "s" and abs(value) >= size:
            return f"{value / size:g} {letter}{unit}"
    return f"{value:g} {unit}".strip()


def y_ticks(axes: Axes, unit: str) -> None:
    """Ticks in percent, in times ("×"), or in a unit such as B or s."""
    formats = {"%": lambda y, _: f"{y:.0%}", "×": lambda y, _: f"{y:.2f}×"}
    axes.yaxis.set_major_formatter(FuncFormatter(formats.get(unit, partial(tick, unit=unit))))


def lines(axes: Axes, series: Mapping[str, Sequence[tuple[float, float]]]) -> None:
    """A line per series, with dots while they are few enough to tell apart."""
    for i, (label, points) in enumerate(series.items()):
        x, y = zip(*points, strict=True)
        marker = "o" if len(points) < 40 else ""
        ink = SERIES[i % len(SERIES)]
        axes.plot(x, y, color=ink, marker=marker, markersize=4, label=arrows(label))


def load_bars(axes: Axes, loads: Mapping[str, Sequence[float]]) -> None:
    """A bar per slot and operator, as a share of the operator's mean over slots."""
    width = 0.78 / len(loads)
    for i, (name, by_slot) in enumerate(loads.items()):
        even = sum(by_slot) / len(by_slot)
        at = [slot - 0.39 + width * (i + 0.5) for slot in range(len(by_slot))]
        ink = SERIES[i % len(SERIES)]
        axes.bar(at, [x / even for x in by_slot], width * 0.92, color=ink, label=name)
    axes.set_xlabel("slot")
    y_ticks(axes, "%")


def arrows(edge: str) -> str:
    return edge.replace("->", " → ")


def cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
