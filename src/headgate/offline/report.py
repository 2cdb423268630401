"""A journal as one HTML file: no script, no link, nothing to install; light and dark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from headgate.commit.facts import EpochFacts, Json, StartFacts, StateSize, facts_of
from headgate.commit.inspection import Inspection
from headgate.errors import HeadgateError
from headgate.offline.diagram import draw
from headgate.offline.page import PAGE, figures_html, section, table, tiles_html
from headgate.offline.views import (
    EPOCH_COLUMNS,
    EpochView,
    RunView,
    each_epoch,
    mean_error,
    number,
    percent,
    plan_views,
    short,
    times,
)

_SHOWN_EPOCHS = 200  # rows of a table, the newest; the journal has the others
_SHOWN_MOVES = 24


Extra = tuple[str, str]
"""A section that a command adds: a heading and its HTML, already escaped."""


def why_no_figures() -> str:
    """What is missing and how to get it; empty where figures can be drawn.

    Figures are an extra: matplotlib is large, and a flow runs without it.
    """
    if find_spec("matplotlib") is not None:
        return ""
    return 'figures need matplotlib, which is not installed; pip install "headgate[figures]"'


def need_figures() -> None:
    """Refuse, before any work is done, what could not be drawn in the end."""
    if why := why_no_figures():
        raise HeadgateError(why, extra="figures")


def write_report(
    checkpoint: str, out: Path, *, title: str | None = None, extras: Sequence[Extra] = ()
) -> Path:
    """Write the report of a checkpoint's journal; returns the file."""
    need_figures()
    seen = Inspection(checkpoint)
    out.parent.mkdir(parents=True, exist_ok=True)
    text = render(seen.describe, seen.journal, title=title or seen.flow, extras=extras)
    out.write_text(text, encoding="utf-8")
    return out


def render(
    describe: Mapping[str, Any],
    journal: Sequence[Json],
    *,
    title: str,
    extras: Sequence[Extra] = (),
) -> str:
    """The whole page, from a flow's description and its journal."""
    epochs = each_epoch(journal)
    views = [EpochView.of(facts) for facts in epochs]
    run = RunView.of(views)
    return PAGE.substitute(
        title=escape(title),
        subtitle=_subtitle(describe, journal, views),
        tiles=_tiles(run),
        diagram=draw(describe, epochs),
        extras="".join(section(*extra) for extra in extras),
        figures=_figures(epochs, views, run),
        operators=_operators(describe, epochs),
        events=_plans(journal) + _events(journal),
        epochs=table(list(EPOCH_COLUMNS), [v.cells for v in views[-_SHOWN_EPOCHS:]], words=0),
        epoch_count=len(views),
    )


# --- inside ---------------------------------------------------------------------------------
def _subtitle(
    describe: Mapping[str, Any], journal: Sequence[Json], views: Sequence[EpochView]
) -> str:
    parts = [f"flow {describe['flow']}"]
    if views:
        parts.append(f"epochs {views[0].epoch} to {views[-1].epoch}")
        parts.append(f"{views[-1].slots} slots")
    versions = [facts.spark for facts in facts_of(journal) if isinstance(facts, StartFacts)]
    if versions:
        parts.append(f"Spark {versions[-1]}")
    return escape(" · ".join(parts))


def _tiles(run: RunView) -> str:
    moved = run.bytes_local + run.bytes_shuffled
    tiles = [
        ("rows", short(run.rows), f"in {run.epochs} epochs"),
        ("rows per second", number(run.rows_per_second_median), "median epoch"),
        ("seconds per epoch", number(run.epoch_seconds_median, "s"), "median"),
        ("stay in their slot", percent(run.locality), "of rows between operators"),
        ("imbalance", times(run.imbalance_median), "busiest slot over mean"),
        ("shuffled", short(run.bytes_shuffled, "B"), f"of {short(moved, 'B')} moved"),
    ]
    return tiles_html(tiles)


def _figures(epochs: Sequence[EpochFacts], views: Sequence[EpochView], run: RunView) -> str:
    from headgate.offline import figure

    drawn = [
        (
            "Rows per second",
            "Source rows over an epoch's planning and job.",
            figure.rows_per_second(views, run.rows_per_second_median),
        ),
        (
            "Where the time goes",
            "The longest task of each level, as measured inside the Python workers.",
            figure.time_spent(epochs),
        ),
        (
            "Locality",
            "Rows whose next key lives in the slot they are in: they skip the shuffle.",
            figure.locality(epochs),
        ),
        (
            "Imbalance",
            "The busiest slot's rows over the mean of all slots; 1× is even.",
            figure.imbalance(epochs),
        ),
        (
            "Bytes moved",
            "Through Spark's shuffle, or in memory from operator to operator.",
            figure.bytes_moved(views),
        ),
        (
            "Load per slot",
            "Rows over the whole run against an even share.",
            figure.slot_loads(epochs),
        ),
    ]
    return figures_html(drawn)


def _operators(describe: Mapping[str, Any], epochs: Sequence[EpochFacts]) -> str:
    head = ["operator", "kind", "key", "state rows", "state bytes", "rows in", "time per row"]
    rows = []
    for name, operator in describe["operators"].items():
        state: dict[int, StateSize] = {}
        seen, spent_ms = 0, 0.0
        for facts in epochs:
            state |= facts.state.get(name, {})
            seen += sum(facts.loads.get(name, ()))
            spent_ms += sum(facts.operator_ms.get(name, ()))
        rows.append(
            [
                name,
                str(operator["settings"].get("operator", "")),
                ", ".join(operator["key"]) or "(one key)",
                short(sum(size.rows for size in state.values())),
                short(sum(size.bytes for size in state.values()), "B"),
                short(seen),
                f"{spent_ms * 1e6 / seen:.0f} ns" if seen and spent_ms else "–",
            ]
        )
    return table(head, rows, words=3) if rows else "<p>No stateful operator.</p>"


def _plans(journal: Sequence[Json]) -> str:
    """What the manager moved and why, what it promised and what came of it."""
    plans = plan_views(journal)
    if not plans:
        return ""
    rows = [
        [
            str(plan.epoch),
            plan.why,
            f"{plan.moved_keys:,}",
            percent(plan.predicted_locality),
            percent(plan.achieved_locality),
        ]
        for plan in plans[-_SHOWN_EPOCHS:]
    ]
    head = ["epoch", "why", "keys moved", "predicted locality", "achieved"]
    error = mean_error(plans)
    aside = "" if error is None else f"Mean error of the predicted locality: {error:.3f}. "
    moves = [line for plan in plans for line in plan.top_moves][:_SHOWN_MOVES]
    listed = "".join(f"<li>{escape(line)}</li>" for line in moves)
    if listed:
        listed = f"<p>The heaviest moves, first plans first:</p><ul>{listed}</ul>"
    html = f'<p class="aside">{escape(aside)}</p>' + table(head, rows, words=2) + listed
    return section("What the manager did", html)


def _events(journal: Sequence[Json]) -> str:
    """Everything but epochs, starts and plans: retries, scalings."""
    others = [r for r in journal if r["kind"] not in ("epoch", "start", "plan", "outcome")]
    if not others:
        return ""
    hidden = ("schema", "kind", "epoch")
    rows = [
        [
            str(r.get("epoch", "")),
            str(r["kind"]),
            ", ".join(f"{k}={str(v)[:120]}" for k, v in r.items() if k not in hidden)[:400],
        ]
        for r in others[-_SHOWN_EPOCHS:]
    ]
    return section("Events", table(["epoch", "kind", "facts"], rows, words=3))
