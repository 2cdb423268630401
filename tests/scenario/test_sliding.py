"""Sliding windows with totals beside their panes are what a plain fold of the rows says.

Whatever becomes of slots, driver and flow on the way: keys move with their totals, a driver dies
before an epoch is committed or after, a checkpoint has no totals yet, or those of other aggregates.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import headgate as hg
from headgate.commit import faults
from headgate.operator.totals import PANES, TOTALS
from headgate.slot.held_back import table_of
from headgate.state.store import StateStore
from headgate.testing import ListSource, LocalRun, run
from strategies import seeds

Rows = list[dict[str, Any]]
SIZE_S, SLIDE_S, EPOCHS = 60, 10, 14
WINDOW = hg.Sliding(f"{SIZE_S} seconds", f"{SLIDE_S} seconds", time="ts")
SCHEMA = "k bigint, v int, ts timestamp"
POINTS = ["planned", "tasks-done", "manifest-written", "sinks-done"]


class Killed(BaseException):
    """The driver is dead."""


@dataclass
class Story:
    """A stream, and the starts of a flow on it."""

    place: Path
    epochs: list[Rows]
    told: dict[int, Rows] = field(default_factory=dict)  # by epoch

    def goes_on(self, operator: Any, until: int, **more: Any) -> LocalRun:
        flow = hg.Flow("story")
        given = [[{**row, "ts": row["ts"] * 10**6} for row in rows] for rows in self.epochs[:until]]
        rows = flow.source(ListSource(SCHEMA, given), event_time="ts", watermark="20 seconds")
        rows.key_by("k").process(operator, name="op").to(self.take, name="out")
        ends = until == len(self.epochs)
        return run(flow, checkpoint=self.place, input_ends=ends, **more)

    def take(self, rows: Rows, epoch: int) -> None:
        self.told[epoch] = rows  # again, if the driver died before it knew

    def windows(self, name: str) -> list[Any]:
        return sorted(
            (row["k"], second(row["window_start"]), row[name])
            for rows in self.told.values()
            for row in rows
        )

    def folded(self) -> dict[tuple[int, int], list[Any]]:
        """The values of every key and window."""
        found: dict[tuple[int, int], list[Any]] = defaultdict(list)
        for row in (row for rows in self.epochs for row in rows):
            last = row["ts"] // SLIDE_S * SLIDE_S
            for start in range(last - SIZE_S + SLIDE_S, last + 1, SLIDE_S):
                found[row["k"], start].append(row["v"])
        return found

    def sums(self) -> list[Any]:
        by_window = self.folded().items()
        return sorted(
            (k, start, sum(v for v in values if v is not None) if any_of(values) else None)
            for (k, start), values in by_window
        )

    def counts(self) -> list[Any]:
        return sorted((k, start, len(values)) for (k, start), values in self.folded().items())


def any_of(values: list[Any]) -> bool:
    return any(value is not None for value in values)


def second(at: datetime) -> int:
    return int(at.timestamp())


def story(seed: int, place: Path) -> Story:
    """Rows whose keys come and go, at most 20 seconds out of order, at times with long pauses."""
    rng, now, epochs = random.Random(f"sliding {seed}"), 1_000, []
    for _ in range(EPOCHS):
        keys = rng.sample(range(12), rng.randrange(1, 7))
        epochs.append(
            [
                {
                    "k": rng.choice(keys),
                    "v": rng.choice([None, *range(-5, 6)]),
                    "ts": now - rng.randrange(20),
                }
                for _ in range(rng.choice([0, 1, 12]))
            ]
        )
        now += rng.choice([0, 3, 10, 25, 25, 90, 900])
    return Story(place, epochs)


def check_totals(done: LocalRun) -> None:
    """Every slot's totals are of the panes that it has now."""
    at = done.coordinator
    assert at.last is not None
    if at.last.used_watermark_us is None:
        return
    node, table = at.program.stateful[0], table_of("op", TOTALS)
    store = StateStore(at.checkpoint.state, warm_dir=None, buckets=at.buckets)
    schema, beside = at.program.state_schemas[node.id], at.program.side_schemas[node.id][TOTALS]
    closed_to = at.last.used_watermark_us // 10**6 // SLIDE_S * SLIDE_S
    for slot, chain in at.last.chains["op"].items():
        panes = store.scan("op", int(slot), schema, chain).to_pylist()
        of_key = Counter(p["k"] for p in panes if second(p["window_start"]) < closed_to)
        totals = at.last.chains.get(table, {}).get(slot, ())
        held = store.scan(table, int(slot), beside, totals).to_pylist()
        assert {row["k"]: row[PANES] for row in held} == of_key


@pytest.mark.parametrize("seed", seeds(12, of=120))
def test_totals_move_with_their_keys_and_a_dead_driver_leaves_them_right(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, that = random.Random(seed), story(seed, tmp_path / "checkpoint")
    total, until = hg.Sum("v", window=WINDOW), 0
    while until < EPOCHS:
        until = min(EPOCHS, until + rng.randrange(1, 5))
        slots, dies = rng.randrange(1, 5), (rng.choice(POINTS), rng.randrange(until))
        warm = {"warm_dir": str(tmp_path / "warm")} if rng.random() < 0.5 else {}

        def die(point: str, epoch: int, dies: Any = dies) -> None:
            if (point, epoch) == dies:
                raise Killed

        with monkeypatch.context() as patch:
            patch.setattr(faults, "reach", die)
            try:
                done = that.goes_on(total, until, slots=slots, **warm)
            except Killed:
                patch.undo()
                done = that.goes_on(total, until, slots=slots, **warm)
        if until < EPOCHS:
            check_totals(done)

    assert that.windows("sum") == that.sums()


class Sum(hg.Sum):
    """A sum of the version before, which keeps panes only."""

    def beside(self, rows: Any, key: Any) -> dict[str, Any]:
        return {}


@pytest.mark.parametrize("seed", range(4))
def test_a_checkpoint_without_totals_gets_them_when_a_window_closes(
    seed: int, tmp_path: Path
) -> None:
    that = story(seed, tmp_path / "checkpoint")
    before = that.goes_on(Sum("v", window=WINDOW), 6, slots=2)
    assert before.coordinator.last is not None
    assert {*before.coordinator.last.chains} == {"op"}

    that.goes_on(hg.Sum("v", window=WINDOW), EPOCHS, slots=3)

    assert that.windows("sum") == that.sums()


def several(*names: str) -> hg.Aggregate:
    known = {"n": hg.Count(), "sum": hg.Sum("v"), "high": hg.Max("v")}
    given = {name: known[name] for name in names}
    return hg.Aggregate(given, window=WINDOW, defaults=dict.fromkeys(names[1:]))


@pytest.mark.parametrize("seed", range(4))
def test_totals_follow_an_aggregate_that_comes_and_goes(seed: int, tmp_path: Path) -> None:
    """They are made anew from panes, given up where one cannot be subtracted, and come back."""
    that, tables = story(seed, tmp_path / "checkpoint"), []
    for until, names, says in [
        (5, ("n",), {}),
        (8, ("n", "sum"), {}),
        (11, ("n", "sum", "high"), {}),
        (EPOCHS, ("n", "sum"), {"drop_state": ["op.high"]}),
    ]:
        done = that.goes_on(several(*names), until, slots=1 + until % 3, **says)
        assert done.coordinator.last is not None
        tables.append({*done.coordinator.last.chains})

    assert table_of("op", TOTALS) not in tables[2]
    assert that.windows("n") == that.counts()
