"""`headgate-lab bench balance` and `albic`: figures 1 to 3 of Madsen et al. 2017."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console

from headgate.cli.console import plain_errors, speaker
from headgate_lab.cli.bench_tune import JsonFile, Quick
from headgate_lab.cli.showing import save, show, show_grid

Spark = Annotated[
    bool, typer.Option("--spark", help="The job runs, planned from its journal (minutes).")
]


def balance(spark: Spark = False, json_file: JsonFile = None, quick: Quick = False) -> None:
    """Load distance and migrations of allocation planners on Wikipedia edits."""
    with plain_errors():
        console = speaker(json_file)
        if spark:
            from headgate_lab.bench.jobs_on_spark import (
                BALANCE,
                QUICK_BALANCE,
                run_balance_on_spark,
            )

            options = QUICK_BALANCE if quick else BALANCE
            found = run_balance_on_spark(options, console.print)
            _tell_job(found, console)
        else:
            from headgate_lab.bench.balance import QUICK, BalanceOptions, run_balance

            found = run_balance(QUICK if quick else BalanceOptions(), console.print)
            distances = {n: x["mean"] for n, x in found["load_distance_pct"].items()}
            show(console, "mean load distance, percent of the mean load", distances, "{:.2f}")
            show(console, "migrations per period", found["migrations"], "{:.1f}")
        save(found, json_file, console)


def albic(spark: Spark = False, json_file: JsonFile = None, quick: Quick = False) -> None:
    """Collocation, load distance and load index of planners on flights."""
    with plain_errors():
        console = speaker(json_file)
        if spark:
            from headgate_lab.bench.jobs_on_spark import ALBIC, QUICK_ALBIC, run_albic_on_spark

            found = run_albic_on_spark(QUICK_ALBIC if quick else ALBIC, console.print)
            _tell_job(found, console)
            show(console, "collocation factor in the end", found["collocation_factor"], "{:.3f}")
        else:
            from headgate_lab.bench.albic import QUICK, AlbicOptions, run_albic

            found = run_albic(QUICK if quick else AlbicOptions(), console.print)
            _tell_albic(found, console)
        save(found, json_file, console)


def _tell_albic(found: dict[str, Any], console: Console) -> None:
    show(console, "collocation factor in the end", found["collocation_factor"], "{:.3f}")
    distances = found["load_distance_pct"]
    show(console, "mean load distance, percent of the mean load", distances, "{:.2f}")
    show(console, "load index in the end", found["load_index"], "{:.0f}")
    show(console, "migrations per period", found["migrations_per_period"], "{:.1f}")
    show(console, "periods to ALBIC's collocation", found["periods_to_collocation"], "{}")


def _tell_job(found: dict[str, Any], console: Console) -> None:
    """What the journals say of a period, on average; a dash where a planner says nothing."""
    rows = {
        planner: {
            name: "-" if value is None else f"{value:.3g}"
            for name in ("planned", "measured", "distance", "timed", "moves", "seconds")
            for value in [found[name][planner]]
        }
        for planner in found["raw"]
    }
    show_grid(console, "a period, from the journal (distances in percent)", rows, "{}")
    show(console, "load index in the end", found["load_index"], "{:.0f}")
    console.print("results equal to a plain fold: True")
