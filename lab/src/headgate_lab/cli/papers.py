"""`headgate-lab papers NAME`: a paper's tables and figures, made again from what is measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headgate.cli.console import plain_errors, speaker
from headgate_lab.cli.bench_tune import JsonFile, Quick
from headgate_lab.cli.showing import save

papers_app = typer.Typer(help="Make a paper's tables and figures again.", no_args_is_help=True)


@papers_app.callback()
def papers() -> None:
    """Make a paper's tables and figures again."""


@papers_app.command()
def sax(
    page_file: Annotated[
        Path | None, typer.Option("--page", help="Write the tables there, as Markdown.")
    ] = None,
    json_file: JsonFile = None,
    quick: Quick = False,
) -> None:
    """Sax et al. 2013: Tables I and II, Figures 3 to 6, from inputs measured on Spark."""
    from headgate_lab.bench.sax import QUICK, SaxOptions, run_sax
    from headgate_lab.bench.sax_page import page

    with plain_errors():
        console = speaker(json_file)
        found = run_sax(QUICK if quick else SaxOptions(), console.print)
        text = page(found)
        console.print(text, markup=False, soft_wrap=True)
        if page_file is not None:
            page_file.write_text(text + "\n")
        save(found, json_file, console)
