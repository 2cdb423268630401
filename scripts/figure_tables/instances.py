"""Instances for every operator, against one number of slots for all; and predictions."""

from __future__ import annotations

from typing import Any

from figure_tables.drawing import picture, table

NAMES = {
    "uniform_best": "one number for all, the best",
    "optimized": "instances per operator, optimized",
    "live": "instances per operator, chosen by the running flow",
    "search_best": "instances per operator, best found",
}


def costly(found: dict[str, Any]) -> str:
    instances = {
        "uniform_best": f"{found['uniform_best_slots']} of each",
        "optimized": _counts(found["parallelism"]),
        "live": _counts(found["parallelism_live"]),
        "search_best": _counts(found["parallelism_found"]),
    }
    rows = [
        [
            NAMES[name],
            instances[name],
            f"{rate:,.0f}",
            f"{found['predicted_rows_per_s'][name]:,.0f}",
            f"{found['latency_p95_ms'][name]:,.0f}",
            f"{found['predicted_latency_p95_ms'][name]:,.0f}",
        ]
        for name, rate in found["rows_per_s"].items()
    ]
    ratios, tried = found["ratios"], found["tried"]
    hosts = "embedded" if found["hosts"] == 1 else f"{found['hosts']} hosts"
    note = (
        f"\n\n{hosts}: optimized is {ratios['optimized_over_uniform_best']:.2f}x the best of "
        f"{len(tried['uniform'])} uniform slot counts, and "
        f"{ratios['optimized_over_search_best']:.1%} of the best of {len(tried['search'])} other "
        f"choices of instances; what the running flow chose is "
        f"{ratios['live_over_search_best']:.1%} of that. "
        f"{found['options']['slots']} slots offered, "
        f"{found['options']['rows']:,} rows per epoch; medians of {found['options']['rounds']} "
        f"rounds. The optimizer took {1e3 * found['optimize_seconds']:.1f} ms; for 100 operators "
        f"{1e3 * found['optimize_seconds_by_operators']['100']:.0f} ms, for 200 "
        f"{1e3 * found['optimize_seconds_by_operators']['200']:.0f} ms."
    )
    head = ["", "instances", "rows/s", "predicted", "p95, ms", "predicted"]
    return table(head, rows) + note


def _counts(parallelism: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in parallelism.items())


def predict(found: dict[str, Any]) -> str:
    draw_predict(found)
    names = {"rows_per_s": "rows/s", "latency_p95_ms": "p95 latency"}
    rows = [
        [
            names[name],
            *(f"{told[of]:.1%}" for of in ("median", "mean", "p90", "max")),
            f"{found['goals'][name]:.0%}",
        ]
        for name, told in found["errors"].items()
    ]
    head = [f"off by, {len(found['flows'])} flows", "median", "mean", "p90", "worst", "goal"]
    return (
        table(head, rows)
        + "\n\n![rows per second, predicted against measured](../figures/predict.svg)"
    )


def draw_predict(found: dict[str, Any]) -> None:
    with picture("predict", (4.2, 4.0)) as axes:
        measured = [flow["measured"]["rows_per_s"] for flow in found["flows"]]
        predicted = [flow["predicted"]["rows_per_s"] for flow in found["flows"]]
        ends = [0.7 * min(measured), 1.4 * max(measured)]
        axes.fill_between(ends, [0.85 * e for e in ends], [1.15 * e for e in ends], color="#e9ecef")
        axes.plot(ends, ends, "-", color="#adb5bd", linewidth=1)
        axes.plot(measured, predicted, "o", color="#0b7285", markersize=4)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("rows per second, measured")
        axes.set_ylabel("predicted (grey: within 15 %)")
