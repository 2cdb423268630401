"""Runs in which operators are born local: the plan names them, whoever would have decided it.

`deep` is a case in which partials arrive in several levels.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest
from tests.routes import local_only, may_be_local
from tests.scenario.oracle import Case, Expected, bag

import headgate as hg
from headgate.commit.coordinator import Coordinator
from headgate.slot.plan import EpochPlan
from headgate.slot.program import Program

Choose = Callable[[Program, int], frozenset[str]]


@contextmanager
def born_local(choose: Choose = lambda program, epoch: may_be_local(program)) -> Iterator[None]:
    """Every coordinator made in here plans its epochs with the chosen operators away."""
    real = Coordinator.plan

    def plan(self: Coordinator, *given: int) -> EpochPlan:
        made = real(self, *given)
        return local_only(self.program, made, choose(self.program, made.epoch))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Coordinator, "plan", plan)
        yield


def deep(rng: random.Random, epochs: int = 4, rows: int = 40) -> Case:
    """Three keyed operators in a row, and two more behind the second: rows of several levels."""
    data = [
        [
            {"k1": rng.randrange(6), "k2": rng.randrange(5), "k3": rng.choice("abcd"), "n": number}
            for number in rng.sample(range(1000 * epoch, 1000 * epoch + 999), rng.randrange(rows))
        ]
        for epoch in range(epochs)
    ]

    def declare(_flow: hg.Flow, sources: dict[str, Any]) -> dict[str, Any]:
        first = (
            sources["rows"]
            .key_by("k1", grouping="hash")
            .process(hg.Count(emit="rows"), name="first")
        )
        second = first.key_by("k2", grouping="hash").process(
            hg.Sum("n", emit="rows"), name="second"
        )
        third = second.key_by("k3", grouping="hash").process(
            hg.Last("k1", "n", by="n"), name="third"
        )
        either = (
            first.union(second)
            .key_by("k3", "k2", grouping="hash")
            .process(hg.Count(), name="either")
        )
        return {"third": third, "either": either}

    counts: Counter[int] = Counter()
    sums: Counter[int] = Counter()
    pairs: Counter[tuple[str, int]] = Counter()
    last: dict[str, dict[str, Any]] = {}
    expected = []
    for given in data:
        for row in given:
            counts[row["k1"]] += 1
            sums[row["k2"]] += row["n"]
            pairs[row["k3"], row["k2"]] += 2
            kept = {name: row[name] for name in ("k3", "k1", "n")}
            last[row["k3"]] = max(kept, last.get(row["k3"], kept), key=lambda r: r["n"])
        touched = {row["k3"] for row in given}
        touched_pairs = {(row["k3"], row["k2"]) for row in given}
        expected.append(
            Expected(
                {
                    "first": bag({"k1": k, "count": n} for k, n in counts.items()),
                    "second": bag({"k2": k, "sum": n} for k, n in sums.items()),
                    "third": bag({**row, "@by": row["n"]} for row in last.values()),
                    "either": bag({"k3": a, "k2": b, "count": n} for (a, b), n in pairs.items()),
                },
                {
                    "third": bag(last[k] for k in touched),
                    "either": bag(
                        {"k3": a, "k2": b, "count": pairs[a, b]} for a, b in touched_pairs
                    ),
                },
            )
        )
    keys = {
        "first": (pa.schema({"k1": pa.int64()}), [(k,) for k in range(6)]),
        "second": (pa.schema({"k2": pa.int64()}), [(k,) for k in range(5)]),
        "third": (pa.schema({"k3": pa.string()}), [(c,) for c in "abcd"]),
        "either": (
            pa.schema({"k3": pa.string(), "k2": pa.int64()}),
            [(c, k) for c in "abcd" for k in range(5)],
        ),
    }
    schema = "k1 bigint, k2 bigint, k3 string, n bigint"
    return Case("deep", {"rows": schema}, {"rows": data}, declare, expected, keys)
