"""The benches of `headgate-lab bench`, each with its printed table and its JSON file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from headgate_lab.cli.showing import save, show, show_grid


def chain(json_file: Path | None, quick: bool, console: Console) -> None:
    """Two chained counts against PySpark, native Spark, Bytewax, Pathway and NumPy."""
    from headgate_lab.bench.chain import QUICK, ChainOptions, run_chain

    found = run_chain(QUICK if quick else ChainOptions(), console.print)
    rates = {
        n.removesuffix("_rows_per_s"): v for n, v in found.items() if n.endswith("_rows_per_s")
    }
    show(console, "rows per second (median of rounds)", rates, "{:,.0f}")
    show(console, "ratios", found["ratios"], "{:.2f}")
    save(found, json_file, console)


def text(json_file: Path | None, quick: bool, console: Console) -> None:
    """Sums by text keys against native Spark (both stores), Flink SQL and DuckDB."""
    from headgate_lab.bench.text import QUICK, TextOptions, run_text

    found = run_text(QUICK if quick else TextOptions(), console.print)
    rates = {
        n.removesuffix("_rows_per_s"): v for n, v in found.items() if n.endswith("_rows_per_s")
    }
    show(console, "rows per second (median of rounds)", rates, "{:,.0f}")
    ratios = {n: v for n, v in found.items() if "_over_" in n and v is not None}
    show(console, "ratios", ratios, "{:.2f}")
    save(found, json_file, console)


def wide(json_file: Path | None, quick: bool, console: Console) -> None:
    """4 kB rows, four operators, throttled links: tables against hash (needs namespaces)."""
    from headgate_lab.bench.wide import QUICK, WideOptions, run_wide

    found = run_wide(QUICK if quick else WideOptions(), console.print)
    for mbit, link in found["links_mbit"].items():
        show(console, f"rows per second at {mbit} Mbit/s", link["rows_per_s"], "{:,.0f}")
        show(console, "locality", link["locality"], "{:.2f}")
    show(console, "tables over hash, by Mbit/s", found["tables_over_hash"], "{:.2f}")
    save(found, json_file, console)


def rows(json_file: Path | None, quick: bool, console: Console) -> None:
    """Rows of 1 and 4 kB through three hops that pass them on, against native Spark's shuffles."""
    from headgate_lab.bench.wide_rows import QUICK, WideRowsOptions, run_wide_rows

    found = run_wide_rows(QUICK if quick else WideRowsOptions(), console.print)
    for size, rates in found["rows_per_s"].items():
        show(console, f"rows per second, {size} bytes each", rates, "{:,.0f}")
    for ratio in ("parked_over_native", "parked_over_travelling"):
        show(console, ratio.replace("_", " "), found[ratio], "{:.2f}")
    save(found, json_file, console)


def vocabulary(json_file: Path | None, quick: bool, console: Console) -> None:
    """Windows, sessions and joins, operator by operator, on one core; no JVM."""
    from headgate_lab.bench.vocabulary import QUICK, VocabularyOptions, run_vocabulary

    found = run_vocabulary(QUICK if quick else VocabularyOptions(), console.print)
    show(console, "rows per second of a core", found["rows_per_s_per_core"], "{:,.0f}")
    ratios = found["sliding_over_tumbling"]
    show(console, "cost of 1 h / 1 min over 1 min, by keys of a minute", ratios, "{:.2f}")
    save(found, json_file, console)


def fixed_cost(json_file: Path | None, quick: bool, console: Console) -> None:
    """What an epoch of one row costs, against plain stateful Spark queries."""
    from headgate_lab.bench.fixed_cost import QUICK, FixedCostOptions, run_fixed_cost

    found = run_fixed_cost(QUICK if quick else FixedCostOptions(), console.print)
    show(console, "milliseconds per epoch of one row", found["empty_epoch_ms"], "{:,.0f}")
    show(console, "ratios", found["ratios"], "{:.2f}")
    save(found, json_file, console)


def growth(json_file: Path | None, quick: bool, console: Console) -> None:
    """How rows per second grow with slots, row bytes and chain length."""
    from headgate_lab.bench.growth import QUICK, GrowthOptions, run_growth

    found = run_growth(QUICK if quick else GrowthOptions(), console.print)
    show(console, "rows per second", found["rows_per_s"], "{:,.0f}")
    save(found, json_file, console)


def edges(json_file: Path | None, quick: bool, console: Console) -> None:
    """Locality on rows to come against the number of pairs a planner knows (paper's figure 12)."""
    from headgate_lab.bench.edges import QUICK, EdgesOptions, run_edges

    found = run_edges(QUICK if quick else EdgesOptions(), console.print)
    most = max(found["locality"], key=int)
    shares = zip((f"{k:,}" for k in found["edges"]), found["locality"][most], strict=True)
    show(console, f"locality with {most} slots, by pairs known", dict(shares), "{:.1%}")
    save(found, json_file, console)


