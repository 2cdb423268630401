"""The report of an analysis as one HTML file, in the look of the journal's report."""

from __future__ import annotations

from html import escape
from itertools import pairwise

from headgate.offline.analyze_result import Analysis
from headgate.offline.analyze_source import Source
from headgate.offline.number_text import percent, short, times
from headgate.offline.report import figures_html, section, table, tiles_html
from headgate.offline.report_page import SECTIONS_PAGE

_SHOWN_PARTITIONS = 8


def render(analysis: Analysis) -> str:
    """The whole page."""
    shape, options = analysis.options.shape, analysis.options
    if shape.edges == tuple(pairwise(range(len(shape.operators)))):
        chain = " → ".join(shape.operators)
    else:
        chain = ", ".join(name.replace("->", " → ") for name in shape.edge_names)
    sections = [
        section("What to expect", f'<div class="figures">{_pictures(analysis)}</div>'),
        section("Heaviest pairs", f'<div class="figures">{_heaviest(analysis)}</div>'),
        section("Operators", _operators(analysis)),
        section("Run with these tables", _how(analysis)),
    ]
    if analysis.source is not None:
        sections.insert(2, section("Source", _source(analysis, analysis.source)))
    if analysis.notes:
        told = "".join(f"<li>{escape(note)}</li>" for note in analysis.notes)
        sections.insert(1, section("Worth knowing", f'<div class="card"><ul>{told}</ul></div>'))
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
    worst = max(analysis.expected.imbalance, key=lambda op: analysis.expected.imbalance[op])
    first_hop = []
    if analysis.without is not None:
        blind = percent(analysis.without.first_hop_locality)
        told = percent(analysis.expected.first_hop_locality)
        first_hop = [("first hop", told, f"local; {blind} if the source is ignored")]
    return tiles_html(
        [
            (
                "expected locality",
                percent(analysis.expected.locality),
                "rows staying in their slot",
            ),
            ("with hash routing", percent(analysis.hashed.locality), "of the same rows"),
            *first_hop,
            ("imbalance", times(analysis.expected.imbalance[worst]), f"busiest slot, {worst}"),
            ("rows", short(analysis.rows), "counted, all of them"),
            ("keys", short(sum(analysis.keys.values())), "of all operators"),
            ("pairs", short(sum(analysis.pairs.values())), "that follow each other"),
        ]
    )


def _pictures(analysis: Analysis) -> str:
    from headgate.offline import analyze_figure as draw

    hashed, expected = analysis.hashed, analysis.expected
    plans = {"hash": hashed, "source ignored": analysis.without, "tables": expected}
    drawn = [
        (
            "Expected locality",
            "Rows whose next key lives in the slot they are in: they skip the shuffle.",
            draw.locality_bars({k: plan.hop_locality for k, plan in plans.items() if plan}),
        ),
        (
            "Load per slot",
            "Rows of each slot against an even share; the line is the bound.",
            draw.loads(expected.loads, analysis.options.alpha),
        ),
    ]
    for number, name in enumerate(analysis.options.shape.counted.edge_names):
        drawn.append(
            (
                f"From slot to slot: {name.replace('->', ' → ')}",
                "Share of the rows; the diagonal stays where it is.",
                draw.slot_maps(hashed.matrices[number], expected.matrices[number], name),
            )
        )
    drawn.append(
        (
            "Locality against statistics",
            "What a plan from only the heaviest pairs would reach (Caneill et al. 2016, fig. 12).",
            draw.edges_curve({"tables": analysis.curve}, hashed.locality),
        )
    )
    return figures_html(drawn)


def _heaviest(analysis: Analysis) -> str:
    from headgate.offline import analyze_figure as draw

    note = "Rows of each pair, and the slots where its two keys live."
    return figures_html([("Rows per pair", note, draw.top_pairs(analysis.top))])


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
