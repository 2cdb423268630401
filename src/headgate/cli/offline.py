"""Commands beside any flow: `headgate analyze`, `headgate replay` and `headgate report`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from headgate.cli.console import plain_errors, safe, speaker, table, write_json
from headgate.cli.launch import Conf, JsonFile, Master, session
from headgate.errors import HeadgateError
from headgate.offline.views import need_figures, percent, times
from headgate.routing.table import check_folder

if TYPE_CHECKING:
    from headgate.offline.analyze import Analysis

ROWS_SHOWN = 24  # periods of a replay: fits a terminal together with the summary


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
    json_file: JsonFile = None,
) -> None:
    """Count all pairs of keys that follow each other, place the keys so that few rows change slot,
    and write routing tables, figures and a report.

    `headgate run APP --tables DIR` starts a flow with them.
    """
    from headgate.offline.analyze import MAX_EDGES, AnalyzeOptions, check_solver, write
    from headgate.offline.analyze import analyze as analyze_data
    from headgate.offline.analyze_input import format_of, shape_of
    from headgate.planner.first_cut import Quality
    from headgate.planner.key_graph import CAP

    def progress(stage: str, found: str, seconds: float) -> None:
        if found:
            console.print(f"[green]✓[/] {stage:10} {safe(found)} [dim]{seconds:.1f} s[/]")
        status.update(f"[dim]{stage}[/]")

    with plain_errors():
        if quality not in get_args(Quality):
            raise HeadgateError(f"--quality {quality}: choose {' or '.join(get_args(Quality))}")
        if source_slot is not None and source is None:
            raise HeadgateError(f"--source-slot {source_slot}: say whose, with --source COLUMN")
        check_folder(out)  # before minutes of work
        need_figures()
        options = AnalyzeOptions(
            data=data,
            form=form or format_of(data),
            shape=shape_of(key, operator or (), edge or (), source),
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
        check_solver(options.quality)
        console, name = speaker(json_file), f"headgate analyze {data}"
        spark_session = session(console, name, conf, master, what="analysis")
        with spark_session as spark, console.status("") as status:
            analysis = analyze_data(spark, options, progress)
            files = write(analysis, out, progress)
        _print_analysis(console, analysis)
        console.print(f"\nReport: [bold]{safe(files[-1])}[/]")
        console.print(f"[dim]Start with it: headgate run APP.PY:FLOW --tables {safe(out)}[/]")
        write_json(json_file, analysis.facts())


def _print_analysis(console: Console, analysis: Analysis) -> None:
    plans = {"tables": analysis.expected, "hash": analysis.hashed}
    if analysis.without is not None:
        plans["source ignored"] = analysis.without
    rows = [["rows staying in slot", *(percent(plan.locality) for plan in plans.values()), ""]]
    if analysis.source is not None:
        hops = (percent(plan.first_hop_locality) for plan in plans.values())
        rows.append(["first hop, from the source", *hops, ""])
    for name, floor in analysis.floor.items():
        loads = (times(plan.imbalance[name]) for plan in plans.values())
        rows.append([f"busiest slot, {name}", *loads, times(floor)])
    console.print()
    console.print(table(["", *plans, "floor"], rows))
    for note in analysis.notes:
        console.print(f"[yellow]![/] {safe(note)}")


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
    json_file: JsonFile = None,
) -> None:
    """Run a planner over a recorded stream: locality, balance and moves on rows after each plan."""
    from headgate.offline.replay import replay as run_replay
    from headgate.offline.replay_owners import read_trace
    from headgate.offline.replay_planners import ReplayOptions

    console = speaker(json_file)
    options = ReplayOptions(planner, window, period, slots, epoch, alpha, seed, strict, split)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("periods"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )
    with plain_errors():
        trace = read_trace(data, key, time)
        with bar:
            task = bar.add_task(f"{planner} on {data.name}", total=None)
            found = run_replay(
                trace, options, lambda done, all_: bar.update(task, completed=done, total=all_)
            )
        _print_replay(console, found)
        write_json(json_file, {"data": data.name, **found})


def _print_replay(console: Console, found: dict[str, Any]) -> None:
    """All periods, or evenly spaced ones if there are many (the JSON file has them all)."""
    step = -(-len(found["per_period"]) // ROWS_SHOWN)
    head = ["period", "local", "imbalance", "per epoch", "floor", "moves", "adopted", "plan ms"]
    periods = [
        [
            str(record["period"]),
            f"{record['locality']:.3f}",
            _slashed(record["imbalance"]),
            _slashed(record["imbalance_epoch"]),
            _slashed(record["imbalance_floor"]),
            f"{record['moves']:,}",
            f"{record['adoptions']:,}",
            f"{1000 * record['plan_seconds']:,.1f}",
        ]
        for record in found["per_period"][::step]
    ]
    overall = {
        "locality: pairs whose two keys share a slot": f"{found['locality']:.3f}",
        f"imbalance per period ({' / '.join(found['keys'])})": _slashed(found["imbalance"]),
        "imbalance per epoch": _slashed(found["imbalance_epoch"]),
        "floor: what the heaviest key forces in one slot": _slashed(found["imbalance_floor"]),
        "keys moved per period": f"{found['moves_per_period']:,.0f}",
        "new keys adopted per period": f"{found['adoptions_per_period']:,.0f}",
        "merge rows per row": f"{found['merge_rows_per_row']:.4f}",
        "remote and merge rows per row": f"{found['remote_plus_merge_per_row']:.4f}",
        "keys moved by the first plan (not counted above)": f"{found['initial_moves']:,}",
        "longest plan, seconds": f"{found['plan_seconds_max']:.4f}",
    }
    console.print("[bold]per period[/]" if step == 1 else f"[bold]every {step}th period[/]")
    console.print(table(head, periods, words=0))
    measured = f"{found['periods']} periods, {found['rows_measured']:,} rows"
    console.print(f"\n[bold]{safe(found['planner'])}: {measured}[/]")
    console.print(table(["", ""], list(overall.items())))
    if "anchor" in found:
        console.print(
            f"Rows went by {safe(found['anchor'])}; all other keys were held in partials."
        )
    if found["rows_unused"]:
        console.print(f"{found['rows_unused']:,} rows after the last full period were not used.")


def _slashed(values: list[float]) -> str:
    return "/".join(f"{value:.2f}" for value in values)


def report(
    checkpoint: Annotated[str, typer.Argument(help="Folder or URI given as checkpoint=.")],
    out: Annotated[Path, typer.Option(help="The HTML file to write.")] = Path(
        "headgate-report.html"
    ),
    title: Annotated[str | None, typer.Option(help="Heading. [default: the flow's name]")] = None,
) -> None:
    """Draw a flow's journal as one self-contained HTML file; works beside a running flow."""
    with plain_errors():
        need_figures()
        from headgate.offline.report import write_report

        typer.echo(str(write_report(checkpoint, out, title=title)))
