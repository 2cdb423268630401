"""Jobs of the allocation benches against plain loops over rows, and the benches, tiny."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from headgate.planner.allocation.model import Nodes
from headgate.routing.hashing import hash_columns
from headgate_lab.bench.albic import QUICK as ALBIC_QUICK
from headgate_lab.bench.albic import run_albic
from headgate_lab.bench.balance import QUICK as BALANCE_QUICK
from headgate_lab.bench.balance import run_balance
from headgate_lab.papers import airline_job, edits_job

NOWHERE = Path("no-such-file.parquet")


def group(values, groups):
    columns = [pa.array(column) for column in zip(*values, strict=True)]
    return (hash_columns(columns, len(values)) % np.uint64(groups)).tolist()


def test_loads_of_edits_are_those_of_a_plain_fold():
    groups, k = 7, 2
    rows = edits_job.generated_day(600, seed=3)
    edits = edits_job.edits_of(rows, speed=480, groups=groups, k=k)
    lines = rows.to_pylist()
    minute = [int((r["ts"] - lines[0]["ts"]) / 480 / 60_000) for r in lines]
    articles = group([(r["wiki"], r["page"]) for r in lines], groups)
    editors = group([(r["editor"],) for r in lines], groups)
    expected = np.zeros((3, groups))
    counts = defaultdict(Counter)
    for i, r in enumerate(lines):
        expected[0, editors[i]] += 1
        expected[1, articles[i]] += 1
        counts[minute[i], articles[i]][r["wiki"], r["page"]] += 1
    closed = set()
    kept = 0
    for (_, g), entries in counts.items():
        expected[1, g] += len(entries)
        kept += min(k, len(entries))
    found = edits_job.loads(edits, range(edits.minutes), groups)
    assert found[:2].tolist() == expected[:2].tolist()
    for at, entry in zip(edits.entry_minute[edits.top], edits.entry_title[edits.top], strict=True):
        closed.add((int(at), int(entry)))
    assert found[2].sum() == kept + len(closed)


def test_a_looped_day_begins_again():
    edits = edits_job.edits_of(edits_job.generated_day(500), speed=480, groups=3, k=2)
    day = edits.minutes
    assert edits_job.loop(edits, range(day - 1, day + 2)) == [range(day - 1, day), range(2)]


def test_collocating_the_first_edge_halves_the_load_of_the_airline_job():
    flights = airline_job.flights_of(airline_job.generated_flights(2), 20)
    nodes = 10
    apart = np.concatenate([np.arange(20) % nodes] * 3).astype(np.int32)
    apart[20:40] = (apart[20:40] + 1) % nodes
    together = apart.copy()
    together[20:40] = apart[:20]
    remote = airline_job.remote_over_row(flights.delayed_share, nodes)
    situation = airline_job.situation_of(flights, 0, apart, Nodes.alike(nodes), 1.0, remote)
    after = situation.after(together)
    assert after.units.load.sum() / situation.units.load.sum() == pytest.approx(0.5, abs=0.03)


def test_the_balance_bench_tells_all_it_should():
    found = run_balance(BALANCE_QUICK, lambda _: None, NOWHERE)
    planners = {"milp", "headgate", "flux", "potc", "hash"}
    for field in ("load_distance_pct", "migrations", "plan_seconds"):
        assert set(found[field]) == planners
    assert all({"mean", "max"} == set(found["load_distance_pct"][p]) for p in planners)
    for planner in planners - {"potc"}:
        lines = found["raw"][planner]
        for distance, bound, gap in zip(
            lines["distance"], lines["bound"], lines["gap"], strict=True
        ):
            assert distance == pytest.approx(bound + gap)
    assert set(found["bound_pct"]) == set(found["gap_pct"]) == planners - {"potc"}
    assert found["migrations"]["hash"] == 0
    assert found["load_distance_pct"]["milp"]["mean"] <= found["load_distance_pct"]["hash"]["mean"]
    assert max(found["raw"]["headgate"]["migrations"]) <= BALANCE_QUICK.migrations_max


def test_the_albic_bench_tells_all_it_should():
    found = run_albic(ALBIC_QUICK, lambda _: None, NOWHERE)
    for field in (
        "collocation_factor",
        "load_distance_pct",
        "load_index",
        "migrations_per_period",
        "periods_to_collocation",
    ):
        assert set(found[field]) == {"albic", "cola", "headgate"}
    assert set(found["bound_pct"]) == set(found["gap_pct"]) == {"albic"}
    assert found["load_index"]["headgate"] < 100
    assert max(found["raw"]["headgate"]["migrations"]) <= ALBIC_QUICK.migrations_max
