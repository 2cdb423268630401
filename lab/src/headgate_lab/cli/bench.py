"""`headgate-lab bench NAME`: benchmarks that run on this machine.

To add one, put a function `(json file or None, quick, console)` into `bench_list`; its docstring is
the help text. Import what it needs inside the function, so that other commands start fast.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from headgate.cli.console import plain_errors, speaker
from headgate_lab.cli.bench_elastic import elastic
from headgate_lab.cli.bench_jobs import albic, balance
from headgate_lab.cli.bench_list import ALL
from headgate_lab.cli.bench_regression import regression
from headgate_lab.cli.bench_tune import predict, tune

Bench = Callable[[Path | None, bool, Console], None]

BENCHES: dict[str, Bench] = dict(ALL)
OWN_OPTIONS: dict[str, Callable[..., None]] = {
    "tune": tune,
    "predict": predict,
    "elastic": elastic,
    "balance": balance,
    "albic": albic,
    "regression": regression,
}


def bench_app(
    benches: dict[str, Bench], own_options: dict[str, Callable[..., None]] | None = None
) -> typer.Typer:
    """A command for every bench, with the options that all share or with options of its own."""
    app = typer.Typer(help="Measure headgate against others on this machine.")

    @app.callback(invoke_without_command=True)
    def list_benches(context: typer.Context) -> None:
        if context.invoked_subcommand is None:
            known = ", ".join([*benches, *(own_options or {})]) or "none yet"
            typer.echo(
                f"benches: {known}. Run one with: headgate-lab bench NAME [--quick] [--json FILE]"
            )

    for name, bench in benches.items():
        app.command(name, help=bench.__doc__)(_command(bench))
    for name, command in (own_options or {}).items():
        app.command(name, help=command.__doc__)(command)
    return app


def _command(bench: Bench) -> Callable[..., None]:
    def command(
        json_file: Annotated[
            Path | None, typer.Option("--json", help="Write all figures there ('-': stdout).")
        ] = None,
        quick: Annotated[bool, typer.Option(help="Small and short, to see that it works.")] = False,
    ) -> None:
        with plain_errors():
            bench(json_file, quick, speaker(json_file))

    return command
