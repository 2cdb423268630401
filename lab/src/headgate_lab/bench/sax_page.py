"""Tables I and II and the numbers of Figures 3 and 5 as Markdown, the paper's beside ours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

TITLES = {"linear-road": "Linear Road (Table I)", "sentiment": "Sentiment analysis (Table II)"}
CONFIGURATIONS = ("optimized", "not_optimized", "no_batching", "only_batching")

WHAT_DIFFERS = """\
What differs, and why:

- **ppt.** The paper's steps take a tuple at a time, ours take columns: a row costs a fraction of a
  microsecond in Linear Road where the paper's parse takes some 18. Equation 4 is ppt x rate, so
  where ppt is so small one instance is enough. In sentiment analysis the step that asks for the
  language of a text, one text at a time, is our bottleneck as `filter` is the paper's.
- **n and B_max.** A message costs what it takes Python, Arrow and Spark's shuffle to make one, and
  may have 8 MB; Storm's has 64 kB. Equation 2 asks for batches only where a row would be shipped
  slower than the next one comes.
- **The spout.** The paper reads a file as fast as one task can, and slows it down for sentiment
  analysis; ours is what two source tasks bring.
- **On Spark** nothing leaves a task before its level is over. A batch smaller than what fits makes
  no row earlier, so batches are large, and rows per epoch take the place of the batch. Shuffles
  between the steps of sentiment analysis are left out, so all of them live in the same slots.
- **Latency of an operator** (Figure 5). Storm acknowledges a batch when all its rows are done. Our
  operators get all rows of a slot and level in one call, with batches and without, so what an
  operator takes follows the rows per epoch."""


def page(found: dict[str, Any]) -> str:
    """One section for each flow, then what differs."""
    parts = []
    for name, told in found["flows"].items():
        parts += [
            f"**{TITLES[name]}**",
            steps_table(told),
            _inputs(told),
            uptime_table(told),
            latency_table(told),
            "\n".join(f"- The paper, {where}: {text}." for where, text in _text(told)),
        ]
    return "\n\n".join([*parts, WHAT_DIFFERS])


def steps_table(told: dict[str, Any]) -> str:
    """Step by step: instances and batch rows of the paper, of Algorithm 1, and on Spark."""
    printed, ours, spark = (
        told["paper"]["tables"],
        told["tables"]["algorithm_1"],
        told["tables"]["on_spark"],
    )
    head = ["step", "ppt, us", "Algorithm 1: instances", "batch rows", "on Spark: instances"]
    for table in printed:
        head += [f"paper ({table['what']}): instances", "batch rows"]
    rows = []
    for step in printed[0]["dop"]:
        row = [
            step,
            f"{told['inputs']['ppt_us'].get(step, 0.0):.3g}",
            _count(ours["dop"].get(step)),
            _count(ours["batch_rows"].get(step)),
            _count(spark["dop"].get(step)),
        ]
        for table in printed:
            row += [_count(table["dop"][step]), _count(table["batch_rows"][step])]
        rows.append(row)
    return markdown(head, rows)


def uptime_table(told: dict[str, Any]) -> str:
    """Figure 3: seconds for the data set, and rows per second on Spark and simulated."""
    figures = told["figures"]
    rows = [
        [
            name.replace("_", " "),
            f"{figures['uptime_s'][name]:,.1f}",
            f"{figures['rows'] / figures['uptime_s'][name]:,.0f}",
            f"{figures['simulated_rows_per_s'][name]:,.0f}",
        ]
        for name in CONFIGURATIONS
    ]
    head = [f"{figures['rows']:,} rows", "seconds", "rows/s", "paper's cluster, simulated: rows/s"]
    return markdown(head, rows)


def latency_table(told: dict[str, Any]) -> str:
    """Figure 5: what an operator takes for what it gets at once."""
    latency = told["figures"]["processing_latency_ms"]
    operators = list(next(iter(latency.values())))
    rows = [
        [name.replace("_", " "), *(f"{latency[name][op]:,.1f}" for op in operators)]
        for name in CONFIGURATIONS
    ]
    return markdown(["processing latency, ms", *operators], rows)


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """The first column to the left, the others to the right."""
    lines = ["| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def _inputs(told: dict[str, Any]) -> str:
    inputs, chosen = told["inputs"], told["tables"]["on_spark"]
    return (
        f"Measured: n = {inputs['message_us']:.3g} us, s = {inputs['byte_ns']:.3g} ns, "
        f"{inputs['spout_rows_per_s']:,.0f} rows/s from {inputs['spout_dop']} source tasks. "
        f"On Spark {chosen['slots']} slots, {chosen['rows_per_epoch']:,} rows per epoch, batches "
        f"of {_batches(chosen['batch_rows'])}."
    )


def _batches(batch_rows: Any) -> str:
    if isinstance(batch_rows, dict) and batch_rows:
        least, most = min(batch_rows.values()), max(batch_rows.values())
        return f"{least:,} rows" if least == most else f"{least:,} to {most:,} rows"
    return "all rows that fit" if not batch_rows else f"{batch_rows:,} rows"


def _text(told: dict[str, Any]) -> list[tuple[str, str]]:
    return sorted(told["paper"]["text"].items())


def _count(number: int | None) -> str:
    return "" if number is None else f"{number:,}"
