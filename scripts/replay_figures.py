"""Measure the planners on the recorded streams and put the figures into the docs.

Replays every stream with every planner and seed, writes the medians and the raw runs to
docs/figures/replay.json, and fills the tables of docs/decisions/0011. Some twenty minutes.

    python scripts/replay_figures.py --data ../shared/data      # measure, then write the tables
    python scripts/replay_figures.py --short                    # the five main streams only
    python scripts/replay_figures.py --only nvd --only hubs     # these, the others stay as they are
    python scripts/replay_figures.py --planner headgate --planner strict       # likewise
    python scripts/replay_figures.py --tables                   # only write the tables again
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from headgate.demo import Machine
from headgate.offline.replay import replay
from headgate.offline.replay_owners import Trace, read_trace
from headgate.offline.replay_planners import ReplayOptions
from headgate.planner.incremental import IncrementalSettings

ROOT = Path(__file__).resolve().parent.parent
FIGURES = ROOT / "docs" / "figures" / "replay.json"
PAGE = ROOT / "docs" / "decisions" / "0011-tables-and-planning.md"
SEEDS = (1, 2, 3)


@dataclass(frozen=True)
class Stream:
    name: str
    file: str
    keys: tuple[str, ...]
    window: int
    period: int
    reach: float | None = None
    limit: float | None = None
    stretch: float | None = None


CONGRESS = "congress_state_hashtag_2017_2023.parquet"
HOME = "homeassistant_commits_contributor_component_2013_2026.parquet"
NVD = "nvd_product_weakness_1996_2022.parquet"
TATE = "tate_region_tag_pairs.parquet"
FLIGHTS = "us_flights_2008_jan_apr.parquet"
HUBS = "us_flights_hubs_2011_2013_2014.parquet"
WIKI = "wikipedia_edits_2015_09_12.parquet"
CHOSEN_ON = (
    Stream("congress", CONGRESS, ("state", "hashtag"), 60_000, 30_000, 0.51, 1.12, 0.56),
    Stream("homeassistant", HOME, ("contributor", "component"), 10_000, 2_500, 0.53, 1.32, 0.60),
    Stream("nvd", NVD, ("vendor", "cwe"), 20_000, 5_000, 0.33, 1.42, 0.43),
    Stream("tate", TATE, ("region", "tag"), 20_000, 5_000, 0.385, 1.10, 0.43),
    Stream("flights", FLIGHTS, ("tail", "dest"), 60_000, 30_000, 0.555, 1.08, 0.60),
)
HELD_OUT = (
    Stream("nvd products", NVD, ("product", "cwe"), 20_000, 5_000),
    Stream("flights routes", FLIGHTS, ("origin", "dest"), 60_000, 30_000),
    Stream("hubs", HUBS, ("tail", "dest"), 60_000, 30_000),
    Stream("wikipedia", WIKI, ("wiki", "page"), 4_000, 2_000),
    Stream("congress parties", CONGRESS, ("party", "hashtag"), 60_000, 30_000),
    Stream("chain of three", CONGRESS, ("state", "hashtag", "party"), 60_000, 30_000),
)
PLANNERS = ("hash", "offline", "online", "online-kway", "headgate", "strict", "oracle")
VARIANTS: dict[str, dict[str, Any]] = {
    "as above": {},
    "16 slots": {"slots": 16},
    "3 slots": {"slots": 3},
    "epochs of 2,000": {"epoch": 2_000},
    "20,000 entries": {"keys_max": 20_000},
}
FIELDS = (
    "locality imbalance imbalance_epoch imbalance_floor moves_per_period adoptions_per_period "
    "merge_rows_per_row plan_seconds_max initial_moves"
).split()


def measure(trace: Trace, options: ReplayOptions, seeds: tuple[int, ...]) -> dict[str, Any]:
    """Medians over the seeds, and every seed's figures."""
    runs = []
    for seed in seeds:
        started = time.perf_counter()
        found = replay(trace, replace(options, seed=seed))
        runs.append({"seed": seed} | {name: found[name] for name in FIELDS})
        runs[-1]["seconds"] = time.perf_counter() - started
    medians = {name: np.median([run[name] for run in runs], axis=0).tolist() for name in FIELDS}
    return medians | {"periods": found["periods"], "runs": runs}


