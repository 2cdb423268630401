"""`headgate demo`: run the trends flow on this machine, check it, write a report."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from html import escape
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from headgate.cli.console import INTERRUPTED, err, safe, speaker, told_plainly, write_json
from headgate.cli.demo_phases import Phases
from headgate.cli.live import follow
from headgate.demo.machine import Machine
from headgate.offline.views import EpochView, RunView, number, plan_views

_TOP = 8


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
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write all figures there ('-': stdout).")
    ] = None,
) -> None:
    """Count hashtags of a drifting social stream on this machine, check the result, and write a
    report.

    Posts are counted by region, passed on, and counted by hashtag: two stateful operators in a row
    on Spark. Keys are hashed first; then the manager moves them, while the flow runs, to where
    their rows are. Takes about a minute and needs no data and no cluster.
    """
    from headgate.demo.tour import DemoOptions

    with told_plainly():
        options = DemoOptions(out, rows_per_epoch, epochs, slots, seed, hash_epochs)
        _run(options, speaker(json_file), json_file)


def _run(options: Any, console: Console, json_file: Path | None) -> None:
    from headgate.demo.tour import check, clear, start_demo, write_input
    from headgate.offline.report import why_no_figures, write_report
    from headgate.planner.compiling import compile_kernels
    from headgate.runtime.session import local_session

    begun = time.perf_counter()
    clear(options)
    console.print("[bold]Headgate demo[/]: posts → count by region → count by hashtag")
    console.print(
        f"[dim]{options.epochs} epochs of {options.rows_per_epoch:,} seeded posts, "
        f"{options.slots} slots; hashed keys, and from epoch {options.hash_epochs} on the "
        "manager at work[/]\n"
    )
    with console.status("[dim]making posts and starting Spark[/]"), ThreadPoolExecutor(1) as aside:
        files_to_come = aside.submit(write_input, options)
        spark = local_session("headgate demo", log_file=options.spark_log)
        files = files_to_come.result()
    with console.status("[dim]compiling the planner, the first time for some 20 seconds[/]"):
        compile_kernels()  # or the hashed epochs would share the cores with that
    try:
        ready = time.perf_counter()
        query = start_demo(spark, options, files)
        try:
            views = follow(query, console, epochs=options.epochs)
        except KeyboardInterrupt:
            query.stop()
            err.print(f"[yellow]Stopped.[/] What was committed is in {safe(options.checkpoint)}.")
            raise typer.Exit(INTERRUPTED) from None
        flow_seconds = time.perf_counter() - ready
        with console.status("[dim]folding the same posts in one thread, to compare[/]"):
            verdict = check(query, options, files)
    finally:
        spark.stop()
    run = RunView.of(views)
    clock = {"flow_seconds": flow_seconds, "rows_per_second_end_to_end": run.rows / flow_seconds}
    plans = plan_views(query.journal())
    phases = Phases.of(views, options.hash_epochs, plans)
    _tell(console, run, verdict, clock, phases)
    extra = ("What came out", _html(options, verdict))
    report = f"Report: [bold]{options.report}[/]"
    if why := why_no_figures():
        report = f"No report: {safe(why)}."
    else:
        write_report(str(options.checkpoint), options.report, title="Trends demo", extras=[extra])
    clock["total_seconds"] = time.perf_counter() - begun
    console.print(f"\n{report}   [dim]{clock['total_seconds']:.0f} s in all")
    console.print(f"[dim]Look inside: headgate inspect {safe(options.checkpoint)}[/]")
    if json_file is not None:
        write_json(json_file, _json(options, run, views, verdict, clock) | phases.to_json())
    if not verdict.agrees:
        raise typer.Exit(1)


def _tell(
    console: Console, run: RunView, verdict: Any, clock: dict[str, float], phases: Phases
) -> None:
    figures = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim")
    figures.add_column("per epoch, medians")
    figures.add_column("hash", justify="right")
    figures.add_column("manager", justify="right")
    for name, before, after in phases.compared():
        figures.add_row(name, before, after)
    figures.add_row("", "", "")
    figures.add_row("rows in all", "", f"{run.rows:,}")
    figures.add_row("rows/s, end to end", "", number(clock["rows_per_second_end_to_end"]))
    grid = Table.grid(padding=(0, 3, 0, 0))
    grid.add_row(figures, _top("hashtag", verdict.by_hashtag), _top("region", verdict.by_region))
    console.print()
    console.print(grid)
    for line in phases.told():
        console.print(line, highlight=False)
    mark = "[green]✓[/]" if verdict.agrees else "[red]✗[/]"
    console.print(f"\n{mark} {verdict.sentence} [dim](fold: {verdict.fold_seconds:.1f} s)[/]")


def _top(name: str, counts: Any) -> Table:
    shown = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim")
    shown.add_column(f"top {name}s")
    shown.add_column("posts", justify="right")
    for key, count in counts.most_common(_TOP):
        shown.add_row(key, f"{count:,}")
    return shown


def _html(options: Any, verdict: Any) -> str:
    from headgate.offline.page import table

    mark = "good" if verdict.agrees else "bad"
    tops = "".join(
        table([name, "posts"], [[key, f"{count:,}"] for key, count in counts.most_common(_TOP)])
        for name, counts in (("hashtag", verdict.by_hashtag), ("region", verdict.by_region))
    )
    machine = Machine.here()
    command = (
        f"headgate demo --rows-per-epoch {options.rows_per_epoch} --epochs {options.epochs} "
        f"--slots {options.slots} --seed {options.seed}"
    )
    return (
        f'<p class="verdict {mark}">{escape(verdict.sentence)}</p>'
        f'<div class="columns">{tops}</div>'
        f'<p class="aside"><code>{command}</code> on {machine.cores} cores, {machine.system}, '
        f"Python {machine.python}, Spark {machine.spark}</p>"
    )


def _json(
    options: Any, run: RunView, views: list[EpochView], verdict: Any, clock: dict[str, float]
) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "command": "demo",
        "options": options.to_json(),
        "machine": asdict(Machine.here()),
        "run": run.to_json() | clock,
        "check": verdict.to_json(),
        "top_hashtags": dict(verdict.by_hashtag.most_common(_TOP)),
        "epochs": [asdict(v) | {"rows_per_second": v.rows_per_second} for v in views],
    }
