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
    only: Annotated[
        list[str] | None, typer.Option(help="A path, as wide_4kb, and no others (repeatable).")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write all figures there ('-': stdout).")
    ] = None,
    quick: Annotated[bool, typer.Option(help="Small and short, to see that it works.")] = False,
) -> None:
    """Hot paths of this tree against an earlier one, in less than five minutes."""
    from headgate_lab.bench.regression import (
        PATHS,
        QUICK,
        RegressionOptions,
        run_regression,
    )

    if unknown := sorted(set(only or ()) - set(PATHS)):
        raise typer.BadParameter(f"no path {unknown[0]!r}; there are {', '.join(PATHS)}")
    with plain_errors():
        console = speaker(json_file)
        options = replace(
            QUICK if quick else RegressionOptions(), base=base, paths=tuple(only or PATHS)
        )
        found = run_regression(options, console.print)
        rows = {
            path: {
                "base, ms": ms["base"],
                "this, ms": ms["this"],
                "base / this": found["base_over_this"][path],
                "by CPU time": found["base_over_this_cpu"][path],
            }
            for path, ms in found["ms"].items()
        }
        if rows:
            title = f"milliseconds per epoch, this tree and {found['base']}"
            show_grid(console, title, rows, "{:,.2f}")
        save(found, json_file, console)
