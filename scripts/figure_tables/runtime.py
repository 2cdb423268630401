"""The runtime: throughput, fixed cost, state, growth, what managing costs."""

from __future__ import annotations

from typing import Any

from figure_tables.drawing import picture, table

LABELS = {
    "split": "Headgate, both counts split",
    "keyed": "Headgate, rows sent to their keys",
    "native_rocksdb": "Spark, native groupBy().count(), RocksDB",
    "native_memory": "Spark, native groupBy().count(), state in memory",
    "tws": "PySpark, transformWithStateInPandas",
    "flink": "Flink SQL over prepared CSV",
    "bytewax": "Bytewax",
    "pathway": "Pathway, epoch by epoch",
    "pathway_csv": "Pathway, one transaction over prepared CSV",
    "duckdb": "DuckDB, tables made again every epoch",
    "numpy": "NumPy, one process, no engine",
}


def chain(found: dict[str, Any]) -> str:
    options = found["options"]
    counts = options["rows_per_epoch"], options["large_rows_per_epoch"]
    rates = {
        count: {name: found.get(f"{name}{size}_rows_per_s") for name in LABELS}
        for count, size in zip(counts, ("", "_large"), strict=True)
    }
    ratios = found["ratios"]
    note = (
        f"\n\nAgainst the better of Spark's stores: split {ratios['split_over_native']:.2f}x and "
        f"by key {ratios['keyed_over_native']:.2f}x with {counts[0]:,} rows per epoch, "
        f"{ratios['split_over_native_large']:.2f}x and {ratios['keyed_over_native_large']:.2f}x "
        f"with {counts[1]:,}. {options['slots']} slots on {found['machine']['cores']} cores, "
        f"medians of {options['rounds']} rounds; raw numbers in `docs/figures/chain.json`."
    )
    draw_chain(found)
    return against("split", LABELS, "rows per epoch", rates) + note


def against(
    ours: str, labels: dict[str, str], of: str, by_size: dict[int, dict[str, float | None]]
) -> str:
    """Rates of all, and how many times as fast `ours` is, for each size."""
    head, rows = [of], [[label] for label in labels.values()]
    for size, rates in by_size.items():
        head += [f"{size:,}: rows/s", f"{ours} is"]
        for cells, name in zip(rows, labels, strict=True):
            rate, mine = rates[name], rates[ours]
            known = rate is not None and mine is not None
            cells += [f"{rate:,.0f}", f"{mine / rate:.2f}x"] if known else ["–", "–"]
    return table(head, rows)


def draw_chain(found: dict[str, Any]) -> None:
    names = [n for n in LABELS if f"{n}_rows_per_s" in found]
    with picture("chain", (8, 4.4)) as axes:
        for offset, size, colors in (
            (-0.2, "", ("#0b7285", "#adb5bd")),
            (0.2, "_large", ("#66d9e8", "#dee2e6")),
        ):
            rates = [found.get(f"{n}{size}_rows_per_s", float("nan")) for n in names]
            bars = axes.barh(
                [place + offset for place in range(len(names))],
                rates,
                height=0.38,
                color=[colors[n not in ("split", "keyed")] for n in names],
            )
            axes.bar_label(bars, [f"{rate:,.0f}" for rate in rates], padding=4, fontsize=8)
        axes.set_yticks(range(len(names)), [LABELS[n] for n in names])
        axes.set_xscale("log")
        axes.set_xlim(1e4, 1e9)
        axes.invert_yaxis()
        counts = found["options"]["rows_per_epoch"], found["options"]["large_rows_per_epoch"]
        axes.set_xlabel(
            f"rows per second, logarithmic; epochs of {counts[0]:,} rows (dark) and {counts[1]:,}"
        )


