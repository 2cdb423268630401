"""Where units go: balance and collocation."""

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
