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
            f"{found['latency_p95_ms'][name]:,.0f}" if "latency_p95_ms" in found else "",
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
        f"slots, {best['rows_per_epoch']:,} rows per epoch and {_batch(best['batch'])}"
        f"{', chosen but for batches' if found['same_setting'] else ''}). The optimizer took "
        f"{found['optimize_seconds'] * 1e3:.0f} ms for {chosen['slots']} slots and "
        f"{chosen['rows_per_epoch']:,} rows per epoch. Without batching "
        f"{found['fixed_share']['not_optimized']:.0%} of an epoch is its fixed cost. "
        f"{found['machine']['cores']} cores; medians of "
        f"{len(raw['optimized'])} rounds; the simulation is of the paper's twelve machines.\n\n"
        f"![rows per second of the four configurations](../figures/tune-{found['flow']}.svg)"
    )
    head = [
        "configuration",
        "rows/s",
        "by round",
        "predicted",
        "latency, mean, ms",
        "p95, ms",
        "simulated cluster, rows/s",
    ]
    return table(head, rows) + note


def _batch(rows: int | None) -> str:
    return "batches as large as they get" if rows is None else f"{rows:,} rows per batch"


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


def curves(found: dict[str, Any]) -> str:
    """Throughput and latency against batch rows, and against rows per epoch."""
    draw_curves(found)
    parts = []
    for name, points in found["curves"].items():
        rows = [
            [
                _axis(name, point),
                f"{point['rows_per_s']:,.0f}",
                f"{point['predicted_rows_per_s']:,.0f}",
                f"{point['latency_p50_ms']:,.0f}",
                f"{point['latency_p95_ms']:,.0f}",
                f"{point['predicted_latency_p95_ms']:,.0f}",
            ]
            for point in points
        ]
        head = [name.replace("_", " "), "rows/s", "predicted", "p50, ms", "p95, ms", "predicted"]
        best = found["best"][name]
        told = f"Fastest: {_axis(name, points[best['measured']])}"
        told += f"; by the model: {_axis(name, points[best['predicted']])}."
        parts += [table(head, rows), told]
    picture = f"![throughput and latency](../figures/curves-{found['flow']}.svg)"
    return "\n\n".join([*parts, picture])


def _axis(name: str, point: dict[str, Any]) -> str:
    return "all that fit" if point[name] is None else f"{point[name]:,}"


def draw_curves(found: dict[str, Any]) -> None:
    with pictures(f"curves-{found['flow']}", (9, 3.2), 2) as sides:
        for axes, (name, points) in zip(sides, found["curves"].items(), strict=True):
            at = range(len(points))
            axes.plot(at, [p["rows_per_s"] for p in points], "o-", color="#0b7285", label="rows/s")
            axes.plot(
                at, [p["predicted_rows_per_s"] for p in points], ":", color="#0b7285", alpha=0.6
            )
            axes.set_yscale("log")
            axes.set_xticks(list(at), [_axis(name, p) for p in points], rotation=30, fontsize=8)
            axes.set_xlabel(name.replace("_", " "))
            late = axes.twinx()
            late.plot(at, [p["latency_p95_ms"] / 1e3 for p in points], "s-", color="#d9480f")
            late.plot(
                at,
                [p["predicted_latency_p95_ms"] / 1e3 for p in points],
                ":",
                color="#d9480f",
                alpha=0.6,
            )
            late.set_ylim(bottom=0)
            late.set_ylabel("p95 latency, s", color="#d9480f")
            late.spines[["top"]].set_visible(False)
        sides[0].set_ylabel("rows per second (dotted: predicted)", color="#0b7285")


SCALERS = {
    "headgate": "headgate",
    "ds2": "DS2 as released",
    "ds2_factor": "… with a scaling factor of 0.25",
    "ds2_activation_5": "… and an activation time of 5",
    "ds2_median_5": "… of which the median decides (not released)",
    "ds2_rule": "DS2's rule alone, no band",
}
RELEASED = ("ds2", "ds2_factor", "ds2_activation_5")


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
    told = "The same on traces that nothing was chosen on; the last three are real ones:"
    tried = "What the price of a move was chosen on, means of six seeds: "
    tried += "reconfigurations, intervals overloaded, instances."
    return "\n\n".join([first, told, others(found), tried, choice(found)])


def others(found: dict[str, Any]) -> str:
    head = [
        "trace",
        "reconfigurations",
        "of DS2's as released, three settings",
        "with the median",
        "overloaded, ours : DS2, three settings",
        "instances, ours : DS2, three settings",
    ]
    rows = []
    for name, told in found["others"].items():
        scalers, share = told["scalers"], told["reconfigurations_over_ds2"]

        def against(field: str, form: str, of: dict[str, Any] = scalers) -> str:
            theirs = ", ".join(form.format(of[each][field]) for each in RELEASED)
            return f"{form.format(of['headgate'][field])} : {theirs}"

        rows.append(
            [
                name,
                f"{scalers['headgate']['reconfigurations']}",
                ", ".join(f"{share[each]:.0%}" for each in RELEASED),
                f"{share['ds2_median_5']:.0%}",
                against("overloaded_share", "{:.1%}"),
                against("instances_mean", "{:.1f}"),
            ]
        )
    return table(head, rows)


def choice(found: dict[str, Any]) -> str:
    traces = found["choice"]
    rows = [
        [
            SCALERS.get(scaler, scaler),
            *(
                f"{told[scaler]['reconfigurations']:.1f}, "
                f"{told[scaler]['overloaded_share']:.1%}, {told[scaler]['instances_mean']:.2f}"
                for told in traces.values()
            ),
        ]
        for scaler in next(iter(traces.values()))
        if scaler != "ds2_rule"
    ]
    return table(["", *traces], rows)