def all_figures(
    data: Path, names: tuple[str, ...], short: bool, only: list[str] | None, keep: bool
) -> dict[str, Any]:
    """Figures of these planners; `keep` leaves all that is not measured as it was."""
    before: dict[str, Any] = json.loads(FIGURES.read_text()) if keep else {}
    streams: dict[str, Any] = before.get("streams", {})
    variants: dict[str, Any] = before.get("variants", {})
    for stream in CHOSEN_ON if short else CHOSEN_ON + HELD_OUT:
        if only and stream.name not in only:
            continue
        trace = read_trace(data / stream.file, stream.keys)
        base = ReplayOptions("online", stream.window, stream.period)
        found = streams.setdefault(stream.name, {}) if keep else {}
        streams[stream.name] = found | {"stream": asdict(stream)}
        found = streams[stream.name]
        for name in names:
            if name == "oracle" and stream in HELD_OUT:
                continue
            planner = "headgate" if name == "strict" else name
            options = replace(base, planner=planner, strict=name == "strict")
            seeds = SEEDS if name in ("online", "headgate") or not short else SEEDS[:1]
            found[name] = measure(trace, options, seeds)
            print(stream.name, name, round(found[name]["locality"], 4), flush=True)
        if stream in CHOSEN_ON and not short:
            for variant, change in VARIANTS.items():
                pair = variants.setdefault(variant, {}).setdefault(stream.name, {})
                for planner in set(names) & {"online", "headgate"}:
                    options = replace(base, planner=planner, **change)
                    pair[planner] = measure(trace, options, SEEDS[:1])
    return {
        "streams": streams,
        "variants": variants,
        "settings": IncrementalSettings()._asdict(),
        "seeds": list(SEEDS),
        "machine": asdict(Machine.here()),
    }


