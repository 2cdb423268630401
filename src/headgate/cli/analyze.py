"""`headgate analyze`: count the key pairs of a data set, place its keys, write routing tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer
from rich.console import Console

from headgate.cli.console import columns, plain_errors, safe, speaker, write_json
from headgate.cli.launch import Conf, Master, session, spark_settings
from headgate.errors import HeadgateError
from headgate.offline.views import need_figures, percent, times
from headgate.routing.table import check_folder

if TYPE_CHECKING:
    from headgate.offline.analyze import Analysis, AnalyzeOptions
    from headgate.planner.partition import Quality

_QUALITIES = ("metis", "mt-kahypar")


def analyze(
    data: Annotated[str, typer.Argument(help="File or folder (Parquet, CSV, JSON), or a URI.")],
    key: Annotated[
        list[str], typer.Option(metavar="COLUMN[,COLUMN]", help="Key of an operator, in order.")
    ],
    operator: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Its name in the flow. [default: the columns]"),
    ] = None,
    edge: Annotated[
        list[str] | None,
        typer.Option(metavar="FROM:TO", help="Who feeds whom. [default: each key the next]"),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN[,COLUMN]",
            help="Partition of the source that a row comes from: draws keys to where rows come in.",
        ),
    ] = None,
    source_slot: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Slot of that partition. [default: dealt in turn]"),
    ] = None,
    source_weight: Annotated[
        float,
        typer.Option(min=0.0, max=1.0, help="Worth of a first hop against one between operators."),
    ] = 1.0,
    slots: Annotated[int, typer.Option(min=1, help="Slots of the flow.")] = 4,
    alpha: Annotated[float, typer.Option(min=1.0, help="Bound of max/mean load.")] = 1.03,
    out: Annotated[Path, typer.Option(help="Folder for tables and report.")] = Path(
        "artifacts/analysis"
    ),
    max_pins: Annotated[
        int | None,
        typer.Option(min=1, help="Entries per table, heaviest keys first. [default: 262144]"),
    ] = None,
    max_edges: Annotated[
        int | None,
        typer.Option(min=1, help="Pairs to plan with, heaviest first. [default: 5000000]"),
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same tables.")] = 0,
    quality: Annotated[str, typer.Option(help="First cut: metis or mt-kahypar.")] = "metis",
    form: Annotated[
        str | None, typer.Option("--format", help="What Spark reads. [default: by the file name]")
    ] = None,
    schema: Annotated[
        str | None, typer.Option(help="Columns and types as the flow's source declares them.")
    ] = None,
    curve: Annotated[bool, typer.Option(help="Also plan from fewer pairs, for a curve.")] = True,
    master: Master = None,
    conf: Conf = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write the figures there ('-': stdout).")
    ] = None,
) -> None:
    """Count all pairs of keys that follow each other, place the keys so that few rows change slot,
    and write routing tables, figures and a report.

    `headgate run APP --tables DIR` starts a flow with them.
    """
    from headgate.offline.analyze import MAX_EDGES, AnalyzeOptions
    from headgate.offline.analyze_input import format_of, shape_of
    from headgate.planner.key_graph import CAP

    with plain_errors():
        if quality not in _QUALITIES:
            raise HeadgateError(f"--quality {quality}: choose {' or '.join(_QUALITIES)}")
        if source_slot is not None and source is None:
            raise HeadgateError(f"--source-slot {source_slot}: say whose, with --source COLUMN")
        check_folder(out)  # before minutes of work
        need_figures()
        shape = shape_of(key, operator or (), edge or (), source)
        options = AnalyzeOptions(
            data=data,
            form=form or format_of(data),
            shape=shape,
            slots=slots,
            alpha=alpha,
            seed=seed,
            quality=cast("Quality", quality),
            max_pins=max_pins or CAP,
            max_edges=max_edges or MAX_EDGES,
            schema=schema,
            curve=curve,
            source_slot=source_slot,
            source_weight=source_weight,
        )
        _run(options, spark_settings(conf, master), out, json_file)


def _run(
    options: AnalyzeOptions, settings: dict[str, str], out: Path, json_file: Path | None
) -> None:
    from headgate.offline.analyze import analyze as analyze_data
    from headgate.offline.analyze import check_solver, write

    check_solver(options.quality)
    console = speaker(json_file)

    def progress(stage: str, found: str, seconds: float) -> None:
        if found:
            console.print(f"[green]✓[/] {stage:10} {safe(found)} [dim]{seconds:.1f} s[/]")
        status.update(f"[dim]{stage}[/]")

    name = f"headgate analyze {options.data}"
    with session(console, name, settings, what="analysis") as spark, console.status("") as status:
        analysis = analyze_data(spark, options, progress)
        files = write(analysis, out, progress)
    _print_result(console, analysis)
    console.print(f"\nReport: [bold]{safe(files[-1])}[/]")
    console.print(f"[dim]Start with it: headgate run APP.PY:FLOW --tables {safe(out)}[/]")
    write_json(json_file, analysis.facts())


def _print_result(console: Console, analysis: Analysis) -> None:
    plans = {"tables": analysis.expected, "hash": analysis.hashed}
    if analysis.without is not None:
        plans["source ignored"] = analysis.without
    shown = columns("", numbers=(*plans, "floor"))
    shown.add_row("rows staying in slot", *(percent(plan.locality) for plan in plans.values()), "")
    if analysis.source is not None:
        hops = (percent(plan.first_hop_locality) for plan in plans.values())
        shown.add_row("first hop, from the source", *hops, "")
    for name, floor in analysis.floor.items():
        loads = (times(plan.imbalance[name]) for plan in plans.values())
        shown.add_row(f"busiest slot, {safe(name)}", *loads, times(floor))
    console.print()
    console.print(shown)
    for note in analysis.notes:
        console.print(f"[yellow]![/] {safe(note)}")
