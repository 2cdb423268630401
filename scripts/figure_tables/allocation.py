"""Where units go: balance, collocation, units cut into pieces."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt

from figure_tables.drawing import picture, table


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
    with picture("split-units", (8, 3.2)) as axes:
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


def draw_periods(raw: dict[str, Any], key: str, label: str, name: str, *, log: bool) -> None:
    with picture(name, (8, 3.2)) as axes:
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
