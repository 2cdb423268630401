"""Put measured numbers into the docs: tables between markers, and the figure of the README.

Reads docs/figures/NAME.json, which `headgate bench NAME --json docs/figures/NAME.json` wrote, raw
numbers included (for state and split-units: `python benchmarks/bench_NAME.py >` that file). A bench
that has no file leaves its place in the docs as it is.

    python scripts/figures.py              # all
    python scripts/figures.py osg edges    # some
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

ROOT = Path(__file__).resolve().parent.parent
FIGURES = ROOT / "docs" / "figures"
GUIDE = ROOT / "docs" / "guide"
PAGES = (
    ROOT / "README.md",
    GUIDE / "performance.md",
    GUIDE / "cost-aware-shuffle.md",
    GUIDE / "locality.md",
    GUIDE / "allocation.md",
    GUIDE / "batching.md",
    GUIDE / "tuning.md",
    ROOT / "docs" / "decisions" / "0017-batching.md",
    GUIDE / "hot-keys.md",
)
LABELS = {
    "headgate": "Headgate",
    "tws": "PySpark, transformWithStateInPandas",
    "native": "Spark, native groupBy().count()",
    "bytewax": "Bytewax",
    "pathway": "Pathway, epoch by epoch",
    "pathway_csv": "Pathway, one transaction over prepared CSV",
    "numpy": "NumPy, one process, no engine",
}


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


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
    plt.rcParams.update({"svg.hashsalt": "headgate", "font.family": "sans-serif"})
    figure, axes = plt.subplots(figsize=(8, 2.9), layout="constrained")
    colors = ["#0b7285" if n == "headgate" else "#adb5bd" for n in names]
    bars = axes.barh([LABELS[n] for n in names], rates, color=colors)
    axes.bar_label(bars, [f"{rate:,.0f}" for rate in rates], padding=4, fontsize=9)
    axes.set_xscale("log")
    axes.set_xlim(min(rates) / 2, max(rates) * 6)
    axes.invert_yaxis()
    axes.set_xlabel("rows per second, logarithmic")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(FIGURES / "chain.svg", metadata={"Date": None}, facecolor="white")
    plt.close(figure)


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


def edges(found: dict[str, Any]) -> str:
    options = found["options"]
    head = ["heaviest pairs known", *(f"{n} slots" for n in found["locality"])]
    rows = [["hash, none", *(f"{share:.1%}" for share in found["hash_locality"].values())]]
    for i, k in enumerate(found["edges"]):
        name = f"{k:,}" if k != found["edges"][-1] else f"all, {k:,} on average"
        rows.append([name, *(f"{shares[i]:.1%}" for shares in found["locality"].values())])
    note = (
        f"\n\nLocality on the {options['period']:,} rows that follow a window of "
        f"{options['window']:,} rows, mean of {options['windows']} windows of `{found['data']}`; "
        f"alpha {options['alpha']:g}; raw numbers in `docs/figures/edges.json`."
    )
    draw_edges(found)
    return table(head, rows) + note


def draw_edges(found: dict[str, Any]) -> None:
    plt.rcParams.update({"svg.hashsalt": "headgate", "font.family": "sans-serif"})
    figure, axes = plt.subplots(figsize=(8, 3.4), layout="constrained")
    shades = plt.get_cmap("viridis")
    for i, (slots, shares) in enumerate(found["locality"].items()):
        color = shades(0.85 * i / max(1, len(found["locality"]) - 1))
        axes.plot(found["edges"], shares, marker="o", markersize=4, color=color, label=slots)
        axes.axhline(found["hash_locality"][slots], color=color, linewidth=0.8, linestyle=":")
    axes.set_xscale("log")
    axes.set_ylim(0, None)
    axes.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    axes.set_xlabel("heaviest pairs known to the planner, logarithmic (dotted: hash)")
    axes.set_ylabel("locality on the rows after")
    axes.legend(title="slots", frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(FIGURES / "edges.svg", metadata={"Date": None}, facecolor="white")
    plt.close(figure)


OSG_LABELS = {
    "round_robin": "round robin",
    "random": "random",
    "local_or_shuffle": "local or shuffle (sources by author)",
    "power_of_two": "power of two, by exact queue length",
    "load_aware": "load-aware, as Storm",
    "osg_paper": "OSG, debts settled with sketches only",
    "osg": "OSG",
    "all_known": "all times known (bound)",
}
EPOCH_LABELS = {
    "round_robin": "round robin",
    "many_small_partitions": "many small partitions",
    "osg": "online greedy",
    "longest_first": "longest first",
    "all_known": "longest first, all times known (bound)",
}


def osg(found: dict[str, Any]) -> str:
    """Three tables: the stream, the same in micro-batches, Spark."""
    ks = list(found["speedup_by_k"]["osg"])
    head = ["speed-up over round robin, instances:", *ks]
    rows = [
        [label, *(f"{found['speedup_by_k'][name][k]:.2f}" for k in ks)]
        for name, label in OSG_LABELS.items()
    ]
    options = found["options"]
    text = table(head, rows) + (
        f"\n\nMean {found['speedup_mean']:.2f}, largest {found['speedup_max']:.2f}, least "
        f"{found['speedup_min']:.2f} (the paper: 1.5, 3.4, 1.05). {options['tuples']:,} tuples, "
        f"loads {', '.join(map(str, options['loads']))}, {options['seeds']} seeds each.\n\n"
    )
    head = [f"micro-batches, load {options['epoch_load']}: completion time, instances:", *ks]
    rows = [
        [label, *(f"{found['epochs'][name][k]['speedup']:.2f}" for k in ks)]
        for name, label in EPOCH_LABELS.items()
    ]
    text += table(head, rows)
    if "spark" in found:
        rows = [
            [
                name.replace("_", " "),
                *(f"{found['spark'][s]['stage_ms'][name]:,.0f}" for s in SPARK),
            ]
            for name in found["spark"]["mixed"]["stage_ms"]
        ]
        text += (
            "\n\n"
            + table(["Spark, 2 cores: ms per stage", *SPARK], rows)
            + (
                f"\n\nRound robin over cost: {_over(found, 'round_robin')}. The better of "
                f"both small partitions over cost: {_over(found, 'small_partitions')}."
            )
        )
    draw_osg(found)
    return text + "\n\nRaw numbers in `docs/figures/osg.json`."


SPARK = ("interleaved", "mixed")


def _over(found: dict[str, Any], name: str) -> str:
    ratios = (found["spark"][s][f"stage_{name}_over_cost"] for s in SPARK)
    return ", ".join(f"{ratio:.2f}x {s}" for ratio, s in zip(ratios, SPARK, strict=True))


def draw_osg(found: dict[str, Any]) -> None:
    plt.rcParams.update({"svg.hashsalt": "headgate", "font.family": "sans-serif"})
    figure, axes = plt.subplots(figsize=(8, 3.4), layout="constrained")
    for name, label in OSG_LABELS.items():
        took = found["completion_ms"][name]
        ours = name == "osg"
        axes.plot(
            [int(k) for k in took],
            list(took.values()),
            marker="o",
            markersize=4 if ours else 2,
            linewidth=2 if ours else 1,
            color="#0b7285" if ours else None,
            label=label,
        )
    axes.set_yscale("log")
    axes.set_xlabel("instances")
    axes.set_ylabel("mean completion time, ms")
    axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(FIGURES / "osg.svg", metadata={"Date": None}, facecolor="white")
    plt.close(figure)


def tune(found: dict[str, Any]) -> str:
    draw_tune(found)
    simulated, raw = found["simulated"]["rows_per_s"], found["seconds_per_row_raw"]
    rows = [
        [
            name.replace("_", " "),
            f"{rate:,.0f}",
            " / ".join(f"{1 / cost:,.0f}" for cost in raw[name]),
            f"{found['predicted_rows_per_s'][name]:,.0f}",
            f"{found['latency_ms'][name]:,.0f}",
            f"{simulated[name]:,.0f}",
        ]
        for name, rate in found["rows_per_s"].items()
    ]
    ratios, chosen = found["ratios"], found["settings"]["optimized"]
    best = found["settings"]["grid_best"]
    note = (
        f"\n\n{found['flow']}: optimized is {ratios['optimized_over_not_optimized']:.1f}x not "
        f"optimized, {ratios['optimized_over_only_batching']:.2f}x only batching, and "
        f"{ratios['optimized_over_grid_best']:.0%} of the best of a grid of {len(found['grid'])} "
        f"({found['grid_best_rows_per_s']:,.0f} rows/s in the same rounds, with {best['slots']} "
        f"slots and {best['rows_per_epoch']:,} rows per epoch). The optimizer took "
        f"{found['optimize_seconds'] * 1e3:.0f} ms for {chosen['slots']} slots and "
        f"{chosen['rows_per_epoch']:,} rows per epoch, with a bound of "
        f"{found['options']['rows_max']:,}. {found['machine']['cores']} cores; medians of "
        f"{len(raw['optimized'])} rounds; the simulation is of the paper's twelve machines.\n\n"
        f"![rows per second of the four configurations](../figures/tune-{found['flow']}.svg)"
    )
    head = [
        "configuration",
        "rows/s",
        "by round",
        "predicted",
        "ms per epoch",
        "simulated cluster, rows/s",
    ]
    return table(head, rows) + note


def draw_tune(found: dict[str, Any]) -> None:
    plt.rcParams.update({"svg.hashsalt": "headgate", "font.family": "sans-serif"})
    figure, sides = plt.subplots(1, 2, figsize=(9, 2.6), sharey=True, layout="constrained")
    names = list(found["rows_per_s"])
    for axes, rates, title in (
        (sides[0], found["rows_per_s"], f"Spark, {found['machine']['cores']} cores"),
        (sides[1], found["simulated"]["rows_per_s"], "the paper's cluster, simulated"),
    ):
        shown = [rates[name] for name in names]
        colors = ["#0b7285" if name == "optimized" else "#adb5bd" for name in names]
        bars = axes.barh([name.replace("_", " ") for name in names], shown, color=colors)
        axes.bar_label(bars, [f"{rate:,.0f}" for rate in shown], padding=4, fontsize=9)
        axes.set_xscale("log")
        axes.set_xlim(min(shown) / 2, max(shown) * 6)
        axes.set_xlabel("rows per second, logarithmic")
        axes.set_title(title, fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    sides[0].invert_yaxis()
    name = f"tune-{found['flow']}.svg"
    figure.savefig(FIGURES / name, metadata={"Date": None}, facecolor="white")
    plt.close(figure)


SCALERS = {
    "headgate": "headgate",
    "ds2": "DS2",
    "ds2_headroom": "DS2, 25 % headroom",
    "ds2_activation_5": "DS2, 25 % headroom, median of 5",
}


def rescale(found: dict[str, Any]) -> str:
    rows = [
        [
            SCALERS[name],
            f"{told['reconfigurations']}",
            f"{told['overloaded_share']:.1%}",
            f"{told['instances_mean']:.1f}",
        ]
        for name, told in found["scalers"].items()
    ]
    first = table(["", "reconfigurations", "intervals overloaded", "instances, mean"], rows)
    gentle = "ds2_activation_5"
    others = [
        [
            name,
            f"{told['scalers']['headgate']['reconfigurations']}",
            ", ".join(f"{share:.0%}" for share in told["reconfigurations_over_ds2"].values()),
            f"{told['scalers']['headgate']['overloaded_share']:.1%} : "
            f"{told['scalers'][gentle]['overloaded_share']:.1%}",
            f"{told['scalers']['headgate']['instances_mean']:.1f} : "
            f"{told['scalers'][gentle]['instances_mean']:.1f}",
        ]
        for name, told in found["others"].items()
    ]
    head = [
        "trace",
        "reconfigurations",
        "of DS2's, three settings",
        "overloaded, ours : DS2's gentlest",
        "instances, ours : DS2's gentlest",
    ]
    told = "The same on traces that nothing was chosen on; the last three are real ones:"
    return f"{first}\n\n{told}\n\n{table(head, others)}"


GROUPINGS = {
    "hash": "`hash`",
    "dkg": "`dkg`",
    "pkg": "`pkg`",
    "d_choices": "`d_choices`",
    "w_choices": "`w_choices`",
    "split": "`split`",
}


def skew(found: dict[str, Any]) -> str:
    options = found["options"]
    uneven = found["imbalance"]
    head = ["imbalance at Zipf", *uneven["hash"]]
    rows = [[GROUPINGS[g], *(f"{x:.2f}" for x in uneven[g].values())] for g in GROUPINGS]
    some = [z for z in uneven["hash"] if z in ("1", "1.4", "2")]
    price = [
        [
            GROUPINGS[g],
            *(f"{found['merge_rows'][g][z]:,.0f}" for z in some),
            *(f"{found['state_replication'][g][z]:.3f}" for z in some),
        ]
        for g in GROUPINGS
    ]
    words = [f"{what} {z}" for what in ("merge rows at", "copies at") for z in some]
    note = (
        f"\n\n{options['slots']} slots, {options['source_tasks']} source tasks, epochs of "
        f"{options['rows_per_epoch']:,} rows of {options['keys']:,} keys; means of the epochs "
        f"after the first {options['learning']}. Merge rows are per epoch. Copies: slots "
        "that process a key in an epoch, on average. Raw numbers in `docs/figures/skew.json`."
    )
    draw_skew(found)
    return table(head, rows) + "\n\n" + table(["its price at Zipf", *words], price) + note


def draw_skew(found: dict[str, Any]) -> None:
    plt.rcParams.update({"svg.hashsalt": "headgate", "font.family": "sans-serif"})
    figure, axes = plt.subplots(figsize=(8, 3.4), layout="constrained")
    shades = plt.get_cmap("viridis")
    for i, grouping in enumerate(GROUPINGS):
        by_zipf = found["imbalance"][grouping]
        axes.plot(
            [float(z) for z in by_zipf],
            list(by_zipf.values()),
            marker="o",
            markersize=4,
            linestyle="--" if grouping in ("hash", "d_choices") else "-",
            color=shades(0.85 * i / (len(GROUPINGS) - 1)),
            label=grouping,
        )
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda y, _: f"{y:g}")
    axes.yaxis.set_minor_formatter(lambda y, _: f"{y:g}" if y in (2, 5) else "")
    axes.set_xlabel("Zipf exponent of the keys")
    axes.set_ylabel("busiest slot over the mean")
    axes.legend(title="grouping", frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(FIGURES / "skew.svg", metadata={"Date": None}, facecolor="white")
    plt.close(figure)


def balance(found: dict[str, Any]) -> str:
    options, free = found["options"], found["unlimited"]
    rows = [
        [
            name,
            f"{distance['mean']:.2f}",
            f"{distance['max']:.2f}",
            f"{found['migrations'][name]:.1f}",
            f"{free['load_distance_pct'][name]['mean']:.2f}",
            f"{free['migrations'][name]:.1f}",
            f"{found['next_load_distance_pct'][name]['mean']:.0f}",
        ]
        for name, distance in found["load_distance_pct"].items()
    ]
    head = [
        "planner",
        "mean %",
        "max %",
        "moves",
        "no budget: mean %",
        "moves",
        "next period: mean %",
    ]
    note = (
        f"\n\nLoad distance in percent of the mean load, right after the moves of a period. "
        f"{options['nodes']} nodes, 3 x {options['groups']} key groups, {options['periods']} "
        f"periods of {found['rows_per_period']:,.0f} rows of `{found['data']}`, the first "
        f"{options['warm_up']} left out; budget {options['migrations_max']} moves; raw numbers in "
        "`docs/figures/balance.json`."
    )
    draw_periods(found["raw"], "distance", "load distance, % of the mean", "balance", log=True)
    return table(head, rows) + note


def albic(found: dict[str, Any]) -> str:
    options = found["options"]
    rows = [
        [
            name,
            f"{share:.3f}",
            f"{found['periods_to_collocation'][name]}",
            f"{found['load_distance_pct'][name]:.2f}",
            f"{found['planned_load_distance_pct'][name]:.2f}",
            f"{found['load_index'][name]:.0f}",
            f"{found['migrations_per_period'][name]:.1f}",
        ]
        for name, share in found["collocation_factor"].items()
    ]
    head = [
        "planner",
        "collocation",
        "periods to ALBIC's",
        "distance %",
        "as planned %",
        "index",
        "moves",
    ]
    note = (
        f"\n\n{options['nodes']} nodes, 3 x {options['groups_per_node']} key groups per node, "
        f"{options['periods']} days of `{found['data']}`, budget {options['migrations_max']} moves "
        f"a period; collocation and load index are means of the last {options['settled']} periods; "
        "raw numbers in `docs/figures/albic.json`."
    )
    draw_periods(found["raw"], "collocation", "collocation factor", "albic", log=False)
    return table(head, rows) + note


def split_units(found: dict[str, Any]) -> str:
    options = found["options"]
    rows = [
        [
            zipf,
            f"{at['heaviest_key_of_mean']:.2f}",
            f"{at['whole_distance_pct']:.1f}",
            f"{at['split_distance_pct']:.1f}",
            f"{at['units_cut']:g}",
            f"{at['pieces']:g}",
            f"{at['merge_rows_pct']:.3f}",
            f"{at['whole_moves']:g} / {at['split_moves']:g}",
            f"{at['rounds_to_rest']:g}",
            f"{at['seconds']:.2f}",
        ]
        for zipf, at in found["by_zipf"].items()
    ]
    head = [
        "Zipf",
        "heaviest key, of a node's mean",
        "whole units: distance %",
        "split: distance %",
    ]
    head += ["keys cut", "pieces", "merge rows, % of rows", "moves whole / split"]
    head += ["plans to rest", "seconds"]
    note = (
        f"\n\n{options['keys']:,} keys on {options['nodes']} nodes, load distance of "
        f"{options['limit_pct']:g} % allowed, a budget of {options['keys'] // 10} moves; medians "
        f"of {options['seeds']} seeds; raw numbers in `docs/figures/split-units.json`."
    )
    draw_split_units(found)
    return table(head, rows) + note


def draw_split_units(found: dict[str, Any]) -> None:
    plt.rcParams.update({"svg.hashsalt": "headgate", "font.family": "sans-serif"})
    figure, axes = plt.subplots(figsize=(8, 3.2), layout="constrained")
    zipf = [float(z) for z in found["by_zipf"]]
    for name, label, color in (
        ("whole_distance_pct", "whole units", "#3b528b"),
        ("split_distance_pct", "split units", "#c92a2a"),
    ):
        lines = [at[name] for at in found["by_zipf"].values()]
        axes.plot(zipf, lines, color=color, marker="o", markersize=4, label=label)
    limit = found["options"]["limit_pct"]
    axes.axhline(limit, color="black", linewidth=1, linestyle="--", label="allowed")
    axes.set_yscale("symlog", linthresh=10)
    axes.set_yticks([0, 5, 10, 100, 1000], ["0", "5", "10", "100", "1000"])
    axes.set_xlabel("Zipf exponent of the keys")
    axes.set_ylabel("load distance, % of the mean")
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(FIGURES / "split-units.svg", metadata={"Date": None}, facecolor="white")
    plt.close(figure)


def draw_periods(raw: dict[str, Any], key: str, label: str, name: str, *, log: bool) -> None:
    plt.rcParams.update({"svg.hashsalt": "headgate", "font.family": "sans-serif"})
    figure, axes = plt.subplots(figsize=(8, 3.2), layout="constrained")
    shades = plt.get_cmap("viridis")
    for i, (planner, lines) in enumerate(raw.items()):
        ours = planner == "headgate"
        color = "#c92a2a" if ours else shades(0.85 * i / max(1, len(raw) - 1))
        axes.plot(lines[key], color=color, linewidth=2.2 if ours else 1.2, label=planner)
    if log:
        axes.set_yscale("log")
    axes.set_xlabel("period")
    axes.set_ylabel(label)
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(FIGURES / f"{name}.svg", metadata={"Date": None}, facecolor="white")
    plt.close(figure)


WRITERS: dict[str, Callable[[dict[str, Any]], str]] = {
    "chain": chain,
    "wide": wide,
    "manage": manage,
    "fixed-cost": fixed_cost,
    "state": state,
    "growth": growth,
    "edges": edges,
    "balance": balance,
    "albic": albic,
    "split-units": split_units,
    "osg": osg,
    "tune-linear-road": tune,
    "tune-sentiment": tune,
    "rescale": rescale,
    "skew": skew,
}


def main() -> None:
    for name in sys.argv[1:] or WRITERS:
        source = FIGURES / f"{name}.json"
        if not source.exists():
            continue
        text = WRITERS[name](json.loads(source.read_text()))
        for page in PAGES:
            before = page.read_text()
            marked = re.compile(rf"(<!-- {name}:start -->\n).*?(<!-- {name}:end -->)", re.DOTALL)
            page.write_text(marked.sub(lambda m, t=text: f"{m[1]}{t}\n{m[2]}", before))


if __name__ == "__main__":
    main()
