"""`headgate replay`: a planner against a recorded stream, without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from headgate.cli.console import plain_errors, safe, speaker, write_json

ROWS_SHOWN = 24  # fits a terminal together with the summary


def replay(
    data: Annotated[Path, typer.Argument(help="A Parquet file; rows in file order.")],
    key: Annotated[
        list[str], typer.Option("--key", help="Key column of each keyed operator, in flow order.")
    ],
    window: Annotated[int, typer.Option(help="Rows that a plan from scratch is fitted on.")],
    period: Annotated[int, typer.Option(help="Rows from one plan from scratch to the next.")],
    planner: Annotated[
        str,
        typer.Option(
            help="headgate, hash or oracle; with headgate-lab also offline, online, online-kway or "
            "worst-case."
        ),
    ] = "headgate",
    slots: Annotated[int, typer.Option(help="Instances of every operator.")] = 6,
    time: Annotated[
        str | None, typer.Option(help="Sort by this column first; equal times in file order.")
    ] = None,
    epoch: Annotated[int, typer.Option(help="Rows per epoch.")] = 500,
    alpha: Annotated[float, typer.Option(help="Imbalance (max/mean load) to plan for.")] = 1.03,
    seed: Annotated[int, typer.Option(help="For METIS, and for ties.")] = 0,
    strict: Annotated[
        bool, typer.Option("--strict", help="One owner at every moment: no key is born local.")
    ] = False,
    split: Annotated[
        bool,
        typer.Option(
            "--split",
            help="All operators are mergeable: rows go by one key, all else is merged per epoch.",
        ),
    ] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write all figures here; - for standard output.")
    ] = None,
) -> None:
    """Run a planner over a recorded stream: locality, balance and moves on rows after each plan."""
    from headgate.offline.replay import ReplayOptions
    from headgate.offline.replay import replay as run_replay
    from headgate.offline.replay_owners import read_trace

    console = speaker(json_file)
    options = ReplayOptions(planner, window, period, slots, epoch, alpha, seed, strict, split)
    with plain_errors():
        trace = read_trace(data, key, time)
        with _bar(console) as bar:
            task = bar.add_task(f"{planner} on {data.name}", total=None)
            found = run_replay(
                trace, options, lambda done, all_: bar.update(task, completed=done, total=all_)
            )
        _show_periods(console, found)
        _show_overall(console, found)
        write_json(json_file, {"data": data.name, **found})


def _bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("periods"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )


def _show_periods(console: Console, found: dict[str, Any]) -> None:
    """All periods, or evenly spaced ones if there are many (the JSON file has them all)."""
    records = found["per_period"]
    step = -(-len(records) // ROWS_SHOWN)
    title = "per period" if step == 1 else f"every {step}th period"
    table = Table(title=title, title_justify="left")
    for name in ("period", "local", "imbalance", "per epoch", "floor", "moves", "adopted"):
        table.add_column(name, justify="right")
    table.add_column("plan ms", justify="right")
    for record in records[::step]:
        table.add_row(
            str(record["period"]),
            f"{record['locality']:.3f}",
            _slashed(record["imbalance"]),
            _slashed(record["imbalance_epoch"]),
            _slashed(record["imbalance_floor"]),
            f"{record['moves']:,}",
            f"{record['adoptions']:,}",
            f"{1000 * record['plan_seconds']:,.1f}",
        )
    console.print(table)


def _show_overall(console: Console, found: dict[str, Any]) -> None:
    keys = safe(" / ".join(found["keys"]))
    table = Table(
        title=f"{found['planner']}: {found['periods']} periods, {found['rows_measured']:,} rows",
        title_justify="left",
        show_header=False,
    )
    table.add_column("")
    table.add_column("", justify="right")
    rows = {
        "locality: pairs whose two keys share a slot": f"{found['locality']:.3f}",
        f"imbalance per period ({keys})": _slashed(found["imbalance"]),
        "imbalance per epoch": _slashed(found["imbalance_epoch"]),
        "floor: what the heaviest key forces in one slot": _slashed(found["imbalance_floor"]),
        "keys moved per period": f"{found['moves_per_period']:,.0f}",
        "new keys adopted per period": f"{found['adoptions_per_period']:,.0f}",
        "merge rows per row": f"{found['merge_rows_per_row']:.4f}",
        "remote and merge rows per row": f"{found['remote_plus_merge_per_row']:.4f}",
        "keys moved by the first plan (not counted above)": f"{found['initial_moves']:,}",
        "longest plan, seconds": f"{found['plan_seconds_max']:.4f}",
    }
    for name, value in rows.items():
        table.add_row(name, value)
    console.print(table)
    if "anchor" in found:
        console.print(
            f"Rows went by {safe(found['anchor'])}; all other keys were held in partials."
        )
    if found["rows_unused"]:
        console.print(f"{found['rows_unused']:,} rows after the last full period were not used.")


def _slashed(values: list[float]) -> str:
    return "/".join(f"{value:.2f}" for value in values)
