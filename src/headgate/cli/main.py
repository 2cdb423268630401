"""The `headgate` command."""

from __future__ import annotations

from typing import Annotated

import typer

import headgate
from headgate.cli.demo import demo
from headgate.cli.examples import EXAMPLES, START, Command, Group, epilog_of
from headgate.cli.inspect import inspect
from headgate.cli.offline import analyze, replay, report
from headgate.cli.run import run
from headgate.cli.tune import calibrate, tune

_EPILOG = f"""
{epilog_of("Start here", START)}

The tutorial makes an `app.py`. Benchmarks, papers' experiments and the protocol simulator are
`headgate-lab`.
"""

app = typer.Typer(
    name="headgate",
    cls=Group,
    help="Stateful streaming on Apache Spark, in vectorised Python.",
    epilog=_EPILOG,
    rich_markup_mode="markdown",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"headgate {headgate.__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Stateful streaming on Apache Spark, in vectorised Python."""


def _moved(context: typer.Context) -> None:
    name = context.info_name
    typer.echo(
        f"`headgate {name}` is now `headgate-lab {name}`, a distribution of its own: "
        "pip install headgate-lab",
        err=True,
    )
    raise typer.Exit(2)


for command in (demo, run, analyze, inspect, replay, report, calibrate, tune):
    examples = epilog_of("Examples", EXAMPLES[command.__name__])
    app.command(cls=Command, epilog=examples)(command)

# Commands that went to the laboratory say so, whatever they are given, --help included.
_ANYTHING = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
for name in ("bench", "simulate"):
    app.command(name, hidden=True, context_settings=_ANYTHING)(_moved)