def text(found: dict[str, Any]) -> str:
    labels = {
        "split": "Headgate, both sums split",
        "keyed": "Headgate, rows sent to their keys",
        "native_rocksdb": LABELS["native_rocksdb"].replace("count()", "sum()"),
        "native_memory": LABELS["native_memory"].replace("count()", "sum()"),
        "flink": LABELS["flink"],
        "duckdb": LABELS["duckdb"],
    }
    ours = found["split_rows_per_s"]
    rates = {name: found.get(f"{name}_rows_per_s") for name in labels}
    rows = [
        [labels[name], f"{rate:,.0f}", f"{ours / rate:.2f}x"]
        for name, rate in rates.items()
        if rate is not None
    ]
    options, flink = found["options"], found["split_over_flink"]
    over_flink = "" if flink is None else f", split {flink:.1f}x Flink SQL"
    note = (
        f"\n\nAgainst the better store: split {found['split_over_native']:.2f}x, by key "
        f"{found['keyed_over_native']:.2f}x{over_flink}. {options['rows_per_epoch']:,} rows per "
        f"epoch, {options['slots']} slots on {found['machine']['cores']} cores, medians of "
        f"{options['rounds']} rounds; raw numbers in `docs/figures/text.json`."
    )
    return table(["sums by two text keys", "rows/s", "split is"], rows) + note


def wide_rows(found: dict[str, Any]) -> str:
    labels = {
        "parked": "Headgate, wide columns wait in files",
        "travelling": "Headgate, they travel",
        "native": "native Spark, shuffled by the same keys",
    }
    rates = {int(size): by_name for size, by_name in found["rows_per_s"].items()}
    options = found["options"]
    note = (
        f"\n\nEpochs of {options['epoch_bytes'] / 1e6:,.0f} MB, {options['slots']} slots on "
        f"{found['machine']['cores']} cores, medians of {options['rounds']} rounds; raw numbers in "
        "`docs/figures/rows.json`."
    )
    return against("parked", labels, "bytes per row", rates) + note


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
    labels = {
        "headgate": LABELS["split"],
        "tws": LABELS["tws"],
        "native_as_it_comes": "Spark, native groupBy().count(), as it comes",
        "native_rocksdb": LABELS["native_rocksdb"] + ", tuned files",
        "native_memory": LABELS["native_memory"] + ", tuned files",
    }
    rows = [
        [labels[name], f"{ms:,.0f}", f"{found['empty_epoch_ms']['headgate'] / ms:.2f}x"]
        for name, ms in found["empty_epoch_ms"].items()
    ]
    return table(["one row per epoch, 2 partitions", "ms per epoch", "Headgate costs"], rows)


def fixed_cost_parts(found: dict[str, Any]) -> str:
    rows = [
        [f"{at['levels']}, {at['slots']}"]
        + [f"{at[name]:,.0f}" for name in ("epoch", "spark", "driver", "job", "python")]
        for at in found["parts"].values()
    ]
    head = ["exchanges, slots", "ms per epoch", "Spark", "driver", "job", "of it Python"]
    return table(head, rows)


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


def vocabulary(found: dict[str, Any]) -> str:
    rates, ratios = found["rows_per_s_per_core"], found["sliding_over_tumbling"]
    rows = []
    for keys, ratio in ratios.items():
        minute = f"tumbling windows of a minute, {int(keys):,} keys"
        rows.append([minute, f"{rates[f'tumbling_{keys}']:,.0f}", ""])
        hour = f"sliding windows of an hour, each minute, {int(keys):,} keys"
        rows.append([hour, f"{rates[f'sliding_{keys}']:,.0f}", f"{ratio:.2f}x"])
    sessions = f"sessions, {found['options']['session_keys']:,} keys"
    rows.append([sessions, f"{rates['sessions']:,.0f}", ""])
    rows.append(["interval join of orders and payments", f"{rates['join']:,.0f}", ""])
    return table(["operator", "rows/s of a core", "cost over tumbling"], rows)


def growth(found: dict[str, Any]) -> str:
    rows = [[name, f"{rate:,.0f}"] for name, rate in found["rows_per_s"].items()]
    return table(["setting", "rows/s"], rows)
