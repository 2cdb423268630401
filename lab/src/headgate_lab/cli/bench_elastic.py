"""`headgate-lab bench elastic`: slots and executors that come and go under load."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headgate.cli.console import plain_errors, speaker
from headgate_lab.cli.bench_list import tell_elastic


def elastic(
    own_cpus: Annotated[
        bool, typer.Option(help="Once more with a share of the processor for each host (cgroups).")
    ] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write all figures there ('-': stdout).")
    ] = None,
    quick: Annotated[bool, typer.Option(help="Small and short, to see that it works.")] = False,
) -> None:
    """2 -> 4 -> 2 slots under load, embedded and on a cluster whose executors come and go."""
    from headgate_lab.bench.elastic import QUICK, ElasticOptions, run_elastic

    with plain_errors():
        console = speaker(json_file)
        options = QUICK if quick else ElasticOptions()
        found = run_elastic(options, console.print, own_cpus=own_cpus)
        tell_elastic(found, json_file, console)
