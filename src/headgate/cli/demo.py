"""`headgate demo`: run the trends flow on this machine, check it, write a report."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from headgate.cli.console import INTERRUPTED, columns, err, plain_errors, safe, speaker, write_json
from headgate.cli.launch import session
from headgate.cli.live import follow
from headgate.offline.views import (
    EpochView,
    PlanView,
    RunView,
    mean_error,
    number,
    percent,
    plan_views,
    short,
    times,
    why_no_figures,
)

_TOP = 8  # keys of a ranking
_MOVES_TOLD = 5


@dataclass(frozen=True)
class Phases:
    """Epochs with hashed keys, those after the manager's first plan, and its plans.

    The very first epoch starts the Python workers and the epoch in which the first plan moves most
    of the state is neither one nor the other: both are left out of the medians.
    """

    before: Sequence[EpochView]
    after: Sequence[EpochView]
    plans: Sequence[PlanView]

    @classmethod
    def of(cls, views: Sequence[EpochView], hash_epochs: int, plans: Sequence[PlanView]) -> Phases:
        first = plans[0].epoch if plans else len(views)
        before = [v for v in views[1:] if v.epoch < min(hash_epochs, first)]
        return cls(before, [v for v in views if v.epoch > first], plans)

    def compared(self) -> list[tuple[str, ...]]:
        """Name, before, after."""
        rows: list[tuple[str, Callable[[Sequence[EpochView]], str]]] = [
            ("rows staying in slot", lambda v: percent(RunView.of(v).locality)),
            ("busiest slot over mean", lambda v: times(RunView.of(v).imbalance_median)),
            ("bytes over the exchange", lambda v: short(median(e.bytes_shuffled for e in v), "B")),
            ("rows/s", lambda v: number(RunView.of(v).rows_per_second_median)),
            ("seconds", lambda v: number(RunView.of(v).epoch_seconds_median, "s")),
        ]
        return [
            (name, *(show(views) if views else "–" for views in (self.before, self.after)))
            for name, show in rows
        ]

    def lines(self) -> list[str]:
        """What the manager did, in a few lines."""
        if not self.plans:
            return []
        moved = sum(plan.moved_keys for plan in self.plans)
        lines = [f"\nThe manager made {len(self.plans)} plans and moved {moved:,} keys."]
        lines += [f"[dim]epoch {p.epoch}: {safe(p.why)}[/]" for p in self.plans[:3]]
        moves = [line for plan in self.plans for line in plan.top_moves][:_MOVES_TOLD]
        lines += [f"[dim]  {safe(line)}[/]" for line in moves]
        error = mean_error(self.plans)
        if error is not None:
            lines.append(f"[dim]Predicted locality was off by {error:.3f} on average.[/]")
        return lines

    def to_json(self) -> dict[str, Any]:
        return {
            "hash": asdict(RunView.of(self.before)) if self.before else None,
            "managed": asdict(RunView.of(self.after)) if self.after else None,
            "plans": [asdict(plan) for plan in self.plans],
            "predicted_locality_error": mean_error(self.plans),
        }


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

    with plain_errors():
        options = DemoOptions(out, rows_per_epoch, epochs, slots, seed, hash_epochs)
        _run(options, speaker(json_file), json_file)


def _run(options: Any, console: Console, json_file: Path | None) -> None:
    from headgate.demo.tour import check, clear, start_demo, write_input
    from headgate.planner.compiling import compile_kernels

    begun = time.perf_counter()
    clear(options)
    console.print("[bold]Headgate demo[/]: posts → count by region → count by hashtag")
    console.print(
        f"[dim]{options.epochs} epochs of {options.rows_per_epoch:,} seeded posts, "
        f"{options.slots} slots; hashed keys, and from epoch {options.hash_epochs} on the "
        "manager at work[/]\n"
    )
    files_to_come = ThreadPoolExecutor(1).submit(write_input, options)  # while Spark starts
    with session(console, "headgate demo", {}, options.spark_log) as spark:
        with console.status("[dim]making posts[/]"):
            files = files_to_come.result()
        with console.status("[dim]compiling the planner, the first time for some 20 seconds[/]"):
            compile_kernels()  # or the hashed epochs would share the cores with that
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
    run = RunView.of(views)
    clock = {"flow_seconds": flow_seconds, "rows_per_second_end_to_end": run.rows / flow_seconds}
    plans = plan_views(query.journal())
    phases = Phases.of(views, options.hash_epochs, plans)
    _print_result(console, run, verdict, clock, phases)
    extra = {} if why_no_figures() else {"What came out": _html(options, verdict)}
    report = f"Report: [bold]{options.report}[/]"
    if why := why_no_figures():
        report = f"No report: {safe(why)}."
    else:
        from headgate.offline.report import write_report

        write_report(str(options.checkpoint), options.report, title="Trends demo", extras=extra)
    clock["total_seconds"] = time.perf_counter() - begun
    console.print(f"\n{report}   [dim]{clock['total_seconds']:.0f} s in all")
    console.print(f"[dim]Look inside: headgate inspect {safe(options.checkpoint)}[/]")
    write_json(json_file, _json(options, run, views, verdict, clock) | phases.to_json())
    if not verdict.agrees:
        raise typer.Exit(1)


def _print_result(
    console: Console, run: RunView, verdict: Any, clock: dict[str, float], phases: Phases
) -> None:
    figures = columns("per epoch, medians", numbers=("hash", "manager"))
    for row in phases.compared():
        figures.add_row(*row)
    figures.add_row("", "", "")
    figures.add_row("rows in all", "", f"{run.rows:,}")
    figures.add_row("rows/s, end to end", "", number(clock["rows_per_second_end_to_end"]))
    grid = Table.grid(padding=(0, 3, 0, 0))
    grid.add_row(figures, _top("hashtag", verdict.by_hashtag), _top("region", verdict.by_region))
    console.print()
    console.print(grid)
    for line in phases.lines():
        console.print(line, highlight=False)
    mark = "[green]✓[/]" if verdict.agrees else "[red]✗[/]"
    console.print(f"\n{mark} {verdict.sentence} [dim](fold: {verdict.fold_seconds:.1f} s)[/]")


def _top(name: str, counts: Any) -> Table:
    shown = columns(f"top {name}s", numbers=("posts",))
    for key, count in counts.most_common(_TOP):
        shown.add_row(key, f"{count:,}")
    return shown


def _html(options: Any, verdict: Any) -> str:
    from headgate.demo.tour import Machine
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
    from headgate.demo.tour import Machine

    return {
        "command": "demo",
        "options": options.to_json(),
        "machine": asdict(Machine.here()),
        "run": asdict(run) | clock,
        "check": verdict.to_json(),
        "top_hashtags": dict(verdict.by_hashtag.most_common(_TOP)),
        "epochs": [view.to_json() for view in views],
    }
