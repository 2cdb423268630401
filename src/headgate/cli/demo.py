"""`headgate demo`: run the trends flow on this machine, check it, write a report."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from html import escape
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from headgate.cli.console import (
    INTERRUPTED,
    err,
    follow,
    plain_errors,
    safe,
    speaker,
    table,
    write_json,
)
from headgate.cli.launch import JsonFile, session
from headgate.errors import HeadgateError
from headgate.offline.views import (
    EpochView,
    PlanView,
    RunView,
    mean_error,
    need_figures,
    number,
    percent,
    plan_views,
    short,
    times,
)

if TYPE_CHECKING:
    from headgate.demo import Demo, Verdict

_TOP = 8  # keys of a ranking
_MOVES_SHOWN = 5


def demo(
    rows_per_epoch: Annotated[int, typer.Option(min=1, help="Posts in each epoch.")] = 250_000,
    epochs: Annotated[int, typer.Option(min=1, help="How many epochs.")] = 20,
    slots: Annotated[int, typer.Option(min=1, help="Instances of every operator.")] = 4,
    seed: Annotated[int, typer.Option(help="The same seed gives the same posts.")] = 7,
    hash_epochs: Annotated[
        int, typer.Option(min=0, help="Epochs with hashed keys before the manager takes over.")
    ] = 8,
    out: Annotated[Path, typer.Option(help="Folder for all the demo makes.")] = Path(
        "artifacts/demo"
    ),
    json_file: JsonFile = None,
) -> None:
    """Count hashtags of a drifting social stream on this machine, check the result, and write a
    report.

    Posts are counted by region, passed on, and counted by hashtag: two stateful operators in a row
    on Spark. Keys are hashed first; then the manager moves them, while the flow runs, to where
    their rows are. Takes about a minute and needs no data and no cluster.
    """
    from headgate.demo import Demo

    with plain_errors():
        tour = Demo(out, rows_per_epoch, epochs, slots, seed, hash_epochs)
        _run(tour, speaker(json_file), json_file)


def _run(tour: Demo, console: Console, json_file: Path | None) -> None:
    from headgate.demo import Machine
    from headgate.planner.incremental_placing import compile_kernels

    begun = time.perf_counter()
    tour.clear()
    console.print("[bold]Headgate demo[/]: posts → count by region → count by hashtag")
    console.print(
        f"[dim]{tour.epochs} epochs of {tour.rows_per_epoch:,} seeded posts, {tour.slots} slots; "
        f"hashed keys, and from epoch {tour.hash_epochs} on the manager at work[/]\n"
    )
    posts = ThreadPoolExecutor(1).submit(tour.write_input)  # while Spark starts
    with session(console, "headgate demo", log=tour.spark_log) as spark:
        with console.status("[dim]making posts[/]"):
            files = posts.result()
        with console.status("[dim]compiling the planner, the first time for some 20 seconds[/]"):
            compile_kernels()  # or the hashed epochs would share the cores with that
        ready = time.perf_counter()
        query = tour.start(spark, files)
        try:
            views = follow(query, console, epochs=tour.epochs)
        except KeyboardInterrupt:
            query.stop()
            err.print(f"[yellow]Stopped.[/] What was committed is in {safe(tour.checkpoint)}.")
            raise typer.Exit(INTERRUPTED) from None
        flow_seconds = time.perf_counter() - ready
        with console.status("[dim]folding the same posts in one thread, to compare[/]"):
            verdict = tour.check(query, files)
    run, plans, machine = RunView.of(views), plan_views(query.journal()), Machine.here()
    before, after = _phases(views, tour.hash_epochs, plans)
    _print_result(console, before, after, plans, verdict)
    console.print(
        f"{run.rows:,} rows in {flow_seconds:.0f} s: {short(run.rows / flow_seconds)} rows/s, from "
        "start to end"
    )
    try:
        need_figures()
    except HeadgateError as why:
        console.print(f"No report: {safe(why)}.")
    else:
        _write_report(tour, verdict, machine)
        console.print(f"Report: [bold]{safe(tour.report)}[/]")
    seconds = time.perf_counter() - begun
    look = f"headgate inspect {safe(tour.checkpoint)}"
    console.print(f"[dim]{seconds:.0f} s in all. Look inside: {look}[/]")
    clock = {
        "flow_seconds": flow_seconds,
        "rows_per_second_end_to_end": run.rows / flow_seconds,
        "total_seconds": seconds,
    }
    found: dict[str, Any] = {
        "command": "demo",
        "options": tour.to_json(),
        "machine": asdict(machine),
        "run": asdict(run) | clock,
        "check": verdict.to_json(),
        "top_hashtags": dict(verdict.by_hashtag.most_common(_TOP)),
        "epochs": [view.to_json() for view in views],
        "hash": asdict(RunView.of(before)) if before else None,
        "managed": asdict(RunView.of(after)) if after else None,
        "plans": [asdict(plan) for plan in plans],
        "predicted_locality_error": mean_error(plans),
    }
    write_json(json_file, found)
    if verdict.differences:
        raise typer.Exit(1)


def _phases(
    views: Sequence[EpochView], hash_epochs: int, plans: Sequence[PlanView]
) -> tuple[list[EpochView], list[EpochView]]:
    """Epochs with hashed keys, and those after the manager's first plan.

    The very first epoch starts the Python workers and the epoch in which the first plan moves most
    of the state is neither one nor the other: both are left out.
    """
    first = plans[0].epoch if plans else len(views)
    hashed = [v for v in views[1:] if v.epoch < min(hash_epochs, first)]
    return hashed, [v for v in views if v.epoch > first]


def _print_result(
    console: Console,
    before: Sequence[EpochView],
    after: Sequence[EpochView],
    plans: Sequence[PlanView],
    verdict: Verdict,
) -> None:
    shown: dict[str, Callable[[Sequence[EpochView]], str]] = {
        "rows staying in slot": lambda v: percent(RunView.of(v).locality),
        "busiest slot over mean": lambda v: times(RunView.of(v).imbalance_median),
        "bytes over the exchange": lambda v: short(median(e.bytes_shuffled for e in v), "B"),
        "rows/s": lambda v: number(RunView.of(v).rows_per_second_median),
        "seconds": lambda v: number(RunView.of(v).epoch_seconds_median, "s"),
    }
    rows = [
        [name, *(figure(views) if views else "–" for views in (before, after))]
        for name, figure in shown.items()
    ]
    console.print()
    console.print(table(["per epoch, medians", "hash", "manager"], rows))
    grid = Table.grid(padding=(1, 6, 0, 0))
    grid.add_row(*(table(head, rows) for head, rows in _rankings(verdict)))
    console.print(grid)
    if plans:
        moved = sum(plan.moved_keys for plan in plans)
        console.print(f"\nThe manager made {len(plans)} plans and moved {moved:,} keys.")
        for plan in plans[:3]:
            console.print(f"[dim]epoch {plan.epoch}: {safe(plan.why)}[/]")
        for line in [line for plan in plans for line in plan.top_moves][:_MOVES_SHOWN]:
            console.print(f"[dim]  {safe(line)}[/]")
        if (error := mean_error(plans)) is not None:
            console.print(f"[dim]Predicted locality was off by {error:.3f} on average.[/]")
    mark = "[red]✗[/]" if verdict.differences else "[green]✓[/]"
    console.print(f"\n{mark} {verdict.sentence} [dim](fold: {verdict.fold_seconds:.1f} s)[/]")


def _rankings(verdict: Verdict) -> list[tuple[list[str], list[list[str]]]]:
    """Tables of the most frequent hashtags and regions."""
    counted = {"top hashtags": verdict.by_hashtag, "top regions": verdict.by_region}
    return [
        ([name, "posts"], [[key, f"{count:,}"] for key, count in counts.most_common(_TOP)])
        for name, counts in counted.items()
    ]


def _write_report(tour: Demo, verdict: Verdict, machine: Any) -> None:
    from headgate.offline import page
    from headgate.offline.report import write_report

    mark = "bad" if verdict.differences else "good"
    command = (
        f"headgate demo --rows-per-epoch {tour.rows_per_epoch} --epochs {tour.epochs} "
        f"--slots {tour.slots} --seed {tour.seed}"
    )
    tops = "".join(page.table(head, rows) for head, rows in _rankings(verdict))
    html = (
        f'<p class="verdict {mark}">{escape(verdict.sentence)}</p>'
        f'<div class="columns">{tops}</div>'
        f'<p class="aside"><code>{command}</code> on {machine.cores} cores, {machine.system}, '
        f"Python {machine.python}, Spark {machine.spark}. All slots are on this machine, so rows "
        "that stay in theirs save bytes of its memory, not of a network: rows per second show "
        "little of it, and small epochs mostly take the time that any epoch takes.</p>"
    )
    extras = {"What came out": html}
    write_report(str(tour.checkpoint), tour.report, title="Trends demo", extras=extras)