# --- tables ------------------------------------------------------------------------------------
def table(head: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def share(value: float) -> str:
    return f"{value:.3f}".lstrip("0") if value < 1 else f"{value:.2f}"


def slashed(values: list[float]) -> str:
    return "/".join(f"{value:.2f}" for value in values)


def both(one: dict[str, Any]) -> str:
    return f"{share(one['locality'])}, {slashed(one['imbalance'])}"


def mark(ours: list[float], theirs: list[float]) -> str:
    """Our per-epoch imbalance, bold where it is worse than theirs in any key."""
    worse = any(round(a, 3) > round(b, 3) for a, b in zip(ours, theirs, strict=True))
    text = "/".join(f"{value:.3f}" for value in ours)
    return f"**{text}**" if worse else text


def reached(found: dict[str, Any]) -> str:
    rows = []
    for stream in CHOSEN_ON:
        them, ours = (
            found["streams"][stream.name]["online"],
            found["streams"][stream.name]["headgate"],
        )
        fewer = them["moves_per_period"] / max(1.0, ours["moves_per_period"])
        rows.append(
            [
                stream.name,
                f"{share(them['locality'])}, {slashed(them['imbalance'])}",
                f"{stream.reach} / {stream.stretch}",
                f"**{share(ours['locality'])}**",
                f"{stream.limit}",
                slashed(ours["imbalance"]),
                slashed(ours["imbalance_floor"]),
                "/".join(f"{v:.3f}" for v in them["imbalance_epoch"]),
                mark(ours["imbalance_epoch"], them["imbalance_epoch"]),
                f"{them['moves_per_period']:,.0f} / {ours['moves_per_period']:,.0f} = {fewer:.1f}x",
                f"{ours['adoptions_per_period']:,.0f}",
                f"{ours['merge_rows_per_row']:.3f}",
            ]
        )
    head = [
        "stream",
        "`online`",
        "reach / stretch",
        "`headgate`",
        "at most",
        "imbalance",
        "floor",
        "per epoch: `online`",
        "`headgate`",
        "moves per period",
        "adoptions",
        "merge rows per row",
    ]
    return table(head, rows)


def planners(found: dict[str, Any]) -> str:
    names = ("hash", "offline", "online", "online-kway", "strict", "headgate", "oracle")
    rows = []
    for stream in measured(found):
        figures = found["streams"][stream.name]
        cells = [f"{stream.name} ({', '.join(stream.keys)})"]
        for name in names:
            one = figures.get(name)
            cells.append(
                "" if one is None else f"{share(one['locality'])}, {slashed(one['imbalance'])}"
            )
        rows.append(cells)
    return table(
        ["stream", *(f"`{n}`" if n != "strict" else "`headgate --strict`" for n in names)], rows
    )


def epochs(found: dict[str, Any]) -> str:
    names = ("hash", "online", "online-kway", "headgate", "strict")
    rows = []
    for stream in measured(found):
        figures = found["streams"][stream.name]
        cells = [stream.name]
        for name in names:
            one = figures.get(name)
            if one is None:
                cells.append("")
            else:
                cells.append(mark(one["imbalance_epoch"], figures["online"]["imbalance_epoch"]))
        for name in ("online", "headgate", "strict"):
            one = figures.get(name)
            cells.append("" if one is None else f"{one['moves_per_period']:,.0f}")
        cells.append(f"{figures['headgate']['merge_rows_per_row']:.3f}")
        rows.append(cells)
    head = ["per epoch", "`hash`", "`online`", "`online-kway`", "`headgate`", "`--strict`"]
    head += ["moves: `online`", "`headgate`", "`--strict`", "merge rows per row"]
    return table(head, rows)


def measured(found: dict[str, Any]) -> list[Stream]:
    return [s for s in CHOSEN_ON + HELD_OUT if s.name in found["streams"]]


def variants(found: dict[str, Any]) -> str:
    if not found["variants"]:
        return "Not measured in this run."
    rows = []
    for variant, streams in found["variants"].items():
        cells = [variant]
        for stream in CHOSEN_ON:
            if stream.name not in streams:
                cells.append("")
                continue
            them, ours = streams[stream.name]["online"], streams[stream.name]["headgate"]
            fewer = them["moves_per_period"] / max(1.0, ours["moves_per_period"])
            cells.append(f"{both(them)} → {both(ours)}, {fewer:.1f}x")
        rows.append(cells)
    return table(["seed 1", *(stream.name for stream in CHOSEN_ON)], rows)


def settings(found: dict[str, Any]) -> str:
    return table(["setting", "value"], [[k, f"{v:g}"] for k, v in found["settings"].items()])


WRITERS = {
    "reached": reached,
    "planners": planners,
    "epochs": epochs,
    "variants": variants,
    "settings": settings,
}


def write_tables() -> None:
    found = json.loads(FIGURES.read_text())
    page = PAGE.read_text()
    for name, write in WRITERS.items():
        start, end = f"<!-- {name}:start -->\n", f"<!-- {name}:end -->"
        before, rest = page.split(start)
        page = before + start + write(found) + "\n" + end + rest.split(end)[1]
    PAGE.write_text(page)


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    words.add_argument("--tables", action="store_true", help="do not measure")
    words.add_argument("--short", action="store_true", help="fewer streams, planners and seeds")
    words.add_argument("--only", action="append", help="a stream by name; may be repeated")
    words.add_argument("--planner", action="append", help="a planner by name; may be repeated")
    asked = words.parse_args()
    if not asked.tables:
        names = ("hash", "online", "headgate", "strict") if asked.short else PLANNERS
        keep = bool(asked.only or asked.planner)
        names = tuple(asked.planner or names)
        found = all_figures(asked.data, names, asked.short, asked.only, keep)
        FIGURES.write_text(json.dumps(found, indent=1) + "\n")
    write_tables()


if __name__ == "__main__":
    main()
