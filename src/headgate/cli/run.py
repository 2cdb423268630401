"""`headgate run`: start a flow from a file and follow it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from headgate.cli.console import (
    INTERRUPTED,
    plain_errors,
    safe,
    speaker,
    write_json,
)
from headgate.cli.kept_tuning import begin_with, tuning_lines
from headgate.cli.launch import LOG, Conf, Master, flow_of, load_target, session, spark_settings
from headgate.cli.live import follow
from headgate.cli.start_options import (
    manager_of,
    slots_of,
    trigger_of,
)
from headgate.commit.settings import Options
from headgate.control.settings import slots_for
from headgate.errors import HeadgateError
from headgate.offline.views import EpochView, RunView, short
from headgate.routing.table import load_tables
from headgate.state.storage import Storage

if TYPE_CHECKING:
    from headgate.flow import Flow
    from headgate.runtime.query import FlowQuery


def run(
    target: Annotated[
        str, typer.Argument(metavar="APP.PY:FLOW", help="A Flow, or a function (spark) -> Flow.")
    ],
    slots: Annotated[
        int | None,
        typer.Option(min=1, help="Instances of every operator. [default: chosen while it runs]"),
    ] = None,
    tables: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Start with the routing tables of `headgate analyze`."),
    ] = None,
    manager: Annotated[
        bool, typer.Option(help="Move keys, while it runs, to where their rows are.")
    ] = True,
    planner: Annotated[
        str | None, typer.Option(help="Planner of the manager. [default: headgate]")
    ] = None,
    min_slots: Annotated[
        int | None, typer.Option(min=1, help="No fewer slots, where they are chosen. [default: 1]")
    ] = None,
    max_slots: Annotated[
        int | None,
        typer.Option(min=1, help="No more slots, where they are chosen. [default: one per core]"),
    ] = None,
    latency_s: Annotated[
        float | None, typer.Option(min=1e-3, help="Mean latency of a row to stay within.")
    ] = None,
    rows_per_epoch: Annotated[
        int | None,
        typer.Option(min=1, help="Tell sources that take it. [default: chosen while it runs]"),
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(help="Folder or URI of the checkpoint. [default: artifacts/FLOW/checkpoint]"),
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", "--available-now", help="Stop when all there is now is read.")
    ] = False,
    every: Annotated[
        str | None, typer.Option(help="Time between epochs, such as '5 seconds'. [default: none]")
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Stop after this many epochs.")] = None,
    master: Master = None,
    conf: Conf = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the figures there at the end.")
    ] = None,
) -> None:
    """Run a flow until it ends or Ctrl-C, showing every epoch.

    Started again with the same checkpoint it goes on where it stopped, also with other --slots.
    """
    with plain_errors():
        if once and every:
            raise HeadgateError("--once and --every exclude each other")
        settings = spark_settings(conf, master)
        routing = {} if tables is None else load_tables(tables)
        start: dict[str, Any] = {
            "slots": slots_for(slots_of(slots, min_slots, max_slots), routing),
            "trigger": trigger_of(once, every),
            "manager": manager_of(manager, planner),
            "latency_s": latency_s,
            "rows_per_epoch": rows_per_epoch,
            "options": Options(tables=routing),
        }
        _run(target, start, checkpoint, epochs, settings, json_file)


def _run(
    target: str,
    start: dict[str, Any],
    checkpoint: str | None,
    epochs: int | None,
    settings: dict[str, str],
    json_file: Path | None,
) -> None:
    from headgate.topology.place import absolute

    console = speaker(json_file)
    found = load_target(target)  # before Spark starts: a typo should not cost ten seconds
    with session(console, f"headgate run {target}", settings) as spark:
        flow = flow_of(found, spark)
        place = checkpoint or f"artifacts/{flow.name}/checkpoint"
        slots, tables = start["slots"], start["options"].tables
        fixed = f"{slots} slots, " if isinstance(slots, int) else ""
        console.print(f"flow [bold]{safe(flow.name)}[/], {fixed}checkpoint {safe(place)}")
        if not fixed:
            console.print(safe(begin_with(Storage.at(absolute(place)), flow.name)))
        if tables:
            told = ", ".join(f"{op} ({len(t.pinned_h):,} keys)" for op, t in tables.items())
            console.print(f"routing tables for {safe(told)}")
        if start["manager"] is not None:
            console.print(f"managed by planner {start['manager'].planner!r}")
        console.print(f"[dim]Ctrl-C stops it; Spark's log is in {LOG}[/]\n")
        views, stopped = _follow(flow, spark, start | {"checkpoint": place}, epochs, console)
    _print_result(console, views, place)
    run = RunView.of(views).to_json()
    write_json(json_file, {"run": run, "epochs": [view.to_json() for view in views]})
    if stopped:
        raise typer.Exit(INTERRUPTED)


def _follow(
    flow: Flow,
    spark: Any,
    start: dict[str, Any],
    epochs: int | None,
    console: Console,
) -> tuple[list[EpochView], bool]:
    """Epochs seen, and whether it was Ctrl-C that ended the flow."""
    views: list[EpochView] = []
    query: FlowQuery | None = None
    try:
        with console.status("[dim]starting the flow[/]"):
            query = flow.start(spark, **start)
        follow(query, console, stop_after=epochs, seen=views)
        if query.isActive:
            query.stop()
        for line in tuning_lines(query.journal(), {view.epoch for view in views}):
            console.print(safe(line))
    except KeyboardInterrupt:
        if query is not None:
            with console.status("[dim]stopping[/]"):
                query.stop()
        return views, True
    return views, False


def _print_result(console: Console, views: list[EpochView], place: str) -> None:
    run = RunView.of(views)
    said = f"\n{run.epochs} epochs, {run.rows:,} rows"
    if run.rows_per_second_median is not None:
        said += f", median {short(run.rows_per_second_median)} rows/s"
    console.print(said)
    place = safe(place)
    console.print(
        f"[dim]look inside: headgate inspect {place}\n     draw it: headgate report {place}[/]"
    )
