"""The runtime: throughput, fixed cost, state, growth, what managing costs."""

from __future__ import annotations

from typing import Any

from figure_tables.drawing import picture, table

LABELS = {
    "headgate": "Headgate, both counts split",
    "headgate_keyed": "Headgate, rows sent to their keys",
    "tws": "PySpark, transformWithStateInPandas",
    "native": "Spark, native groupBy().count()",
    "bytewax": "Bytewax",
    "pathway": "Pathway, epoch by epoch",
    "pathway_csv": "Pathway, one transaction over prepared CSV",
    "numpy": "NumPy, one process, no engine",
}


def chain(found: dict[str, Any]) -> str:
    options = found["options"]
    ours = found["headgate_rows_per_s"]
    rows = []
    for name, label in LABELS.items():
        rate = found.get(f"{name}_rows_per_s")
        if rate is not None:
            rows.append([label, f"{rate:,.0f}", f"{ours / rate:.2f}x"])
    large = found["headgate_large_rows_per_s"], found["numpy_large_rows_per_s"]
    csv = found["ratios"].get("headgate_large_over_pathway_csv")
    over_csv = "" if csv is None else f"; that is {csv:.1f}x Pathway over prepared CSV"
    head = [f"{options['rows_per_epoch']:,} rows per epoch", "rows/s", "Headgate is"]
    note = (
        f"\n\nWith {options['large_rows_per_epoch']:,} rows per epoch Headgate runs "
        f"{large[0]:,.0f} rows/s and NumPy {large[1]:,.0f} ({large[1] / large[0]:.1f}x)"
        f"{over_csv}. "
        f"{options['slots']} slots on {found['machine']['cores']} cores, medians of "
        f"{options['rounds']} rounds; raw numbers in `docs/figures/chain.json`."
    )
    draw_chain(found)
    return table(head, rows) + note


def draw_chain(found: dict[str, Any]) -> None:
    names = [n for n in LABELS if f"{n}_rows_per_s" in found]
    rates = [found[f"{n}_rows_per_s"] for n in names]
    with picture("chain", (8, 3.2)) as axes:
        colors = ["#0b7285" if n.startswith("headgate") else "#adb5bd" for n in names]
        bars = axes.barh([LABELS[n] for n in names], rates, color=colors)
        axes.bar_label(bars, [f"{rate:,.0f}" for rate in rates], padding=4, fontsize=9)
        axes.set_xscale("log")
        axes.set_xlim(min(rates) / 2, max(rates) * 6)
        axes.invert_yaxis()
        axes.set_xlabel("rows per second, logarithmic")


def wide(found: dict[str, Any]) -> str:
    rows = [
        [
            f"{mbit} Mbit/s, {mode}",
            f"{link['rows_per_s'][mode]:,.0f}",
            f"{link['locality'][mode]:.2f}",
            f"{link['bytes_shuffled_per_epoch'][mode] / 1e6:,.0f}",
        ]
        for mbit, link in found["links_mbit"].items()
        for mode in ("hash", "tables")
    ]
    options = found["options"]
    ratios = " and ".join(f"{x:.2f}x at {m} Mbit/s" for m, x in found["tables_over_hash"].items())
    note = (
        f"\n\nTables over hash routing: {ratios}; {options['slots']} slots on {options['hosts']} "
        f"hosts that share 2 cores, {options['rows']:,} rows of {options['row_bytes']:,} bytes per "
        "epoch."
    )
    return table(["links, routing", "rows/s", "locality", "MB shuffled per epoch"], rows) + note


def manage(found: dict[str, Any]) -> str:
    names = {
        "plain": "not counting",
        "counting": "counting keys and pairs",
    }
    rows = [[names[name], f"{rate:,.0f}"] for name, rate in found["rows_per_s"].items()]
    note = (
        f"\n\nCounting keeps {found['counting_over_plain']:.1%} of the rows per second. An epoch "
        f"that moves state takes {found['migrating_epoch_over_median']:.2f}x the median epoch "
        f"({found['options']['rows_per_epoch']:,} rows, {found['options']['slots']} slots); raw "
        "numbers in `docs/figures/manage.json`."
    )
    return table(["", "rows/s"], rows) + note


def fixed_cost(found: dict[str, Any]) -> str:
    rows = [
        [LABELS[name], f"{ms:,.0f}", f"{found['empty_epoch_ms']['headgate'] / ms:.2f}x"]
        for name, ms in found["empty_epoch_ms"].items()
    ]
    return table(["one row per epoch, 2 partitions", "ms per epoch", "Headgate costs"], rows)


def state(found: dict[str, Any]) -> str:
    rows = [
        [
            f"{found['held'][name]:,}",
            f"{found['median_cpu_ms'][name]['all']:.1f}",
            f"{found['key_updates_per_s'][name] / 1e6:.1f} M",
        ]
        for name in ("small", "large")
    ]
    head = [f"keys held ({found['touched']:,} touched)", "CPU ms per epoch", "updates/s per core"]
    return table(head, rows) + (
        f"\n\nRatio {found['ratio']:.2f} of the medians, {found['ratio_of_best']:.2f} of the best."
    )


def growth(found: dict[str, Any]) -> str:
    rows = [[name, f"{rate:,.0f}"] for name, rate in found["rows_per_s"].items()]
    return table(["setting", "rows/s"], rows)
