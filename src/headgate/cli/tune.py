"""`headgate calibrate` and `headgate tune`: what the engine charges, and what to set."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from headgate.cli.console import plain_errors, safe, speaker, write_json
from headgate.cli.launch import Conf, Master, flow_of, kept_in, load_target, session, spark_settings
from headgate.cli.tuning_text import Answer, doubt, met_bound, print_costs, print_tuning
from headgate.control.tuner import GROWTH
from headgate.control.tuning_file import SavedTuning, load_tuning, read_calibration, save_tuning
from headgate.planner.tuning.cost_model import Calibration
from headgate.planner.tuning.epochs import TunedEpochs, tune_epochs
from headgate.state.storage import Storage

if TYPE_CHECKING:
    from headgate.planner.tuning.epoch_model import EpochModel

DEFAULT_COSTS = Path("artifacts/calibration.json")
WAIT_S = 30.0  # the first epoch of a cold Spark takes up to twenty seconds


def calibrate(
    out: Annotated[Path, typer.Option(help="Where to keep the costs.")] = DEFAULT_COSTS,
    checkpoint: Annotated[
        str | None,
        typer.Option(help="Keep them there too, for flow.start and headgate run."),
    ] = None,
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
    from headgate.topology.arguments import absolute

    with plain_errors():
        console = speaker(json_file)
        settings = spark_settings(conf, master)
        with (
            session(console, "headgate calibrate", settings, what="probe") as spark,
            _at_work(console, "probing the engine") as say,
        ):
            found = measure(spark, QUICK if quick else None, say=say)
        write_json(out, found.to_json())
        print_costs(console, found)
        _warn(console, doubt(found))
        console.print(f"[dim]kept in {safe(out)}; headgate tune --costs {safe(out)} uses it[/]")
        if checkpoint is not None:
            keep_costs(Storage.at(absolute(checkpoint)), found)
            console.print(f"[dim]and in {safe(checkpoint)}, where flow.start finds it[/]")
        write_json(json_file, found.to_json())


def tune(
    target: Annotated[
        str, typer.Argument(metavar="APP.PY:FLOW", help="A Flow, or a function (spark) -> Flow.")
    ],
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
    latency_s: Annotated[
        float | None, typer.Option(min=1e-3, help="Mean latency of a row to stay within.")
    ] = None,
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
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the result there too ('-': stdout).")
    ] = None,
) -> None:
    """Run a flow for a few epochs, its sinks muted, and say what to set.

    Nothing is written to its sinks, and its checkpoint is not touched unless --checkpoint names it.
    """
    from headgate.runtime.calibration import calibrate as measure
    from headgate.runtime.calibration import cores_of
    from headgate.runtime.connectors import takes_rows
    from headgate.runtime.tune_probe import probe_flow
    from headgate.topology.arguments import absolute

    with plain_errors():
        console = speaker(json_file)
        settings = spark_settings(conf, master)
        calibration = None if costs is None else read_calibration(costs)
        found = load_target(target)
        with session(console, f"headgate tune {target}", settings, what="probe") as spark:
            flow = flow_of(found, spark)
            if calibration is None:
                with _at_work(console, "probing the engine") as say:
                    calibration = measure(spark, say=say)
            _warn(console, doubt(calibration))
            with console.status(f"[dim]running {flow.name}, its sinks muted[/]"):
                measured, epochs_measured = probe_flow(
                    flow,
                    spark,
                    calibration,
                    slots=slots or cores_of(spark),
                    epochs=epochs,
                    wait_s=wait_s,
                    say=lambda line: console.print(Text(line, style="dim")),
                )
        largest = max(epoch.rows for epoch in epochs_measured)
        tuned = choose(measured.model, rate, latency_s, max_slots, rows_max, largest)
        place = out or kept_in(flow.name)
        takes = takes_rows(flow.graph())
        goes_on = _goes_on(checkpoint, out is None, latency_s, max_slots)
        print_tuning(console, Answer(target, measured, tuned, takes, goes_on))
        saved = SavedTuning(calibration, tuned)
        write_json(place, saved.to_json())
        console.print(f"[dim]kept in {safe(place)}[/]")
        if checkpoint is not None:
            save_tuning(Storage.at(absolute(checkpoint)), saved)
            console.print(f"[dim]and in {safe(checkpoint)}, where flow.start finds it[/]")
        write_json(json_file, saved.to_json())


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
) -> TunedEpochs:
    """What the optimizer says, of epochs that are not far from those that were measured."""
    free = tune_epochs(model, rate=rate, latency_s=latency_s, slots_max=max_slots)
    bound = min(rows_max or GROWTH * largest, GROWTH * largest)
    if free.settings.rows_per_epoch <= bound:
        return free
    tuned = tune_epochs(model, rate=rate, latency_s=latency_s, slots_max=max_slots, rows_max=bound)
    met = met_bound(tuned, free, rows_max, largest)
    return replace(tuned, why=(*tuned.why, met) if met else tuned.why)


def _goes_on(
    checkpoint: str | None, kept: bool, latency_s: float | None, max_slots: int | None
) -> str | None:
    """Words for `headgate run` that begin with this result; None if it would not find it."""
    if checkpoint is None and not kept:
        return None
    words = [] if latency_s is None else [f"--latency-s {latency_s:g}"]
    words += [] if max_slots is None else [f"--max-slots {max_slots}"]
    words += [] if checkpoint is None else [f"--checkpoint {checkpoint}"]
    return " ".join(words)


@contextmanager
def _at_work(console: Console, what: str) -> Iterator[Callable[[str], None]]:
    """A spinner that shows what is said last; in a pipe every word is a line."""
    with console.status(f"[dim]{what}[/]") as status:

        def say(line: str) -> None:
            if console.is_terminal:
                status.update(f"[dim]{what}, {line}[/]")
            else:
                console.print(Text(line, style="dim"))

        yield say


def _warn(console: Console, said: str | None) -> None:
    if said is not None:
        console.print(Text(said, style="yellow"))
