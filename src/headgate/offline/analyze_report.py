"""The report of an analysis as one HTML file, in the look of the journal's report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from itertools import pairwise

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, NullLocator

from headgate.arrays import F64, I64
from headgate.offline.analyze import Analysis, TopPair
from headgate.offline.analyze_source import Source
from headgate.offline.figure import (
    INK,
    REFERENCE,
    SERIES,
    canvas,
    colour,
    legend,
    load_bars,
    percent_axis,
    style,
    svg,
    tick,
)
from headgate.offline.page import SECTIONS_PAGE, figures_html, section, table, tiles_html
from headgate.offline.views import percent, short, times

_SHOWN_PARTITIONS = 8  # of a slot, by name; the others are counted
_SHOWN_SLOTS = 32  # more make no readable map
_TEXT_SLOTS = 12  # up to here a cell has room for its share


def render(analysis: Analysis) -> str:
    """The whole page."""
    shape, options = analysis.options.shape, analysis.options
    if shape.edges == tuple(pairwise(range(len(shape.operators)))):
        chain = " → ".join(shape.operators)
    else:
        chain = ", ".join(name.replace("->", " → ") for name in shape.edge_names)
    note = "Rows of each pair, and the slots where its two keys live."
    heaviest = figures_html([("Rows per pair", note, top_pairs(analysis.top))])
    sections = [
        section("What to expect", f'<div class="figures">{_pictures(analysis)}</div>'),
        section("Heaviest pairs", f'<div class="figures">{heaviest}</div>'),
        section("Operators", _operators(analysis)),
        section("Run with these tables", _how(analysis)),
    ]
    if analysis.source is not None:
        sections.insert(2, section("Source", _source(analysis, analysis.source)))
    if analysis.notes:
        items = "".join(f"<li>{escape(note)}</li>" for note in analysis.notes)
        sections.insert(1, section("Worth knowing", f'<div class="card"><ul>{items}</ul></div>'))
    return SECTIONS_PAGE.substitute(
        title=escape(f"Analysis of {chain}"),
        subtitle=escape(f"{options.data} · {options.slots} slots · alpha {options.alpha:g}"),
        tiles=_tiles(analysis),
        sections="".join(sections),
        footer=(
            "Made by <code>headgate analyze</code>. The figures hold for the rows that were "
            "counted; on later rows keys drift, and a table loses some of its locality."
        ),
    )


def _tiles(analysis: Analysis) -> str:
    expected = analysis.expected
    worst = max(expected.imbalance, key=lambda op: expected.imbalance[op])
    first_hop = []
    if analysis.without is not None:
        blind = percent(analysis.without.first_hop_locality)
        share = percent(expected.first_hop_locality)
        first_hop = [("first hop", share, f"local; {blind} if the source is ignored")]
    return tiles_html(
        [
            ("expected locality", percent(expected.locality), "rows staying in their slot"),
            ("with hash routing", percent(analysis.hashed.locality), "of the same rows"),
            *first_hop,
            ("imbalance", times(expected.imbalance[worst]), f"busiest slot, {worst}"),
            ("rows", short(analysis.rows), "counted, all of them"),
            ("keys", short(sum(analysis.keys.values())), "of all operators"),
            ("pairs", short(sum(analysis.pairs.values())), "that follow each other"),
        ]
    )


def _pictures(analysis: Analysis) -> str:
    hashed, expected = analysis.hashed, analysis.expected
    plans = {"hash": hashed, "source ignored": analysis.without, "tables": expected}
    drawn = [
        (
            "Expected locality",
            "Rows whose next key lives in the slot they are in: they skip the shuffle.",
            locality_bars({k: plan.hop_locality for k, plan in plans.items() if plan}),
        ),
        (
            "Load per slot",
            "Rows of each slot against an even share; the line is the bound.",
            loads(expected.loads, analysis.options.alpha),
        ),
    ]
    for number, name in enumerate(analysis.options.shape.counted.edge_names):
        drawn.append(
            (
                f"From slot to slot: {name.replace('->', ' → ')}",
                "Share of the rows; the diagonal stays where it is.",
                slot_maps(hashed.matrices[number], expected.matrices[number], name),
            )
        )
    drawn.append(
        (
            "Locality against statistics",
            "What a plan from only the heaviest pairs would reach (Caneill et al. 2016, fig. 12).",
            edges_curve({"tables": analysis.curve}, hashed.locality),
        )
    )
    return figures_html(drawn)


def _operators(analysis: Analysis) -> str:
    shape, expected, hashed = analysis.options.shape, analysis.expected, analysis.hashed
    head = ["operator", "key", "keys", "entries", "imbalance", "with hash", "floor"]
    rows = [
        [
            name,
            ", ".join(f"{column} {analysis.types.get(column, '')}".strip() for column in key),
            f"{analysis.keys[name]:,}",
            f"{len(analysis.tables[name].pinned_h):,}",
            times(expected.imbalance[name]),
            times(hashed.imbalance[name]),
            times(analysis.floor[name]),
        ]
        for name, key in zip(shape.operators, shape.keys, strict=True)
    ]
    return table(head, rows, words=2)


def _source(analysis: Analysis, source: Source) -> str:
    """Who is where, and what a first hop is."""
    hops = analysis.expected.first_hop
    head = ["slot", "which", "partitions", "rows", "stay"]
    lines = []
    for slot in range(source.slots):
        mine = [text for text, at in source.slot_by_text if at == slot]
        which = ", ".join(mine[:_SHOWN_PARTITIONS])
        more = len(mine) - _SHOWN_PARTITIONS
        brought, stay = int(hops[0][slot].sum()), sum(int(hop[slot, slot]) for hop in hops)
        share = percent(stay / (brought * len(hops)) if brought else None)
        which += f" and {more:,} more" if more > 0 else ""
        lines.append([str(slot), which, f"{len(mine):,}", f"{brought:,}", share])
    note = (
        "<p>The tables are for a source whose partitions are at these slots. All rows of the first "
        "hop pass the shuffle; those that stay need not leave their host if Spark reads their "
        "partition on the host of its slot.</p>"
    )
    return f'<div class="card">{note}</div>' + table(head, lines, words=2)


def _how(analysis: Analysis) -> str:
    names = ", ".join(analysis.options.shape.operators)
    return (
        '<div class="card"><p><code>headgate run app.py:flow --tables DIR</code>, where DIR is '
        "the folder of this report, or <code>flow.start(..., tables=hg.load_tables(DIR))</code>. "
        f"The flow runs {analysis.options.slots} slots and its keyed operators are called "
        f"{escape(names)}.</p></div>"
    )


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
        percent_axis(axes)
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
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: tick(x)))
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
        percent_axis(axes)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: tick(x)))
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


def _home(pair: TopPair) -> str:
    together = pair.slot_a == pair.slot_b
    return f"slot {pair.slot_a}" if together else f"slots {pair.slot_a}, {pair.slot_b}"


def _cut(text: str, width: int = 28) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
