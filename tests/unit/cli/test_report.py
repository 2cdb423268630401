"""`headgate report`: one file, no links, figures for what the journal knows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from typer.testing import CliRunner

import headgate as hg
from headgate.cli.main import app
from headgate.commit.inspection import Inspection
from headgate.offline.report import render
from headgate.testing import ListSource, run


def checkpoint(folder: Path) -> str:
    flow = hg.Flow("trends")
    rows = [[{"a": i % 5, "b": i % 7} for i in range(50)] for _ in range(4)]
    first = flow.source(ListSource("a bigint, b bigint", rows), name="rows")
    counted = first.key_by("a").process(hg.Count(emit="rows"), name="by_a")
    counted.key_by("b").process(hg.Count(), name="by_b").to_memory("out")
    run(flow, slots=2, checkpoint=folder / "ck")
    return str(folder / "ck")


def timed(journal: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The journal as Spark would have written it, times included."""
    spent = {"plan_ms": 10.0, "job_ms": 500.0, "levels_ms": {"0": 90.0, "1": 50.0, "2": 40.0}}
    return [record | spent for record in journal]


def test_the_report_is_one_file_with_drawings_and_no_links(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "report.html"

    result = CliRunner().invoke(app, ["report", checkpoint(tmp_path), "--out", str(out)])

    assert result.exit_code == 0, result.output
    page = out.read_text()
    assert page.count("<svg") >= 5
    assert "http" not in page
    assert "<script" not in page
    assert "by_a → by_b" in page


def test_times_add_two_figures(tmp_path: Path) -> None:
    seen = Inspection(checkpoint(tmp_path))

    plain = render(seen.describe, seen.journal, title="t")
    with_times = render(seen.describe, timed(seen.journal), title="t")

    assert with_times.count("<figure>") == plain.count("<figure>") + 2
    assert "Rows per second" in with_times


def test_measured_latencies_are_drawn_and_a_bound_says_that_it_is_one(tmp_path: Path) -> None:
    seen = Inspection(checkpoint(tmp_path))
    latency = {"p50_ms": 10.0, "p95_ms": 900.0, "p99_ms": 950.0, "mean_ms": 90.0, "rows": 50}
    measured = [r | {"latency": latency | {"since": "arrival"}} for r in seen.journal]

    bound = render(seen.describe, seen.journal, title="t")
    page = render(seen.describe, measured, title="t")

    assert "Latency of rows" in bound and "at least" in bound and "p95, median" not in bound
    assert "p99" in page and "0.90 s" in page and "p95, median epoch" in page


def test_what_users_name_is_escaped(tmp_path: Path) -> None:
    seen = Inspection(checkpoint(tmp_path))

    page = render(seen.describe, seen.journal, title="<b>&", extras={"<i>": "<p>x</p>"})

    assert "&lt;b&gt;&amp;" in page and "&lt;i&gt;" in page and "<p>x</p>" in page


def test_events_of_the_journal_are_listed(tmp_path: Path) -> None:
    seen = Inspection(checkpoint(tmp_path))
    retry = {"schema": 1, "kind": "retry", "epoch": 2, "reason": "an executor died"}

    page = render(seen.describe, [*seen.journal, retry], title="t")

    assert "an executor died" in page


def test_an_empty_journal_still_makes_a_page(tmp_path: Path) -> None:
    seen = Inspection(checkpoint(tmp_path))

    assert "All 0 epochs" in render(seen.describe, [], title="t")


def test_the_tiles_tell_what_moving_keys_has_changed(tmp_path: Path) -> None:
    """Not the mean of both: half of the rows would stay, which was never so."""
    seen = Inspection(checkpoint(tmp_path))
    journal = [
        r | ({"routing_version": 1, "locality": 0.8} if r["epoch"] >= 2 else {"locality": 0.2})
        if r["kind"] == "epoch" else r
        for r in timed(seen.journal)
    ]  # fmt: skip

    page = render(seen.describe, journal, title="t")
    plain = render(seen.describe, seen.journal, title="t")

    assert "<dd>80.0%</dd><p>of rows between operators; " in page
    assert page.count("before keys moved") == 3
    assert "Dashed upright lines" in page
    assert "before keys moved" not in plain and "Dashed upright lines" not in plain