def manage(json_file: Path | None, quick: bool, console: Console) -> None:
    """What counting pairs and moving state cost, against the epochs around that do not."""
    from headgate_lab.bench.manage import QUICK, ManageOptions, run_manage

    found = run_manage(QUICK if quick else ManageOptions(), console.print)
    show(console, "rows per second", found["rows_per_s"], "{:,.0f}")
    ratios = {name: found[name] for name in ("counting_over_plain", "migrating_epoch_over_median")}
    show(console, "ratios", ratios, "{:.3f}")
    save(found, json_file, console)


def skew(json_file: Path | None, quick: bool, console: Console) -> None:
    """Zipf keys over 16 slots: balance and price of hash, PKG, D-/W-Choices, DKG, split units."""
    from headgate_lab.bench.skew import QUICK, SkewOptions, run_skew

    found = run_skew(QUICK if quick else SkewOptions(), console.print)
    for title, name, form in (
        ("imbalance, by Zipf exponent", "imbalance", "{:.3f}"),
        ("partials merged per row", "merge_rows_per_row", "{:.4f}"),
        ("slots that process a key, on average", "state_replication", "{:.3f}"),
    ):
        show_grid(console, title, found[name], form)
    save(found, json_file, console)


def tell_elastic(found: dict[str, Any], json_file: Path | None, console: Console) -> None:
    """What `bench elastic`, which has an option of its own, has found."""
    for place in ("embedded", "cluster", "cluster_own_cpus"):
        if place in found:
            _show_scaling(console, place, found[place])
    save(found, json_file, console)


def _show_scaling(console: Console, place: str, found: dict[str, Any]) -> None:
    show(console, f"{place}: seconds per epoch", found["median_epoch_s_by_slots"], "{:.2f}")
    ratios = {
        "worst epoch over median": found["worst_epoch_over_median"],
        "the same with the pause before it": found["worst_with_pause_over_median"],
    }
    for change in found["slot_changes"]:
        name = f"{change['from']} -> {change['to']} slots"
        ratios[f"{name}: its epoch over median"] = change["epoch_over_median"]
        ratios[f"{name}: share of state rows that moved"] = change["moved_share"]
    show(console, f"{place}: ratios", ratios, "{:.2f}")
    console.print(f"state equal to a plain fold: {found['lost_nothing']}")


def osg(json_file: Path | None, quick: bool, console: Console) -> None:
    """Cost-aware shuffle on the reach of tweets, simulated for 1 to 10 instances (no Spark)."""
    from headgate_lab.bench.osg import QUICK, OsgOptions, run_osg

    found = run_osg(QUICK if quick else OsgOptions(), console.print)
    speedups = {f"{k} instances": v for k, v in found["speedup_by_k"]["osg"].items()}
    speedups |= {name: found[f"speedup_{name}"] for name in ("mean", "max", "min")}
    show(console, "mean completion time of round robin over that of OSG", speedups, "{:.2f}")
    save(found, json_file, console)


def osg_spark(json_file: Path | None, quick: bool, console: Console) -> None:
    """Cost-aware shuffle on Spark, 1 to 10 instances, epochs of 100 to 10,000 rows that wait."""
    from headgate_lab.bench.osg_spark import QUICK, SparkOptions, run_on_spark

    found = run_on_spark(QUICK if quick else SparkOptions(), console.print)
    for stream, by_rows in found["over_bound"].items():
        for rows, by_name in by_rows.items():
            for name, by_k in by_name.items():
                title = f"{name}, {stream}, {rows} rows: busiest instance over the bound, by k"
                show(console, title, by_k, "{:.2f}")
    save(found, json_file, console)


def rescale(json_file: Path | None, quick: bool, console: Console) -> None:
    """Reconfigurations on a seeded trace, against the rule of DS2 (simulated)."""
    from headgate_lab.bench.edges import data_folder
    from headgate_lab.papers.rescaling import QUICK, TraceOptions, run_rescaling

    found = run_rescaling(QUICK if quick else TraceOptions(), None if quick else data_folder())
    show_grid(console, "over the trace", found["scalers"], "{:.4g}")
    show(console, "reconfigurations over DS2's", found["reconfigurations_over_ds2"], "{:.3f}")
    others = {name: told["reconfigurations_over_ds2"] for name, told in found["others"].items()}
    show_grid(console, "the same on traces that nothing was chosen on", others, "{:.3f}")
    save(found, json_file, console)


ALL: dict[str, Callable[[Path | None, bool, Console], None]] = {
    "chain": chain,
    "text": text,
    "rows": rows,
    "wide": wide,
    "vocabulary": vocabulary,
    "fixed-cost": fixed_cost,
    "growth": growth,
    "edges": edges,
    "manage": manage,
    "skew": skew,
    "osg": osg,
    "osg-spark": osg_spark,
    "rescale": rescale,
}
