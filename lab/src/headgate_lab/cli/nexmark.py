"""`headgate-lab nexmark`: the 24 queries against DuckDB, native Spark and Flink."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from headgate.cli.console import STDOUT, plain_errors, speaker, write_json
from headgate_lab.cli.bench_tune import JsonFile, Quick
from headgate_lab.cli.showing import save


def nexmark(
    queries: Annotated[
        str, typer.Option(help="Such as q5,q11; 'all' for all that are there.")
    ] = "all",
    events: Annotated[
        int | None,
        typer.Option(
            min=1_000, help="How many events to draw; 1,000,000, or 200,000 with --placed."
        ),
    ] = None,
    persistent: Annotated[
        bool, typer.Option("--persistent", help="Nexmark-S: what is hot stays hot.")
    ] = False,
    rounds: Annotated[int, typer.Option(min=1, help="Runs of each contestant.")] = 3,
    placed: Annotated[
        bool,
        typer.Option("--placed", help="q4, q6, q9 on a cluster of namespaces: bytes sent."),
    ] = False,
    rivals: Annotated[str, typer.Option(help="Peers to run; '' for none.")] = (
        "native,flink,bytewax,pathway"
    ),
    minutes: Annotated[
        float | None,
        typer.Option(min=0, help="End in about so many minutes, with fewer rounds if need be."),
    ] = None,
    longest: Annotated[
        float, typer.Option(min=1, help="Seconds after which a single run is given up.")
    ] = 180.0,
    json_file: JsonFile = None,
    quick: Quick = False,
) -> None:
    """Nexmark: every query checked row for row, then timed against native Spark and Flink SQL."""
    from headgate_lab.nexmark.bench import NexmarkOptions, run_nexmark
    from headgate_lab.nexmark.placed import PlacedOptions
    from headgate_lab.nexmark.queries import QUERIES

    with plain_errors():
        console = speaker(json_file)
        if placed:
            _placed(console, json_file, quick, events or PlacedOptions.events)
            return
        events = events or NexmarkOptions.events
        names = tuple(_split(queries))
        if names in ((), ("all",)):
            names = tuple(QUERIES)
        for name in names:
            if name not in QUERIES:
                raise typer.BadParameter(f"no query {name!r}; there are {', '.join(QUERIES)}")
        options = NexmarkOptions(
            queries=names,
            events=20_000 if quick else events,
            events_per_second=(20_000 if quick else events) / 100,
            persistent=persistent,
            rounds=1 if quick else rounds,
            rivals=tuple(_split(rivals)),
            minutes=minutes,
            longest_s=longest,
        )

        def keep(so_far: dict[str, Any]) -> None:
            if json_file is not None and json_file != STDOUT:
                part = json_file.with_name(json_file.name + ".part")
                write_json(part, so_far)
                part.replace(json_file)  # whoever ends this leaves whole figures behind

        found = run_nexmark(
            options, lambda line: console.print(line, markup=False, soft_wrap=True), keep
        )
        _show(console, found)
        save(found, json_file, console)


def _placed(console: Console, json_file: Path | None, quick: bool, events: int) -> None:
    from headgate_lab.nexmark.placed import PlacedOptions, run_placed

    options = PlacedOptions(events=20_000, epochs=3) if quick else PlacedOptions(events=events)
    found = run_placed(options, lambda line: console.print(line, markup=False))
    table = Table(title="bytes over the network", title_justify="left")
    ways = ("hash", "tables", "near")
    for column in ("query", "what", *ways, "tables/hash", "near/hash"):
        table.add_column(column, justify="left" if column in ("query", "what") else "right")
    for name, ran in found["queries"].items():
        for what in ran["near_over_hash"]:
            told = [f"{ran[way][what]:,}" for way in ways]
            ratios = [ran[f"{way}_over_hash"][what] for way in ways[1:]]
            shown = ["–" if ratio is None else f"{ratio:.2f}" for ratio in ratios]
            table.add_row(name, what.replace("_", " "), *told, *shown)
    console.print(table)
    save(found, json_file, console)


def _split(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]


def _show(console: Console, found: dict[str, Any]) -> None:
    table = Table(title="rows per second (median of rounds)", title_justify="left")
    for column in ("query", "right", "headgate", "Spark", "Flink", "p95", "lines"):
        table.add_column(column, justify="left" if column == "query" else "right")
    for name, told in found["queries"].items():
        rates = [told[f"{who}rows_per_s"] for who in ("", "native_", "flink_")]
        latency = told["p95_latency_s"]
        table.add_row(
            name,
            "yes" if told["right"] else "NO",
            *("–" if rate is None else f"{rate:,.0f}" for rate in rates),
            "–" if latency is None else f"{latency:.2f} s",
            str(told["lines"]),
        )
    console.print(table)
    for name, mean in found["geometric_means"].items():
        if mean is not None:
            least, ratio = next(iter(mean["least"].items()))
            console.print(
                f"{name.replace('_', ' ')}: {mean['mean']:.2f} (geometric mean of "
                f"{mean['queries']}; least {ratio:.2f}, {least})"
            )
