"""What Sax et al. 2013 print: Tables I and II, and what their text says of Figures 3 to 6.

The figures themselves have no numbers that could be read off to more than the text says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

LINEAR_ROAD = "spout parse agg mv toll block".split()
SENTIMENT = (
    "spout filter sentence tok posTag custN cplxP neg baseF sentWord att norm stopWord SA html res"
).split()


@dataclass(frozen=True)
class PrintedTable:
    """Instances and batch rows by step; `what` says with which spout."""

    what: str
    dop: Mapping[str, int]
    batch_rows: Mapping[str, int]


def _printed(what: str, names: list[str], dop: str, batch_rows: str) -> PrintedTable:
    return PrintedTable(
        what,
        dict(zip(names, map(int, dop.split()), strict=True)),
        dict(zip(names, map(int, batch_rows.split()), strict=True)),
    )


TABLES: Mapping[str, tuple[PrintedTable, ...]] = {
    "linear-road": (_printed("Table I", LINEAR_ROAD, "1 20 7 1 1 1", "192 2048 1 1 1 1"),),
    "sentiment": (
        _printed(
            "Table II, a spout without batches",
            SENTIMENT,
            "1 53 2 3 18 2 1 2 2 2 2 2 2 2 3 3",
            "1 2 2 2 4 1 193 1 1 1 1 2 1 1 1 1",
        ),
        _printed(
            "Table II, a spout with batches",
            SENTIMENT,
            "1 619 16 30 228 15 16 18 19 22 21 27 18 19 30 30",
            "606 374 270 284 250 250 193 164 140 124 111 99 99 72 46 366",
        ),
    ),
}

TOLD_IN_TEXT: Mapping[str, Mapping[str, str]] = {
    "linear-road": {
        "figure 3": "about 1250 s for 12 M records in both cases without batching; 6 times faster "
        "with batches alone, 18 times with both",
        "figure 4": "both configurations with batches rise alike for 40 s, then the one without "
        "parallelism falls behind; both without batches stay far below",
        "figure 5": "latency of parse and agg is low without batches and much higher with them, on "
        "a logarithmic axis",
    },
    "sentiment": {
        "figure 3": "batching alone gains nothing, parallelism more than a factor of 10, both "
        "together 20 % on top",
        "figure 6": "all alike for 30 s, then the optimized one is ahead, the one without batches "
        "second",
        "figure 5": "batches raise the latency of complex phrases, and of negate, which takes them",
    },
}
SHOWN_IN_FIGURE_5: Mapping[str, tuple[str, str]] = {
    "linear-road": ("parse", "agg"),
    "sentiment": ("cplxP", "neg"),
}
