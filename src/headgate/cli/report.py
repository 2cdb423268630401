"""`headgate report`: a journal as one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headgate.cli.console import told_plainly


def report(
    checkpoint: Annotated[str, typer.Argument(help="Folder or URI given as checkpoint=.")],
    out: Annotated[Path, typer.Option(help="The HTML file to write.")] = Path(
        "headgate-report.html"
    ),
    title: Annotated[str | None, typer.Option(help="Heading. [default: the flow's name]")] = None,
) -> None:
    """Draw a flow's journal as one self-contained HTML file; works beside a running flow."""
    from headgate.offline.report import write_report

    with told_plainly():
        typer.echo(str(write_report(checkpoint, out, title=title)))
