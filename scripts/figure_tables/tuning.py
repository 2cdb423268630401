"""Slots and batches chosen by the system, and slots changed while running."""

from __future__ import annotations

from typing import Any

from figure_tables.drawing import pictures, table


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
    names = list(found["rows_per_s"])
    with pictures(f"tune-{found['flow']}", (9, 2.6), 2) as sides:
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
        sides[0].invert_yaxis()


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
