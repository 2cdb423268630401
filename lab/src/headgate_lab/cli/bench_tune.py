"""`headgate-lab bench tune`: parallelism and batches, chosen and by hand; and `bench predict`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from headgate.cli.console import plain_errors, speaker
from headgate.errors import DeclarationError
from headgate_lab.cli.showing import save, show, show_grid

JsonFile = Annotated[
    Path | None, typer.Option("--json", help="Write all figures there ('-': stdout).")
]
Quick = Annotated[bool, typer.Option(help="Small and short, to see that it works.")]


def tune(
    flow: Annotated[
        Literal["linear-road", "sentiment", "costly"],
        typer.Option(help="A flow of the paper, or one with a costly operator."),
    ] = "linear-road",
    curves: Annotated[
        bool,
        typer.Option(help="Throughput and latency against batch rows and rows per epoch instead."),
    ] = False,
    hosts: Annotated[
        int, typer.Option(min=1, help="costly: hosts of a cluster of network namespaces.")
    ] = 1,
    exhaustive: Annotated[
        bool, typer.Option(help="costly: try all combinations of instances, not one by one.")
    ] = False,
    json_file: JsonFile = None,
    quick: Quick = False,
) -> None:
    """Batch size and parallelism: optimized, not, and each alone (Sax et al. 2013)."""
    with plain_errors():
        _check_options(flow, curves=curves, hosts=hosts, exhaustive=exhaustive)
        console = speaker(json_file)
        if flow == "costly":
            found = _costly(hosts, quick, exhaustive, console)
            _tell_costly(found, console)
        elif curves:
            from headgate_lab.bench.tune_curves import curves_for, run_curves

            found = run_curves(curves_for(flow, quick=quick), console.print)
            _tell_curves(found, console)
        else:
            from headgate_lab.bench.tune import options_for, run_tune

            found = run_tune(options_for(flow, quick=quick), console.print)
            _tell_tune(found, console)
        save(found, json_file, console)


def predict(
    flows: Annotated[int, typer.Option(min=1, help="How many flows to draw.")] = 20,
    json_file: JsonFile = None,
    quick: Quick = False,
) -> None:
    """Rows per second and p95 latency of the optimizer's choice: predicted against measured."""
    from headgate_lab.bench.predict import QUICK, PredictOptions, run_predict

    with plain_errors():
        console = speaker(json_file)
        found = run_predict(QUICK if quick else PredictOptions(flows), console.print)
        show_grid(console, "off by, as a share of what was measured", found["errors"], "{:.1%}")
        show(console, "goals", found["goals"], "{:.0%}")
        save(found, json_file, console)


def _check_options(flow: str, *, curves: bool, hosts: int, exhaustive: bool) -> None:
    if flow == "costly" and curves:
        raise DeclarationError("--curves are of linear-road and sentiment; leave it out for costly")
    if flow != "costly" and (hosts > 1 or exhaustive):
        raise DeclarationError("--hosts and --exhaustive are for --flow costly")


def _costly(hosts: int, quick: bool, exhaustive: bool, console: Console) -> dict[str, Any]:
    from headgate_lab.bench.tune_costly import costly_options, run_costly, run_costly_on_hosts

    if hosts > 1:
        return run_costly_on_hosts(hosts, console.print, quick=quick, exhaustive=exhaustive)
    return run_costly(costly_options(quick=quick, exhaustive=exhaustive), console.print)


def _tell_costly(found: dict[str, Any], console: Console) -> None:
    show(console, "rows per second", found["rows_per_s"], "{:,.0f}")
    show(console, "predicted", found["predicted_rows_per_s"], "{:,.0f}")
    show(console, "latency, p95, milliseconds", found["latency_p95_ms"], "{:,.0f}")
    instances = {
        "optimized": found["parallelism"],
        "chosen by the running flow": found["parallelism_live"],
        "found by trying": found["parallelism_found"],
    }
    show_grid(console, "instances", instances, "{}")
    console.print(f"best number of slots for all: {found['uniform_best_slots']}")
    show(console, "ratios", found["ratios"], "{:.3f}")
    _tell_optimize_time(found, console)


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
