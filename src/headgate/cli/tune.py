"""`headgate calibrate` and `headgate tune`: what the engine charges, and what to set."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from headgate.cli.console import speaker, told_plainly, write_json
from headgate.cli.run import spark_settings
from headgate.control.tuning_file import SavedTuning, save_tuning
from headgate.errors import HeadgateError
from headgate.planner.tuning.calibration import Calibration
from headgate.planner.tuning.epochs import TunedEpochs, tune_epochs
from headgate.state.storage import Storage

if TYPE_CHECKING:
    from headgate.control.measured_flow import Measured

LOG = Path("artifacts/spark.log")
DEFAULT_COSTS = Path("artifacts/calibration.json")

Master = Annotated[
    str | None, typer.Option(help="Spark master. [default: HEADGATE_MASTER or local[*]]")
]
Conf = Annotated[
    list[str] | None, typer.Option(metavar="KEY=VALUE", help="Spark setting; may be repeated.")
]


def calibrate(
    out: Annotated[Path, typer.Option(help="Where to keep the costs.")] = DEFAULT_COSTS,
    quick: Annotated[bool, typer.Option(help="Small probes: rough, but in seconds.")] = False,
    master: Master = None,
    conf: Conf = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write costs and probes there ('-': stdout).")
    ] = None,
) -> None:
    """Probe the engine: what a message, a byte, a task and an epoch cost."""
    from headgate.runtime.calibration import QUICK
    from headgate.runtime.calibration import calibrate as measure
    from headgate.runtime.session import local_session

    with told_plainly():
        console = speaker(json_file)
        settings = spark_settings(conf or [], master)
        with console.status("[dim]starting Spark[/]"):
            spark = local_session("headgate calibrate", conf=settings, log_file=LOG)
        try:
            with console.status("[dim]probing[/]"):
                found = measure(spark, QUICK if quick else None)
        finally:
            spark.stop()
        write_json(out, found.to_json())
        _tell_costs(console, found)
        console.print(f"[dim]kept in {out}; headgate tune --costs {out} uses it[/]")
        if json_file is not None:
            write_json(json_file, found.to_json())


def tune(
    target: Annotated[
        str, typer.Argument(metavar="APP.PY:FLOW", help="A Flow, or a function (spark) -> Flow.")
    ],
    epochs: Annotated[
        int, typer.Option(min=1, help="Epochs to measure; the first two warm up.")
    ] = 8,
    slots: Annotated[
        int | None, typer.Option(min=1, help="Slots of the probe. [default: a slot per core]")
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(min=1, help="Rows per second to keep up with. [default: all there is]"),
    ] = None,
    latency_ms: Annotated[
        float | None, typer.Option(min=1, help="Mean latency of a row to stay within.")
    ] = None,
    slots_max: Annotated[
        int | None, typer.Option(min=1, help="At most so many slots. [default: a slot per core]")
    ] = None,
    costs: Annotated[
        Path | None, typer.Option(help="File of `headgate calibrate`. [default: probe first]")
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(help="Keep the result there too, for start(parallelism='auto')."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Where to keep it. [default: artifacts/FLOW/tuning.json]")
    ] = None,
    master: Master = None,
    conf: Conf = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the result there too ('-': stdout).")
    ] = None,
) -> None:
    """Run a flow for a few epochs, its sinks muted, and say what to set.

    Nothing is written to its sinks, and its checkpoint is not touched unless --checkpoint names it.
    """
    from headgate.cli.app_file import flow_of, load_target
    from headgate.runtime.calibration import calibrate as measure
    from headgate.runtime.calibration import cores_of
    from headgate.runtime.delivery import absolute
    from headgate.runtime.session import local_session
    from headgate.runtime.tune_probe import probe_flow

    with told_plainly():
        console = speaker(json_file)
        settings = spark_settings(conf or [], master)
        calibration = None if costs is None else _load_costs(costs)
        found = load_target(target)
        with console.status("[dim]starting Spark[/]"):
            spark = local_session(f"headgate tune {target}", conf=settings, log_file=LOG)
        try:
            flow = flow_of(found, spark)
            if calibration is None:
                with console.status("[dim]probing the engine[/]"):
                    calibration = measure(spark)
            with console.status(f"[dim]running {flow.name} for {epochs} epochs[/]"):
                measured, _ = probe_flow(
                    flow, spark, calibration, slots=slots or cores_of(spark), epochs=epochs
                )
        finally:
            spark.stop()
        latency_s = None if latency_ms is None else latency_ms / 1e3
        tuned = tune_epochs(measured.model, rate=rate, latency_s=latency_s, slots_max=slots_max)
        _tell_tuning(console, measured, tuned)
        saved = SavedTuning(calibration, tuned)
        place = out or Path(f"artifacts/{flow.name}/tuning.json")
        write_json(place, saved.to_json())
        console.print(f"[dim]kept in {place}[/]")
        if checkpoint is not None:
            save_tuning(Storage.at(absolute(checkpoint)), saved)
            console.print(f"[dim]and in {checkpoint}, where start(parallelism='auto') finds it[/]")
        if json_file is not None:
            write_json(json_file, saved.to_json())


def _load_costs(path: Path) -> Calibration:
    try:
        return Calibration.from_json(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise HeadgateError(
            f"{path} holds no costs ({problem}); make it with: headgate calibrate --out {path}"
        ) from problem


def _tell_costs(console: Console, found: Calibration) -> None:
    costs = found.costs
    table = Table(title=found.engine, title_justify="left", show_header=False)
    table.add_row("n: a message (batch tuple)", f"{costs.message_s * 1e6:,.1f} µs")
    table.add_row("s: a byte", f"{costs.byte_s * 1e9:,.2f} ns")
    table.add_row("a task, of all cores", f"{costs.task_s * 1e3:,.1f} ms")
    table.add_row("a level", f"{costs.level_s * 1e3:,.1f} ms")
    table.add_row("an epoch's job", f"{costs.epoch_s * 1e3:,.1f} ms")
    table.add_row("probes explained to", f"{found.error:.0%} (median)")
    console.print(table)


def _tell_tuning(console: Console, measured: Measured, tuned: TunedEpochs) -> None:
    flow = measured.model.flow
    table = Table(title=f"measured over {measured.epochs} epochs", title_justify="left")
    for name in ("operator", "µs a row", "of all work", "predicted rows/s", "rows per batch"):
        table.add_column(name, justify="left" if name == "operator" else "right")
    for step in flow.steps:
        batches = {tuned.settings.batch_rows[s.name] for s in flow.outputs[step.name]}
        table.add_row(
            step.name,
            f"{step.ppt_s * 1e6:,.2f}",
            f"{tuned.work_share[step.name]:.0%}",
            f"{tuned.rates[step.name]:,.0f}",
            ", ".join(f"{rows:,}" for rows in sorted(batches)),
        )
    console.print(table)
    settings, told = tuned.settings, tuned.prediction
    console.print(
        f"[bold]{settings.slots} slots, {settings.rows_per_epoch:,} rows per epoch[/]: predicted "
        f"{told.rows_per_s:,.0f} rows/s, epochs of {told.epoch_s:.2f} s "
        f"({told.fixed_s:.2f} s fixed), rows done after {told.latency_s:.2f} s on average"
    )
    console.print(f"measured in the probe: {measured.rows_per_s:,.0f} rows/s")
    if not measured.sizes_differ:
        console.print(
            "[dim]epochs of the probe had about one size: what they cost without rows is the "
            "calibration's, and what operators take without rows counts as theirs per row[/]"
        )
    for reason in tuned.why:
        console.print(f"  {reason}")
