"""`headgate-lab simulate`: the reconfiguration protocol under thousands of seeded failures."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from headgate.cli.console import plain_errors, speaker, write_json
from headgate.errors import DeclarationError

if TYPE_CHECKING:
    from headgate_lab.simulator.run import Report

_DEFAULTS = {"topology": "any", "faults": "all", "planner": "seeded", "tuples": 40}
_SHOWN = 3  # violations shown in full,
_LINES = 14  # each with so many events that led to it
_FIGURES = (
    ("tuples read", "tuples"),
    ("messages", "messages"),
    ("frames lost", "frames_lost"),
    ("frames doubled", "frames_doubled"),
    ("frames sent again", "frames_repeated"),
    ("reconfigurations", "reconfigurations"),
    ("migrations", "migrations"),
    ("keys moved", "keys_moved"),
    ("keys moved more than once", "keys_moved_again"),
    ("tuples processed meanwhile", "during"),
    ("tuples buffered", "held"),
    ("instance crashes", "instance_crashes"),
    ("manager crashes", "manager_crashes"),
    ("recoveries", "recoveries"),
    ("snapshots", "snapshots"),
)


def simulate(
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds.")] = 1000,
    first: Annotated[int, typer.Option(min=0, help="The first of them.")] = 0,
    seed: Annotated[int | None, typer.Option(help="Run this one only.")] = None,
    topology: Annotated[
        str, typer.Option(help="any, pair, chain, bridge, diamond, fan or random.")
    ] = "any",
    faults: Annotated[str, typer.Option(help="all, none, network or crash.")] = "all",
    planner: Annotated[
        str,
        typer.Option(
            help="Who plans: seeded (random, to be troublesome), or the manager of real flows "
            "with its planner headgate, online, offline, worst-case or hash."
        ),
    ] = "seeded",
    tuples: Annotated[int, typer.Option(min=1, help="Tuples that the sources read.")] = 40,
    broken: Annotated[
        str | None,
        typer.Option(help="Make one mistake in the protocol, to see it caught; 'list' names them."),
    ] = None,
    trace: Annotated[bool, typer.Option("--trace", help="Show every event (with --seed).")] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write all figures there ('-': stdout).")
    ] = None,
) -> None:
    """Run the reconfiguration protocol message by message, under seeded delay, loss and crashes.

    Each seed draws a topology, tuples, plans and faults; a judge checks that no tuple is lost,
    processed twice or processed without its state. Exit code 1 if it objects to any seed.
    """
    with plain_errors():
        if broken == "list":
            _list_broken()
            return
        if trace and seed is None:
            raise DeclarationError("--trace shows one run; say which with --seed N")
        options = {
            "topology": topology,
            "faults": faults,
            "planner": planner,
            "tuples": tuples,
            "broken": broken,
        }
        chosen = range(first, first + seeds) if seed is None else range(seed, seed + 1)
        failed = _run(chosen, options, trace, speaker(json_file), json_file)
    if failed:
        raise typer.Exit(1)


def _run(
    seeds: range, options: dict[str, Any], trace: bool, console: Console, json_file: Path | None
) -> bool:
    from headgate_lab.simulator import run

    arguments = {name: options[name] for name in _DEFAULTS}
    parts = _parts(options["broken"])
    figures: Counter[str] = Counter()
    bad: list[Report] = []
    begun = time.perf_counter()
    with _progress(console) as progress:
        for seed in progress.track(seeds, description="seeds"):
            report = run.simulate(seed, parts=parts, whole_trace=trace, **arguments)
            figures.update(report.figures)
            if not report.ok:
                bad.append(report)
            if trace:
                _tell_trace(console, report)
    seconds = time.perf_counter() - begun
    _tell(console, figures, seeds, seconds, len(bad))
    if not trace:
        for report in bad[:_SHOWN]:
            again = run.simulate(report.seed, parts=parts, whole_trace=True, **arguments)
            _tell_violation(console, again, options)
    if json_file is not None:
        write_json(json_file, _json(options, seeds, figures, bad, seconds))
    return bool(bad)


def _parts(broken: str | None) -> Any:
    from headgate_lab.simulator.broken import BROKEN, VARIANTS
    from headgate_lab.simulator.run import SOUND

    known = {**BROKEN, **VARIANTS}
    if broken is None:
        return SOUND
    if broken not in known:
        raise DeclarationError(f"no mistake is called {broken!r}; choose one of {', '.join(known)}")
    return known[broken]


def _list_broken() -> None:
    from headgate_lab.simulator.broken import BROKEN, VARIANTS

    for name, parts in {**BROKEN, **VARIANTS}.items():
        typer.echo(f"{name:22} {parts.mistake}")


def _progress(console: Console) -> Progress:
    columns = (TextColumn("[dim]{task.description}"), BarColumn(), MofNCompleteColumn())
    return Progress(*columns, TimeRemainingColumn(), console=console, transient=True)


def _tell(console: Console, figures: Counter[str], seeds: range, seconds: float, bad: int) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, field in _FIGURES:
        table.add_row(name, f"{figures[field]:,}")
    console.print(table)
    count = f"{len(seeds):,} seed{'s' if len(seeds) > 1 else ''}"
    mark = "[red]✗[/]" if bad else "[green]✓[/]"
    said = f"{bad:,} with a violation" if bad else "no violation"
    rate = f"{1000 * seconds / len(seeds):.1f} ms each"
    console.print(f"\n{mark} {count}, {said} [dim]({seconds:.1f} s, {rate})[/]")


def _tell_violation(console: Console, report: Report, options: dict[str, Any]) -> None:
    lines = [*(str(event) for event in report.story()[-_LINES:]), "", str(report.violation)]
    title = f"seed {report.seed}, {report.topology}"
    console.print(
        Panel(Text("\n".join(lines)), title=title, title_align="left", border_style="red")
    )
    given = [
        f"--{name} {options[name]}"
        for name, default in _DEFAULTS.items()
        if options[name] != default
    ]
    given += [f"--broken {options['broken']}"] if options["broken"] else []
    command = " ".join(["headgate-lab simulate", f"--seed {report.seed}", *given, "--trace"])
    console.print(f"replay with: [bold]{command}[/]\n")


def _tell_trace(console: Console, report: Report) -> None:
    for event in report.trace:
        console.print(Text(str(event)), soft_wrap=True)
    verdict = report.violation or "every invariant holds"
    console.print(
        f"\nseed {report.seed}, {report.topology}, {report.instances} instances: ", end=""
    )
    console.print(Text(verdict, style="green" if report.ok else "red"))
    console.print()


def _json(
    options: dict[str, Any], seeds: range, figures: Counter[str], bad: list[Report], seconds: float
) -> dict[str, Any]:
    return {
        "command": "simulate",
        "options": options | {"first": seeds.start, "seeds": len(seeds)},
        "figures": dict(sorted(figures.items())),
        "violations": [
            {"seed": r.seed, "topology": r.topology, "violation": r.violation} for r in bad
        ],
        "seconds": round(seconds, 3),
        "ms_per_seed": round(1000 * seconds / len(seeds), 3),
    }
