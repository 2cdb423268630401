"""`headgate-lab bench tune`: parallelism and batches, chosen and by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from headgate.cli.console import plain_errors, speaker
from headgate_lab.cli.showing import save, show, show_grid

JsonFile = Annotated[
    Path | None, typer.Option("--json", help="Write all figures there ('-': stdout).")
]
Quick = Annotated[bool, typer.Option(help="Small and short, to see that it works.")]


def tune(
    flow: Annotated[
        Literal["linear-road", "sentiment"],
        typer.Option(help="Which flow of the paper to run."),
    ] = "linear-road",
    curves: Annotated[
        bool,
        typer.Option(help="Throughput and latency against batch rows and rows per epoch instead."),
    ] = False,
    json_file: JsonFile = None,
    quick: Quick = False,
) -> None:
    """Batch size and parallelism: optimized, not, and each alone (Sax et al. 2013)."""
    with plain_errors():
        console = speaker(json_file)
        if curves:
            from headgate_lab.bench.tune_curves import curves_for, run_curves

            found = run_curves(curves_for(flow, quick=quick), console.print)
            _tell_curves(found, console)
        else:
            from headgate_lab.bench.tune import options_for, run_tune

            found = run_tune(options_for(flow, quick=quick), console.print)
            _tell_tune(found, console)
        save(found, json_file, console)


def _tell_tune(found: dict[str, Any], console: Console) -> None:
    show(console, "rows per second", found["rows_per_s"], "{:,.0f}")
    show(console, "latency, mean of rows, milliseconds", found["latency_ms"], "{:,.0f}")
    show(console, "latency, p95, milliseconds", found["latency_p95_ms"], "{:,.0f}")
    show(console, "instances", found["parallelism"], "{}")
    show(console, "ratios", found["ratios"], "{:.2f}")
    simulated = found["simulated"]["rows_per_s"]
    show(console, "the paper's cluster, simulated: rows per second", simulated, "{:,.0f}")
    _tell_optimize_time(found, console)


def _tell_optimize_time(found: dict[str, Any], console: Console) -> None:
    console.print(f"optimized in {found['optimize_seconds'] * 1e3:.1f} ms")
    by_operators = found["optimize_seconds_by_operators"]
    taken = {f"{n} operators": 1e3 * seconds for n, seconds in by_operators.items()}
    show(console, "milliseconds that the optimizer takes", taken, "{:.1f}")


def _tell_curves(found: dict[str, Any], console: Console) -> None:
    for name, points in found["curves"].items():
        rows = {
            _point(name, point): {
                "rows/s": point["rows_per_s"],
                "predicted": point["predicted_rows_per_s"],
                "p95, ms": point["latency_p95_ms"],
                "predicted, ms": point["predicted_latency_p95_ms"],
            }
            for point in points
        }
        show_grid(console, f"against {name.replace('_', ' ')}", rows, "{:,.0f}")


def _point(name: str, point: dict[str, Any]) -> str:
    return "all that fit" if point[name] is None else f"{point[name]:,}"
