"""`headgate-lab bench tune`: the paper's two flows, four configurations each, and a grid search."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from headgate.cli.console import plain_errors, speaker
from headgate_lab.cli.bench_list import tell_tune


def tune(
    flow: Annotated[
        Literal["linear-road", "sentiment"], typer.Option(help="Which flow of the paper to run.")
    ] = "linear-road",
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write all figures there ('-': stdout).")
    ] = None,
    quick: Annotated[bool, typer.Option(help="Small and short, to see that it works.")] = False,
) -> None:
    """Batch size and parallelism: optimized, not, and each alone (Sax et al. 2013)."""
    from headgate_lab.bench.tune import options_for, run_tune

    with plain_errors():
        console = speaker(json_file)
        found = run_tune(options_for(flow, quick=quick), console.print)
        tell_tune(found, json_file, console)
