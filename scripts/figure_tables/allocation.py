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


def balance_spark(found: dict[str, Any]) -> str:
    draw_periods(found["raw"], "planned", "planned load distance, %", "balance-spark", log=True)
    return _job(found, "balance", ["planned", "measured", "distance", "timed", "moves", "seconds"])


def albic_spark(found: dict[str, Any]) -> str:
    draw_periods(found["raw"], "locality", "collocation factor", "albic-spark", log=False)
    ends = found["collocation_factor"], found["load_index"]
    names = ["planned", "measured", "distance", "timed", "moves", "seconds"]
    return _job(found, "albic", names, {"collocation": ends[0], "index": ends[1]})


def _job(
    found: dict[str, Any],
    name: str,
    names: list[str],
    ends: dict[str, dict[str, float]] | None = None,
) -> str:
    """Means over periods by planner, read from the journals of running jobs."""
    options, ends = found["options"], ends or {}
    forms = {"moves": "{:.1f}", "seconds": "{:.3f}", "collocation": "{:.3f}", "index": "{:.0f}"}

    def cell(column: str, value: float | None) -> str:
        return "-" if value is None else forms.get(column, "{:.2f}").format(value)

    columns = {**ends, **{column: found[column] for column in names}}
    rows = [
        [planner, *(cell(column, values.get(planner)) for column, values in columns.items())]
        for planner in found["raw"]
    ]
    plain = ("moves", "seconds", *ends)
    head = ["planner", *(c if c in plain else f"{c} %" for c in columns)]
    note = (
        f"\n\nRunning on Spark: {options['slots']} slots on {found['machine']['cores']} cores, 3 x "
        f"{options['groups']} key groups, {options['periods']} periods of "
        f"{found['rows_per_period']:,.0f} rows of `{found['data']}`, the first "
        f"{options['warm_up']} left out; budget {options['units_max']} moves; all results equal to "
        f"a plain fold; raw numbers in `docs/figures/{name}-spark.json`."
    )
    return table(head, rows) + note


def draw_periods(raw: dict[str, Any], key: str, label: str, name: str, *, log: bool) -> None:
    with picture(name, (8, 3.2)) as axes:
        shades = plt.get_cmap("viridis")
        for i, (planner, lines) in enumerate(raw.items()):
            ours = planner == "headgate"
            color = "#c92a2a" if ours else shades(0.85 * i / max(1, len(raw) - 1))
            axes.plot(
                _values(lines, key), color=color, linewidth=2.2 if ours else 1.2, label=planner
            )
        if log:
            axes.set_yscale("log")
        axes.set_xlabel("period")
        axes.set_ylabel(label)
        axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))


def _values(lines: Any, key: str) -> list[float]:
    """A line of a picture; where a period has no such figure, there is a gap."""
    values = lines[key] if isinstance(lines, dict) else [line[key] for line in lines]
    return [float("nan") if value is None else value for value in values]
