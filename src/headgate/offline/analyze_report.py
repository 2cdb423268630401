"""The report of an analysis as one HTML file, in the look of the journal's report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from headgate.arrays import F64, I64
from headgate.offline import page
from headgate.offline.analyze import Analysis, TopPair
from headgate.offline.analyze_input import Source
from headgate.offline.views import percent, short, times

_SHOWN_PARTITIONS = 8  # of a slot, by name; the others are counted
_SHOWN_SLOTS = 32  # more make no readable map
_TEXT_SLOTS = 12  # up to here a cell has room for its share


def render(analysis: Analysis) -> str:
    """The whole page."""
    shape, options, source = analysis.options.shape, analysis.options, analysis.source
    if shape.edges == tuple(pairwise(range(len(shape.operators)))):
        chain = " → ".join(shape.operators)
    else:
        chain = page.arrows(", ".join(shape.edge_names))
    notes = "".join(f"<li>{escape(note)}</li>" for note in analysis.notes)
    note = "Rows of each pair, and the slots where its two keys live."
    return page.render(
        f"Analysis of {chain}",
        f"{options.data} · {options.slots} slots · alpha {options.alpha:g}",
        _tiles(analysis),
        {
            "What to expect": _pictures(analysis),
            "Worth knowing": page.card(f"<ul>{notes}</ul>") if notes else "",
            "Heaviest pairs": page.figures([("Rows per pair", note, _top_pairs(analysis.top))]),
            "Source": "" if source is None else _source(analysis, source),
            "Operators": _operators(analysis),
            "Run with these tables": page.card(
                "<p><code>headgate run app.py:flow --tables DIR</code>, where DIR is the folder of "
                "this report, or <code>flow.start(..., tables=hg.load_tables(DIR))</code>. The "
                f"flow runs {options.slots} slots and its keyed operators are called "
                f"{escape(', '.join(shape.operators))}.</p>"
            ),
        },
        "Made by <code>headgate analyze</code>. The figures hold for the rows that were counted; "
        "on later rows keys drift, and a table loses some of its locality.",
    )


def _tiles(analysis: Analysis) -> list[tuple[str, str, str]]:
    expected = analysis.expected
    worst = max(expected.imbalance, key=lambda op: expected.imbalance[op])
    first_hop = []
    if analysis.without is not None:
        blind = percent(analysis.without.first_hop_locality)
        share = percent(expected.first_hop_locality)
        first_hop = [("first hop", share, f"local; {blind} if the source is ignored")]
    return [
        ("expected locality", percent(expected.locality), "rows staying in their slot"),
        ("with hash routing", percent(analysis.hashed.locality), "of the same rows"),
        *first_hop,
        ("imbalance", times(expected.imbalance[worst]), f"busiest slot, {worst}"),
        ("rows", short(analysis.rows), "counted, all of them"),
        ("keys", short(sum(analysis.keys.values())), "of all operators"),
        ("pairs", short(sum(analysis.pairs.values())), "that follow each other"),
    ]


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
    return page.table(head, rows, words=2)


def _source(analysis: Analysis, source: Source) -> str:
    """Which partitions are at which slot, and what share of their rows stays there."""
    hops = analysis.expected.first_hop
    rows = []
    for slot in range(source.slots):
        mine = [text for text, at in source.slot_by_text if at == slot]
        which = ", ".join(mine[:_SHOWN_PARTITIONS])
        if len(mine) > _SHOWN_PARTITIONS:
            which += f" and {len(mine) - _SHOWN_PARTITIONS:,} more"
        brought, stay = int(hops[0][slot].sum()), sum(int(hop[slot, slot]) for hop in hops)
        share = percent(stay / (brought * len(hops)) if brought else None)
        rows.append([str(slot), which, f"{len(mine):,}", f"{brought:,}", share])
    note = (
        "<p>The tables are for a source whose partitions are at these slots. All rows of the first "
        "hop pass the shuffle; those that stay need not leave their host if Spark reads their "
        "partition on the host of its slot.</p>"
    )
    return page.card(note) + page.table(
        ["slot", "which", "partitions", "rows", "stay"], rows, words=2
    )


# --- figures ----------------------------------------------------------------------------------
def _pictures(analysis: Analysis) -> str:
    hashed, expected = analysis.hashed, analysis.expected
    plans = {"hash": hashed, "source ignored": analysis.without, "tables": expected}

    def loads(axes: Axes) -> None:
        page.load_bars(axes, expected.loads)
        alpha = analysis.options.alpha
        axes.axhline(alpha, **page.REFERENCE, label=f"alpha {alpha:g}")

    maps = [
        (
            f"From slot to slot: {page.arrows(name)}",
            "Share of the rows; the diagonal stays where it is.",
            _slot_maps(hashed.matrices[number], expected.matrices[number], name),
        )
        for number, name in enumerate(analysis.options.shape.counted.edge_names)
    ]
    return page.figures(
        [
            (
                "Expected locality",
                "Rows whose next key lives in the slot they are in: they skip the shuffle.",
                _locality_bars({k: plan.edge_locality for k, plan in plans.items() if plan}),
            ),
            (
                "Load per slot",
                "Rows of each slot against an even share; the line is the bound.",
                page.figure("analysed-loads", loads),
            ),
            *maps,
            (
                "Locality against statistics",
                "What a plan from only the heaviest pairs would reach (Caneill et al. 2016, fig. "
                "12).",
                _edges_curve(analysis.curve, hashed.locality),
            ),
        ]
    )


def _locality_bars(by_plan: Mapping[str, Mapping[str, float]]) -> str:
    """Share of rows that stay, per edge: a bar per plan, hash routing first and the tables last."""
    width = 0.8 / len(by_plan)

    def paint(axes: Axes) -> None:
        names = list(next(iter(by_plan.values())))
        for i, (label, shares) in enumerate(by_plan.items()):
            at = np.arange(len(names)) + width * (i - (len(by_plan) - 1) / 2)
            ink = page.SERIES[-1] if i == 0 else page.SERIES[len(by_plan) - 1 - i]
            bars = axes.bar(at, list(shares.values()), 0.92 * width, color=ink, label=label)
            axes.bar_label(bars, [f"{share:.1%}" for share in shares.values()], padding=2)
        axes.set_xticks(range(len(names)), [page.arrows(name) for name in names])
        axes.set_xlim(-0.8, len(names) - 0.2)
        axes.set_ylim(0, 1)
        page.y_ticks(axes, "%")

    return page.figure("expected", paint)


def _top_pairs(pairs: Sequence[TopPair]) -> str:
    """The heaviest pairs as bars: together in one slot, or apart, and where."""

    def paint(axes: Axes) -> None:
        for together, label, ink in (
            (True, "in one slot", page.SERIES[0]),
            (False, "apart", page.SERIES[1]),
        ):
            mine = {i: p for i, p in enumerate(pairs) if (p.slot_a == p.slot_b) == together}
            if not mine:
                continue
            rows = [pair.rows for pair in mine.values()]
            bars = axes.barh(list(mine), rows, 0.7, color=ink, label=label)
            where = [
                f"slot {p.slot_a}" if together else f"slots {p.slot_a}, {p.slot_b}"
                for p in mine.values()
            ]
            axes.bar_label(bars, where, padding=4, fontsize=9)
        axes.set_yticks(
            range(len(pairs)), [f"{page.cut(p.a, 28)} → {page.cut(p.b, 28)}" for p in pairs]
        )
        axes.tick_params(axis="y", labelsize=9)
        axes.invert_yaxis()
        axes.margins(x=0.1, y=0.02)
        axes.xaxis.set_major_formatter(FuncFormatter(page.tick))
        axes.set_xlabel("rows")

    size = (page.WHOLE, 0.7 + 0.26 * len(pairs))
    return page.figure("top-pairs", paint, size, **{"axes.grid.axis": "x"}) if pairs else ""


def _slot_maps(hashed: I64, planned: I64, name: str) -> str:
    """Rows from slot to slot, hash beside tables; the diagonal stays."""
    if len(planned) > _SHOWN_SLOTS:
        return ""

    def paint(canvas: Figure) -> None:
        left, right = canvas.subplots(1, 2)
        darkest = float(max(hashed.max(), planned.max(), 1))
        for axes, matrix, title in ((left, hashed, "hash"), (right, planned, "tables")):
            _heat(axes, matrix / max(1, matrix.sum()), (0.75 / darkest) * matrix)
            axes.set_title(title, fontsize=10.5)
            axes.set_xlabel("to slot")
        left.set_ylabel("from slot")

    style = {"axes.grid": False, "axes.spines.bottom": False}
    return page.svg(f"slots-{name}", paint, (page.HALF, 3.3), **style)


def _heat(axes: Axes, share: F64, strength: Any) -> None:
    """Cells as dark as they are strong, with their share where there is room for text."""
    slots = len(share)
    axes.pcolormesh(share, cmap=ListedColormap([page.SERIES[0]]), alpha=strength)
    axes.invert_yaxis()
    axes.set_aspect("equal")
    if slots > _TEXT_SLOTS:
        return
    names = [str(slot) for slot in range(slots)]
    axes.set_xticks(np.arange(slots) + 0.5, names)
    axes.set_yticks(np.arange(slots) + 0.5, names)
    for i, j in np.argwhere(share >= 0.005):
        axes.text(j + 0.5, i + 0.5, f"{share[i, j]:.0%}", ha="center", va="center", fontsize=8)


def _edges_curve(curve: Sequence[tuple[float, float]], hashed: float) -> str:
    """Locality against the number of pairs that the planner knows, logarithmic."""

    def paint(axes: Axes) -> None:
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
        page.lines(axes, {"tables": curve})
        axes.axhline(hashed, **page.REFERENCE, label="hash")
        axes.set_ylim(0, None)
        page.y_ticks(axes, "%")
        axes.xaxis.set_major_formatter(FuncFormatter(page.tick))
        axes.set_xlabel("heaviest pairs known")

    return page.figure("edges-curve", paint) if len(curve) > 1 else ""
