"""`headgate calibrate` and `headgate tune`: what the engine costs, and what to set.

Sentences are functions of what was measured and chosen; only those that begin with `print` print.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headgate.cli.console import counted, plain_errors, safe, speaker, table, write_json
from headgate.cli.launch import (
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
from headgate.commit.facts_json import to_json
from headgate.control.measured_flow import Measured
from headgate.control.proving import prove
from headgate.control.tuner import GROWTH, SavedTuning, load_tuning, read_calibration, save_tuning
from headgate.planner.tuning.cost_model import Calibration, Step
from headgate.planner.tuning.epochs import EpochModel, EpochSettings
from headgate.planner.tuning.explained import TunedEpochs
from headgate.planner.tuning.tuned import tune_epochs
from headgate.state.storage import Storage
from headgate.topology.arguments import absolute

DEFAULT_COSTS = Path("artifacts/calibration.json")
WAIT_S = 30.0  # the first epoch of a cold Spark takes up to twenty seconds
ERROR_MAX = 0.15  # costs that miss half of their own probes by more than this are not to be trusted
ASSUMED = (
    "epochs of the probe had about one size: what they cost without rows is the calibration's, and "
    "what operators take without rows counts as theirs per row"
)
MOSTLY_FIXED = 0.5  # share of an epoch's time that no row needs


def calibrate(
    out: Annotated[Path, typer.Option(help="Where to keep the costs.")] = DEFAULT_COSTS,
    checkpoint: Annotated[
        str | None,
        typer.Option(help="Keep them there too, for flow.start and headgate run."),
    ] = None,
    quick: Annotated[bool, typer.Option(help="Small probes: rough, but in seconds.")] = False,
    master: Master = None,
    conf: Conf = None,
    json_file: JsonFile = None,
) -> None:
    """Probe the engine: what a message, a byte, a task and an epoch cost."""
    from headgate.runtime.auto import QUICK
    from headgate.runtime.auto import calibrate as measure

    with plain_errors():
        console = speaker(json_file)
        with (
            session(console, "headgate calibrate", conf, master, what="probe") as spark,
            _at_work(console, "probing the engine") as say,
        ):
            found = measure(spark, QUICK if quick else None, say=say)
        write_json(out, to_json(found))
        print_costs(console, found)
        print_doubt(console, found)
        console.print(f"[dim]kept in {safe(out)}; headgate tune --costs {safe(out)} uses it[/]")
        if checkpoint is not None:
            keep_costs(Storage.at(absolute(checkpoint)), found)
            console.print(f"[dim]and in {safe(checkpoint)}, where flow.start finds it[/]")
        write_json(json_file, to_json(found))


def tune(
    target: Target,
    epochs: Annotated[
        int, typer.Option(min=1, help="Epochs to measure; the first two warm up.")
    ] = 8,
    wait_s: Annotated[
        float, typer.Option(min=1, help="Give up if no rows have come after so many seconds.")
    ] = WAIT_S,
    slots: Annotated[
        int | None, typer.Option(min=1, help="Slots of the probe. [default: a slot per core]")
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(min=1, help="Rows per second to keep up with. [default: all there is]"),
    ] = None,
    latency_s: Latency = None,
    max_slots: Annotated[
        int | None, typer.Option(min=1, help="At most so many slots. [default: a slot per core]")
    ] = None,
    rows_max: Annotated[
        int | None,
        typer.Option(
            min=1,
            help=f"At most so many rows per epoch; never over {GROWTH} times the largest measured.",
        ),
    ] = None,
    costs: Annotated[
        Path | None, typer.Option(help="File of `headgate calibrate`. [default: probe first]")
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(help="Keep the result there too, for flow.start."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Where to keep it. [default: artifacts/FLOW/tuning.json]")
    ] = None,
    master: Master = None,
    conf: Conf = None,
    json_file: JsonFile = None,
) -> None:
    """Run a flow for a few epochs, its sinks muted, and say what to set.

    What is chosen is run for as many epochs before it is recommended.

    Nothing is written to its sinks, and its checkpoint is not touched unless --checkpoint names it.
    """
    from headgate.runtime.auto import calibrate as measure
    from headgate.runtime.auto import cores_of
    from headgate.runtime.connectors import takes_rows
    from headgate.runtime.tune_probe import probe_flow

    with plain_errors():
        console = speaker(json_file)
        calibration = None if costs is None else read_calibration(costs)
        found = load_target(target)
        with session(console, f"headgate tune {target}", conf, master, what="probe") as spark:
            flow = flow_of(found, spark)
            if calibration is None:
                with _at_work(console, "probing the engine") as say:
                    calibration = measure(spark, say=say)
            print_doubt(console, calibration)
            engine, largest = calibration, 0

            def say_line(line: str) -> None:
                console.print(Text(line, style="dim"))

            def probe(slots: int, instances: Mapping[str, int]) -> Measured:
                nonlocal largest
                say_line(f"a probe with {told(slots, instances)}")
                measured, seen = probe_flow(
                    flow,
                    spark,
                    engine,
                    slots=slots,
                    parallelism=instances,
                    epochs=epochs,
                    wait_s=wait_s,
                    say=say_line,
                )
                largest = max(largest, *(epoch.rows for epoch in seen))
                return measured

            def chosen(model: EpochModel, kept: EpochSettings | None = None) -> TunedEpochs:
                return choose(model, rate, latency_s, max_slots, rows_max, largest, kept)

            with console.status(f"[dim]running {flow.name}, its sinks muted[/]"):
                proved = prove(probe(slots or cores_of(spark), {}), chosen, probe)
        measured, tuned = proved.measured, proved.tuned
        place = out or kept_in(flow.name)
        print_tuning(console, measured, tuned)
        for line in ways(target, tuned.settings, takes_rows(flow.graph())):
            console.print(Text(f"  {line}"), soft_wrap=True)
        if checkpoint is not None or out is None:  # else `headgate run` would not find it
            given = {"latency-s": latency_s, "max-slots": max_slots, "checkpoint": checkpoint}
            words = [f"--{name} {value}" for name, value in given.items() if value is not None]
            console.print("  or begin with that, and let it change with what is measured:")
            line = " ".join(["headgate run", target, *words])
            console.print(Text(f"  {line}"), soft_wrap=True)
        saved = SavedTuning(calibration, tuned)
        write_json(place, to_json(saved))
        console.print(f"[dim]kept in {safe(place)}[/]")
        if checkpoint is not None:
            save_tuning(Storage.at(absolute(checkpoint)), saved)
            console.print(f"[dim]and in {safe(checkpoint)}, where flow.start finds it[/]")
        write_json(json_file, to_json(saved))


def keep_costs(checkpoint: Storage, found: Calibration) -> None:
    """New costs for a checkpoint; settings that it has stay."""
    known = load_tuning(checkpoint)
    save_tuning(checkpoint, SavedTuning(found, None if known is None else known.tuned))


def choose(
    model: EpochModel,
    rate: float | None,
    latency_s: float | None,
    max_slots: int | None,
    rows_max: int | None,
    largest: int,
    kept: EpochSettings | None = None,
) -> TunedEpochs:
    """What the optimizer says, of epochs that are not far from those that were measured.

    `kept`: only of epochs and batches, for the slots and instances of these settings.
    """
    slots, instances = (None, None) if kept is None else (kept.slots, kept.instances)
    tuned_to = partial(
        tune_epochs,
        model,
        rate=rate,
        latency_s=latency_s,
        max_slots=max_slots,
        slots=slots,
        instances=instances,
    )
    free = tuned_to()
    bound = min(rows_max or GROWTH * largest, GROWTH * largest)
    if free.settings.rows_per_epoch <= bound:
        return free
    tuned = tuned_to(rows_max=bound)
    met = met_bound(tuned, free, rows_max, largest)
    return replace(tuned, why=(*tuned.why, met) if met else tuned.why)


@contextmanager
def _at_work(console: Console, what: str) -> Iterator[Callable[[str], None]]:
    """A spinner that shows the newest line; in a pipe every line is printed."""
    with console.status(f"[dim]{what}[/]") as status:

        def say(line: str) -> None:
            if console.is_terminal:
                status.update(f"[dim]{what}, {line}[/]")
            else:
                console.print(Text(line, style="dim"))

        yield say


# --- in words ---------------------------------------------------------------------------------
def print_costs(console: Console, found: Calibration) -> None:
    costs = found.costs
    rows = {
        "n: a message (batch tuple)": f"{costs.message_s * 1e6:,.1f} µs",
        "s: a byte": f"{costs.byte_s * 1e9:,.2f} ns",
        "a task, of all cores": f"{costs.task_s * 1e3:,.1f} ms",
        "a level": f"{costs.level_s * 1e3:,.1f} ms",
        "an epoch's job": f"{costs.epoch_s * 1e3:,.1f} ms",
        "probes explained to": f"{found.error:.0%} (median)",
    }
    console.print(table([found.engine, ""], list(rows.items())))


def print_doubt(console: Console, found: Calibration) -> None:
    """What to do about costs that explain their own probes badly."""
    if found.error > ERROR_MAX:
        said = (
            f"these costs miss half of their probes by more than {found.error:.0%}: the machine "
            "was busy, or probes were small. Run headgate calibrate again when it is idle, without "
            "--quick"
        )
        console.print(Text(said, style="yellow"))


def print_tuning(console: Console, measured: Measured, tuned: TunedEpochs) -> None:
    head = [
        "operator",
        "instances",
        "µs a row",
        "waiting",
        "of all work",
        "predicted rows/s",
        "rows per batch",
    ]
    rows = [
        [
            Text(step.name, style="bold" if step.name == tuned.bottleneck else ""),
            instances(measured, tuned, step.name),
            f"{step.ppt_s * 1e6:,.2f}",
            f"{step.wait_s / step.ppt_s:.0%}" if step.ppt_s else "-",
            f"{tuned.work_share.get(step.name, 0.0):.0%}",
            f"{tuned.rates.get(step.name, 0.0):,.0f}",
            batches(measured, tuned, step),
        ]
        for step in measured.model.flow.steps
    ]
    console.print(f"measured over {counted(measured.epochs, 'epoch')}")
    console.print(table(head, rows))
    settings, predicted = tuned.settings, tuned.prediction
    chosen = f"{counted(settings.slots, 'slot')}, {settings.rows_per_epoch:,} rows per epoch"
    console.print(
        f"\n[bold]{chosen}[/]: predicted {predicted.rows_per_s:,.0f} rows/s, epochs of "
        f"{predicted.epoch_s:.2f} s ({predicted.fixed_s:.2f} s fixed), 95 % of rows done after "
        f"{predicted.latency_p95_s:.2f} s. The probe: {measured.rows_per_s:,.0f} rows/s.\n"
    )
    console.print(f"[bold]Bottleneck:[/] {safe(bottleneck(tuned))}")
    console.print("[bold]Why:[/]")
    reasons = Table.grid(padding=(0, 1))
    for reason in [
        *tuned.why,
        *operator_lines(tuned),
        *([] if measured.sizes_differ else [ASSUMED]),
    ]:
        reasons.add_row(" -", Text(reason))
    console.print(reasons)
    console.print("[bold]Use it:[/]")


def told(slots: int, instances: Mapping[str, int]) -> str:
    """Slots, and the instances of operators that have one in some of them only."""
    some = [f"{name} in {count}" for name, count in sorted(instances.items())]
    return ", ".join([counted(slots, "slot"), *some])


def bottleneck(tuned: TunedEpochs) -> str:
    """The operator that epochs spend most time on, what holds it back, and what would help."""
    said = f"{tuned.bottleneck} {tuned.why_bottleneck}."
    predicted = tuned.prediction
    fixed = predicted.fixed_s / predicted.epoch_s if predicted.epoch_s > 0 else 0.0
    if fixed > MOSTLY_FIXED:
        said += f" But {fixed:.0%} of an epoch's time is not for rows: larger epochs share it."
    return said


def instances(measured: Measured, tuned: TunedEpochs, name: str) -> str:
    """Of an operator; what comes before the first exchange is in source tasks."""
    if measured.model.flow.step[name].in_source_tasks:
        return counted(measured.model.source_tasks, "source task")
    known = {choice.name: choice.instances for choice in tuned.operators}
    return f"{known.get(name, tuned.settings.slots)} of {counted(tuned.settings.slots, 'slot')}"


def operator_lines(tuned: TunedEpochs) -> list[str]:
    """What was chosen for every operator that could have had another number of instances."""
    return [
        f"{choice.name}, {counted(choice.instances, 'instance')}: {choice.why}"
        for choice in tuned.operators
        if "predicted" in choice.why
    ]


def met_bound(tuned: TunedEpochs, free: TunedEpochs, rows_max: int | None, largest: int) -> str:
    """Why an epoch is smaller than the model alone would have it; empty if it is not."""
    rows, wanted = tuned.settings.rows_per_epoch, free.settings.rows_per_epoch
    if rows >= wanted:
        return ""
    without = f"alone the model would choose {wanted:,} rows per epoch, for "
    without += f"{free.prediction.rows_per_s:,.0f} rows/s"
    if rows == rows_max:
        return f"--rows-max was met: {without}"
    return (
        f"{rows:,} rows are {GROWTH} times the largest epoch of the probe ({largest:,}); beyond "
        f"that the model is a guess: {without}. Probe it with larger epochs, or let "
        "`headgate run` go on"
    )


def ways(target: str, settings: EpochSettings, takes_rows: bool) -> list[str]:
    """Lines to copy; `takes_rows` says whether the flow's sources take a number of rows."""
    rows = settings.rows_per_epoch
    python, flags = f"slots={settings.slots}", f"--slots {settings.slots}"
    if takes_rows:
        python += f", rows_per_epoch={rows:_}"
        flags += f" --rows-per-epoch {rows}"
    if settings.instances:
        python += f", parallelism={dict(settings.instances)}"
    lines = [f'flow.start(spark, {python}, checkpoint="...")', f"headgate run {target} {flags}"]
    if not takes_rows:
        lines.append(
            f"and set the limit of its source to some {rows:,} rows (maxOffsetsPerTrigger, "
            "maxFilesPerTrigger): it takes no number of rows, a headgate.Reader does"
        )
    return lines


def batches(measured: Measured, tuned: TunedEpochs, step: Step) -> str:
    """Rows of the batches that it sends; a stream without batches is passed on in memory."""
    sizes = [tuned.settings.batch_rows.get(s.name) for s in measured.model.flow.outputs[step.name]]
    known = [f"{rows:,}" for rows in sorted({rows for rows in sizes if rows is not None})]
    return ", ".join([*known, *(["in memory"] if None in sizes else [])]) or "-"
