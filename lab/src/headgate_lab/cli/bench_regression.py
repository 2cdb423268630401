"""`headgate-lab bench regression`: this tree against the last tag."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from headgate.cli.console import plain_errors, speaker
from headgate_lab.cli.showing import save, show_grid


def regression(
    base: Annotated[
        str | None, typer.Option(help="A tag or commit to compare with (default: the last tag).")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write all figures there ('-': stdout).")
    ] = None,
    quick: Annotated[bool, typer.Option(help="Small and short, to see that it works.")] = False,
) -> None:
    """Hot paths of this tree against an earlier one, in less than five minutes."""
    from headgate_lab.bench.regression import QUICK, RegressionOptions, run_regression

    with plain_errors():
        console = speaker(json_file)
        options = replace(QUICK if quick else RegressionOptions(), base=base)
        found = run_regression(options, console.print)
        rows = {
            path: {"base, ms": ms["base"], "this, ms": ms["this"], "base / this": ratio}
            for (path, ms), ratio in zip(
                found["ms"].items(), found["base_over_this"].values(), strict=True
            )
        }
        if rows:
            title = f"milliseconds per epoch, this tree and {found['base']}"
            show_grid(console, title, rows, "{:,.2f}")
        save(found, json_file, console)
