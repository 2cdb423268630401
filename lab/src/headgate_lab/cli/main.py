"""The `headgate-lab` command."""

from __future__ import annotations

from typing import Annotated

import typer

import headgate_lab
from headgate_lab.cli.bench import BENCHES, OWN_OPTIONS, bench_app
from headgate_lab.cli.nexmark import nexmark
from headgate_lab.cli.papers import papers_app
from headgate_lab.cli.simulate import simulate

_EPILOG = """
**Start here**

`headgate-lab bench chain --quick` : two chained counts against PySpark, Bytewax, Pathway and NumPy

`headgate-lab bench` : all benches

`headgate-lab nexmark --quick` : the 24 queries of Nexmark, checked and timed

`headgate-lab papers sax` : tables and figures of a paper from measured inputs

`headgate-lab simulate --seeds 1000` : the reconfiguration protocol under seeded failures
"""

app = typer.Typer(
    name="headgate-lab",
    help="Headgate's laboratory: benchmarks, papers' experiments, a protocol simulator.",
    epilog=_EPILOG,
    rich_markup_mode="markdown",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"headgate-lab {headgate_lab.__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Headgate's laboratory: benchmarks, papers' experiments, a protocol simulator."""


app.command()(simulate)
app.command()(nexmark)
app.add_typer(bench_app(BENCHES, OWN_OPTIONS), name="bench")
app.add_typer(papers_app, name="papers")
