"""What `headgate calibrate` and `headgate tune` found, in words: a table, reasons, ways to use it.

Sentences are functions of what was measured and chosen; only the two that begin with `print` print.
"""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from headgate.cli.console import counted, safe
from headgate.control.measured_flow import Measured
from headgate.control.tuner import GROWTH
from headgate.planner.tuning.cost_model import Calibration, Step
from headgate.planner.tuning.epochs import TunedEpochs

ERROR_MAX = 0.15  # costs that miss half of their own probes by more than this are not to be trusted
MOSTLY_FIXED = 0.5  # share of an epoch's time that no row needs


@dataclass(frozen=True)
class Answer:
    """What `headgate tune` found out about a flow.

    Args:
        target: The flow, as the user named it.
        takes_rows: Its sources take a number of rows.
        goes_on: Words for `headgate run` with which it begins with this answer, if it does.
    """

    target: str
    measured: Measured
    tuned: TunedEpochs
    takes_rows: bool
    goes_on: str | None


def print_costs(console: Console, found: Calibration) -> None:
    costs = found.costs
    table = Table(title=found.engine, title_justify="left", show_header=False)
    table.add_row("n: a message (batch tuple)", f"{costs.message_s * 1e6:,.1f} µs")
    table.add_row("s: a byte", f"{costs.byte_s * 1e9:,.2f} ns")
    table.add_row("a task, of all cores", f"{costs.task_s * 1e3:,.1f} ms")
    table.add_row("a level", f"{costs.level_s * 1e3:,.1f} ms")
    table.add_row("an epoch's job", f"{costs.epoch_s * 1e3:,.1f} ms")
    table.add_row("probes explained to", f"{found.error:.0%} (median)")
    console.print(table)


def doubt(found: Calibration) -> str | None:
    """What to do about costs that explain their own probes badly."""
    if found.error <= ERROR_MAX:
        return None
    return (
        f"these costs miss half of their probes by more than {found.error:.0%}: the machine was "
        "busy, or probes were small. Run headgate calibrate again when it is idle, without --quick"
    )


def print_tuning(console: Console, answer: Answer) -> None:
    measured, tuned = answer.measured, answer.tuned
    console.print(_operators(measured, tuned))
    settings, predicted = tuned.settings, tuned.prediction
    chosen = f"{counted(settings.slots, 'slot')}, {settings.rows_per_epoch:,} rows per epoch"
    console.print(
        f"\n[bold]{chosen}[/]: predicted {predicted.rows_per_s:,.0f} rows/s, epochs of "
        f"{predicted.epoch_s:.2f} s ({predicted.fixed_s:.2f} s fixed), rows done after "
        f"{predicted.latency_s:.2f} s on average. The probe: {measured.rows_per_s:,.0f} rows/s.\n"
    )
    console.print(f"[bold]Bottleneck:[/] {safe(bottleneck(measured, tuned))}")
    console.print("[bold]Why:[/]")
    reasons = Table.grid(padding=(0, 1))
    for reason in [*tuned.why, *assumptions(measured)]:
        reasons.add_row(" -", Text(reason))
    console.print(reasons)
    console.print("[bold]Use it:[/]")
    for line in ways(answer):
        console.print(Text(f"  {line}"), soft_wrap=True)


def bottleneck(measured: Measured, tuned: TunedEpochs) -> str:
    """The operator that takes most, where it runs, and what would help."""
    name, model, predicted = tuned.bottleneck, measured.model, tuned.prediction
    said = f"{name}, with {tuned.work_share.get(name, 0.0):.0%} of the work per row, in "
    said += f"{instances(measured, tuned, name)} on {counted(model.cores, 'core')}. "
    if name in model.at_source and model.source_tasks < model.cores:
        said += "Slots are no help to it; more partitions of the source would be."
    elif name in model.at_source:
        said += "Slots are no help to it; more cores, or less work per row, would be."
    elif tuned.settings.slots < model.cores:
        said += "More slots would not pay for what they cost, as the reasons say."
    else:
        said += "All cores have a slot; more of both, or less work per row, would help."
    fixed = predicted.fixed_s / predicted.epoch_s if predicted.epoch_s > 0 else 0.0
    if fixed > MOSTLY_FIXED:
        said += f" But {fixed:.0%} of an epoch's time is not for rows: larger epochs share it."
    return said


def instances(measured: Measured, tuned: TunedEpochs, name: str) -> str:
    """An operator has one in every slot; what comes before the first exchange, in source tasks."""
    if name in measured.model.at_source:
        return counted(measured.model.source_tasks, "source task")
    return counted(tuned.settings.slots, "slot")


def assumptions(measured: Measured) -> list[str]:
    if measured.sizes_differ:
        return []
    return [
        "epochs of the probe had about one size: what they cost without rows is the calibration's, "
        "and what operators take without rows counts as theirs per row"
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


def ways(answer: Answer) -> list[str]:
    """Lines to copy: settings by number, and settings that go on from there."""
    settings = answer.tuned.settings
    rows = settings.rows_per_epoch
    python, flags = f"slots={settings.slots}", f"--slots {settings.slots}"
    if answer.takes_rows:
        python += f", rows_per_epoch={rows:_}"
        flags += f" --rows-per-epoch {rows}"
    lines = [
        f'flow.start(spark, {python}, checkpoint="...")',
        f"headgate run {answer.target} {flags}",
    ]
    if not answer.takes_rows:
        lines.append(
            f"and set the limit of its source to some {rows:,} rows (maxOffsetsPerTrigger, "
            "maxFilesPerTrigger): it takes no number of rows, a headgate.Reader does"
        )
    if answer.goes_on is not None:
        lines.append("or begin with that, and let it change with what is measured:")
        lines.append(f"headgate run {answer.target} {answer.goes_on}".rstrip())
    return lines


def _operators(measured: Measured, tuned: TunedEpochs) -> Table:
    table = Table(title=f"measured over {counted(measured.epochs, 'epoch')}", title_justify="left")
    table.add_column("operator")
    for name in ("instances", "µs a row", "of all work", "predicted rows/s", "rows per batch"):
        table.add_column(name, justify="right")
    for step in measured.model.flow.steps:
        table.add_row(
            Text(step.name, style="bold" if step.name == tuned.bottleneck else ""),
            instances(measured, tuned, step.name),
            f"{step.ppt_s * 1e6:,.2f}",
            f"{tuned.work_share.get(step.name, 0.0):.0%}",
            f"{tuned.rates.get(step.name, 0.0):,.0f}",
            batches(measured, tuned, step),
        )
    return table


def batches(measured: Measured, tuned: TunedEpochs, step: Step) -> str:
    """Rows of the batches that it sends; a stream without batches is passed on in memory."""
    sizes = [tuned.settings.batch_rows.get(s.name) for s in measured.model.flow.outputs[step.name]]
    known = [f"{rows:,}" for rows in sorted({rows for rows in sizes if rows is not None})]
    return ", ".join([*known, *(["in memory"] if None in sizes else [])]) or "-"
