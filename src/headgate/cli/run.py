"""`headgate run`: start a flow from a file and follow it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from headgate.cli.console import (
    INTERRUPTED,
    counted,
    follow,
    plain_errors,
    safe,
    speaker,
    write_json,
)
from headgate.cli.launch import (
    LOG,
    Conf,
    JsonFile,
    Latency,
    Master,
    Target,
    flow_of,
    kept_in,
    load_target,
    session,
)
from headgate.commit.facts import TuningFacts, facts_of
from headgate.commit.facts_json import Json
from headgate.commit.settings import Options
from headgate.control.settings import Manager, Scaling, slots_for
from headgate.control.tuner import SavedTuning, load_tuning, save_tuning
from headgate.errors import HeadgateError
from headgate.offline.views import EpochView, RunView
from headgate.routing.table import load_tables
from headgate.state.storage import Storage
from headgate.topology.arguments import absolute

if TYPE_CHECKING:
    from headgate.flow import Flow
    from headgate.runtime.query import FlowQuery


def run(
    target: Target,
    slots: Annotated[
        int | None,
        typer.Option(min=1, help="Places to run in, as on cores. [default: chosen while it runs]"),
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
    parallelism: Annotated[
        list[str] | None,
        typer.Option(metavar="OPERATOR=N", help="Instances of one operator; may be repeated."),
    ] = None,
    latency_s: Latency = None,
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
    json_file: JsonFile = None,
) -> None:
    """Run a flow until it ends or Ctrl-C, showing every epoch.

    Started again with the same checkpoint it goes on where it stopped, also with other --slots.
    """
    with plain_errors():
        if once and every:
            raise HeadgateError("--once and --every exclude each other")
        trigger = {"availableNow": True} if once else {"processingTime": every} if every else None
        routing = {} if tables is None else load_tables(tables)
        start: dict[str, Any] = {
            "slots": slots_for(slots_of(slots, min_slots, max_slots), routing),
            "trigger": trigger,
            "manager": manager_of(manager, planner),
            "latency_s": latency_s,
            "rows_per_epoch": rows_per_epoch,
            "parallelism": dict(map(instances_of, parallelism or ())),
            "options": Options(tables=routing),
        }
        console = speaker(json_file)
        found = load_target(target)  # before Spark starts: a typo should not cost ten seconds
        with session(console, f"headgate run {target}", conf, master) as spark:
            flow = flow_of(found, spark)
            place = checkpoint or f"artifacts/{flow.name}/checkpoint"
            fixed = f"{start['slots']} slots, " if isinstance(start["slots"], int) else ""
            console.print(f"flow [bold]{safe(flow.name)}[/], {fixed}checkpoint {safe(place)}")
            if not fixed:
                console.print(safe(begin_with(Storage.at(absolute(place)), flow.name)))
            if routing:
                named = ", ".join(f"{op} ({len(t.pinned_h):,} keys)" for op, t in routing.items())
                console.print(f"routing tables for {safe(named)}")
            if start["manager"] is not None:
                console.print(f"managed by planner {start['manager'].planner!r}")
            console.print(f"[dim]Ctrl-C stops it; Spark's log is in {LOG}[/]\n")
            views, stopped = _follow(flow, spark, start | {"checkpoint": place}, epochs, console)
        totals, place = RunView.of(views), safe(place)
        console.print(f"\n{totals.sentence}")
        console.print(
            f"[dim]look inside: headgate inspect {place}\n     draw it: headgate report {place}[/]"
        )
        write_json(json_file, {"run": asdict(totals), "epochs": [view.to_json() for view in views]})
        if stopped:
            raise typer.Exit(INTERRUPTED)


def instances_of(given: str) -> tuple[str, int]:
    """What `--parallelism score=4` says."""
    operator, _, count = given.rpartition("=")
    if not operator or not count.isdecimal() or not int(count):
        raise HeadgateError(f"--parallelism {given}: give OPERATOR=N, such as score=4")
    return operator, int(count)


def slots_of(
    slots: int | None, min_slots: int | None, max_slots: int | None
) -> int | Scaling | None:
    """What --slots, or --min-slots and --max-slots, stand for."""
    if min_slots is None and max_slots is None:
        return slots
    if slots is not None:
        raise HeadgateError(
            "--slots gives a number that stays, --min-slots and --max-slots limits within which it "
            "is chosen: keep one"
        )
    return Scaling(min_slots=min_slots or 1, max_slots=max_slots)


def manager_of(managed: bool, planner: str | None) -> Manager | None:
    if managed:
        return Manager(planner or "headgate")
    if planner is not None:
        raise HeadgateError(f"--no-manager plans nothing: leave it out, or --planner {planner}")
    return None


def _follow(
    flow: Flow, spark: Any, start: dict[str, Any], epochs: int | None, console: Console
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


def begin_with(checkpoint: Storage, flow: str) -> str:
    """Give a checkpoint without settings those of `headgate tune`; says what it begins with."""
    known = load_tuning(checkpoint)
    if known is not None and known.tuned is not None:
        return f"begins with the settings in its checkpoint: {_settings(known)}"
    place = kept_in(flow)
    kept = load_tuning(Storage.at(str(place.parent.resolve())), plain=True)
    if kept is not None and kept.tuned is not None:
        costs = kept.calibration if known is None else known.calibration
        save_tuning(checkpoint, SavedTuning(costs, kept.tuned))
        return f"begins with {place}: {_settings(kept)}"
    if known is not None:
        return "begins with a slot per core; what the engine costs is in its checkpoint"
    return "begins with a slot per core; what the engine costs is measured as it runs"


def _settings(saved: SavedTuning) -> str:
    assert saved.tuned is not None
    settings = saved.tuned.settings
    return f"{counted(settings.slots, 'slot')}, {settings.rows_per_epoch:,} rows per epoch"


def tuning_lines(journal: Iterable[Json], epochs: Collection[int]) -> Iterator[str]:
    """What the tuner has changed after these epochs, and why."""
    for facts in facts_of(journal):
        if not isinstance(facts, TuningFacts) or facts.epoch not in epochs:
            continue
        begin = f"tuned after epoch {facts.epoch}: "
        if facts.note:
            yield begin + facts.note
        if facts.slots is not None:
            yield f"{begin}{facts.slots} slots, {facts.why}"
        if facts.rows_per_epoch is not None:
            yield f"{begin}{facts.rows_per_epoch:,} rows per epoch, {facts.why_rows}"
