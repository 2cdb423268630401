"""Nexmark: every query against native Spark and Flink SQL."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from figure_tables.drawing import table

_PEERS = {
    "over_native": "Spark",
    "over_flink": "Flink",
    "over_bytewax": "Bytewax",
    "over_pathway": "Pathway",
}


def nexmark(found: dict[str, Any]) -> str:
    head = [
        "query",
        "right",
        "rows/s",
        "Spark",
        "Flink",
        "over Spark",
        "over Flink",
        "p95",
        "lines",
    ]
    rows = []
    for name, told in found["queries"].items():
        rates = [told[f"{who}rows_per_s"] for who in ("", "native_", "flink_")]
        ratios = [told["over_native"], told["over_flink"]]
        rows.append(
            [
                f"{name}: {told['title'].rstrip('.')}",
                "yes" if told["right"] else "no",
                *("–" if rate is None else f"{rate:,.0f}" for rate in rates),
                *("–" if ratio is None else f"{ratio:.2f}x" for ratio in ratios),
                "–" if told["p95_latency_s"] is None else f"{told['p95_latency_s']:.2f} s",
                str(told["lines"]),
            ]
        )
    options, machine = found["options"], found["machine"]
    rounds = _rounds(found["queries"].values())
    right = f"{found['right']} of {len(found['queries'])} queries are right"
    note = (
        f"\n\n{_means(found['geometric_means'])} {right}. {options['events']:,} events in "
        f"{options['epochs']} epochs, {options['slots']} slots on {machine['cores']} cores, "
        f"medians of {rounds}; raw numbers in `docs/figures/nexmark.json`."
    )
    return table(head, rows) + note


def _rounds(queries: Iterable[dict[str, Any]]) -> str:
    """How many runs a rate is the median of; `--minutes` may have left the later ones out."""
    counts = {runs for told in queries for runs in told["rounds"].values()}
    return f"{min(counts)} to {max(counts)} rounds" if len(counts) > 1 else f"{max(counts)} rounds"


def _means(means: dict[str, Any]) -> str:
    said = []
    for ratio, peer in _PEERS.items():
        mean = means.get(ratio)
        if mean is not None:
            least, value = next(iter(mean["least"].items()))
            said.append(
                f"{mean['mean']:.2f}x {peer} over {mean['queries']} queries "
                f"(least {value:.2f}x, {least})"
            )
    return f"Geometric mean of the queries with state: {', '.join(said)}." if said else ""
