"""Commands that went to the laboratory: they say so, whatever they are given."""

from __future__ import annotations

import typer

MOVED = ("bench", "simulate")


def add_moved(app: typer.Typer) -> None:
    """Names that worked once still answer, with where to find them; not listed in the help."""
    anything = {
        "allow_extra_args": True,
        "ignore_unknown_options": True,
        "help_option_names": [],  # --help, too, is told where to go
    }
    for name in MOVED:
        app.command(name, hidden=True, context_settings=anything)(_says_where)


def _says_where(context: typer.Context) -> None:
    name = context.info_name
    typer.echo(
        f"`headgate {name}` is now `headgate-lab {name}`, a distribution of its own: "
        "pip install headgate-lab",
        err=True,
    )
    raise typer.Exit(2)
