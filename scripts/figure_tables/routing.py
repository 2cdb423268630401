"""Where rows go: pairs known, cost-aware shuffle, hot keys."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt

from figure_tables.drawing import picture, table


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
    with picture("edges", (8, 3.4)) as axes:
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


OSG_LABELS = {
    "round_robin": "round robin",
    "random": "random",
    "local_or_shuffle": "local or shuffle (sources by author)",
    "power_of_two": "power of two, by exact queue length",
    "load_aware": "load-aware, as Storm",
    "osg_paper": "OSG, as in the paper",
    "osg_cumulated": "OSG, ours with the paper's accounts",
    "osg": "OSG, ours",
    "osg_each": "OSG, ours, an answer per tuple",
    "all_known": "all times known (bound)",
}


EPOCH_LABELS = {
    "round_robin": "round robin",
    "many_small_partitions": "many small partitions",
    "osg": "online greedy",
    "longest_first": "longest first",
    "all_known": "longest first, all times known (bound)",
}


DEAL_LABELS = {
    "round_robin": "round robin",
    "local_or_shuffle": "local or shuffle (sources by author)",
    "power_of_two": "power of two, by rows sent",
    "load_aware": "load-aware, by rows sent",
    "small_partitions": "many small partitions",
    "paper": "`paper`",
    "online": "`online`",
    "cost_online": "`online`",
    "longest_first": "`batch`, longest first",
    "cost": "`batch`, longest first",
    "means_known": "longest first, all means known",
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
    told = [
        [f"{word}, {OSG_LABELS[name]}", *(form.format(found[what][name][k]) for k in ks)]
        for word, what, form in (
            ("messages", "messages", "{:,.0f}"),
            ("error of estimates", "error", "{:.2f}"),
        )
        for name in found["messages"]
    ]
    text += table(["messages and estimates, instances:", *ks], told) + "\n\n"
    head = [f"micro-batches, load {options['epoch_load']}: completion time, instances:", *ks]
    rows = [
        [label, *(f"{found['epochs'][name][k]['speedup']:.2f}" for k in ks)]
        for name, label in EPOCH_LABELS.items()
    ]
    text += table(head, rows)
    text += "\n\n" + deals(found["deals"]["over_bound"], "simulated", ks)
    errors = found["timing_error"]
    seen = list(errors["per_row"])
    head = ["error of estimates, rows seen:", *(f"{int(n):,}" for n in seen)]
    rows = [[way.replace("_", " "), *(f"{by[n]:.2f}" for n in seen)] for way, by in errors.items()]
    text += "\n\n" + table(head, rows)
    draw_osg(found)
    return text + "\n\nRaw numbers in `docs/figures/osg.json`."


def deals(over: dict[str, Any], where: str, ks: list[str]) -> str:
    """Busiest instance over the bound: for every stream, the least, a middle and the most rows."""
    tables = []
    for stream, by_rows in over.items():
        sizes = list(by_rows)
        for rows in dict.fromkeys((sizes[0], sizes[len(sizes) // 2], sizes[-1])):
            by_name = by_rows[rows]
            head = [f"{where}, {stream}, {int(rows):,} rows; instances:", *ks]
            tables.append(
                table(
                    head,
                    [
                        [label, *(f"{by_name[n][k]:.2f}" if k in by_name[n] else "" for k in ks)]
                        for n, label in DEAL_LABELS.items()
                        if n in by_name
                    ],
                )
            )
    return "\n\n".join(tables)


def osg_sync(found: dict[str, Any]) -> str:
    """What synchronisation brings: in a stream of single tuples, and where there are epochs."""
    many = list(found["synchronisation"]["osg"]["never"])
    head = ["speed-up (messages), schedulers:", *many]
    ways = {
        "never": "never settled",
        "request": "request and reply",
        "rows": "every 8 tuples",
    }
    rows = [
        [
            f"{OSG_LABELS[name]}: {word}",
            *(f"{by[way][n]['speedup']:.2f} ({by[way][n]['messages']:,.0f})" for n in many),
        ]
        for name, by in found["synchronisation"].items()
        for way, word in ways.items()
    ]
    text = table(head, rows)
    for what, word in (("schedulers", "source tasks"), ("debts", "debts of epochs before")):
        by_name = found["deals"][what]
        known = list(next(iter(by_name.values())))
        sizes = list(dict.fromkeys((known[0], known[len(known) // 2], known[-1])))
        ks = [k for k in ("2", "5", "10") if k in next(iter(by_name.values()))[sizes[0]]]
        head = [
            f"busiest over the bound; {word}",
            *(f"{int(n):,}, k={k}" for n in sizes for k in ks),
        ]
        rows = [
            [name, *(f"{by[n][k]:.3f}" for n in sizes for k in ks)] for name, by in by_name.items()
        ]
        text += "\n\n" + table(head, rows)
    return text


def osg_spark(found: dict[str, Any]) -> str:
    """The same on Spark: what was dealt, and the gain in rows' time and in stages."""
    ks = sorted({str(one["k"]) for one in found["epochs"]}, key=int)
    text = deals(found["over_bound"], "Spark", ks)
    head = ["gain of `batch` over round robin, mean (least)", "rows' time", "Spark's stages"]
    rows = [
        [
            f"{stream}, {int(n):,} rows",
            *(_gain(found[of][stream][n]) for of in ("gain", "stage_gain")),
        ]
        for stream, by_rows in found["gain"].items()
        for n in by_rows
    ]
    text += "\n\n" + table(head, rows)
    return text + "\n\nRaw numbers in `docs/figures/osg-spark.json`."


def _gain(by_name: dict[str, Any]) -> str:
    return f"{by_name['cost']['mean']:.2f}x ({by_name['cost']['least']:.2f}x)"


def draw_osg(found: dict[str, Any]) -> None:
    with picture("osg", (8, 3.4)) as axes:
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


GROUPINGS = {
    "hash": "`hash`",
    "dkg": "`dkg`",
    "pkg": "`pkg`",
    "d_choices": "`d_choices`",
    "w_choices": "`w_choices`",
    "cut": "`cut`",
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
    with picture("skew", (8, 3.4)) as axes:
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
