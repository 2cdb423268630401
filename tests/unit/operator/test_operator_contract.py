"""What every built-in promises: it pickles, it is pure, its docstring runs."""

from __future__ import annotations

import doctest
import importlib
import pickle
import pkgutil

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.unit.operator.harness import Epoch, Slot, batch_of, name_of

import headgate.operator
from headgate.operator import (
    Aggregate,
    ApproxCountDistinct,
    Collect,
    Count,
    CountDistinct,
    Deduplicate,
    First,
    Last,
    Max,
    Mean,
    MeanOfLast,
    Median,
    Min,
    Quantile,
    StatefulOperator,
    StdDev,
    Sum,
    TopK,
    TopRows,
    Tumbling,
    Update,
    Variance,
)

WINDOW = Tumbling("10 seconds", time="ts")
LATE = Tumbling("10 seconds", time="ts", allowed_lateness="1 minute")
ROWS = pa.schema({
    "k": pa.string(), "v": pa.float64(), "s": pa.string(), "ts": pa.timestamp("us", "UTC"),
})  # fmt: skip


def longest(key: str, rows: pa.RecordBatch, state: str | None) -> tuple[str, list[dict[str, str]]]:
    best = max([*rows.column("s").to_pylist(), state or ""], key=len)
    return best, [{"longest": best}]


OPERATORS: list[StatefulOperator] = [
    Count(),
    Count(emit="running"),
    Count(window=WINDOW),
    Sum("v", window=WINDOW),
    Mean("v", emit="running"),
    Min("s"),
    Max("v", emit="running"),
    Last("s", "v", by="ts"),
    Aggregate(n=Count(), total=Sum("v"), low=Min("s", where=pc.field("v") > 0)),
    Aggregate(n=Count(), high=Max("v"), window=WINDOW),
    Aggregate(
        d=CountDistinct("s"),
        a=ApproxCountDistinct("v", size=8),
        q=Quantile("v", 0.9),
        m=Median("v", error=0.1),
        v=Variance("v"),
        d2=StdDev("v"),
        f=First("s"),
        l=Last("v", by="ts"),
        c=Collect("s", limit=3),
    ),
    CountDistinct("s", emit="running"),
    StdDev("v", emit="running"),
    Collect("v", by="ts", window=WINDOW),
    ApproxCountDistinct("s", window=WINDOW),
    Deduplicate("1 minute"),
    TopK("s", 2, WINDOW, weight="v"),
    TopK("s", 2, WINDOW, emit="changes"),
    TopRows(2, "v desc", window=WINDOW, emit="changes"),
    TopRows(2, "v desc", ["s"], window=LATE),
    MeanOfLast("v", 3),
    Update(longest, pa.schema({"longest": pa.string()})),
]


@pytest.mark.parametrize("operator", OPERATORS, ids=name_of)
def test_pickles_to_an_equal_operator(operator: StatefulOperator) -> None:
    again = pickle.loads(pickle.dumps(operator))
    assert again == operator
    assert again.describe() == operator.describe()
    assert (again.ttl, again.ends_epochs) == (operator.ttl, operator.ends_epochs)


@pytest.mark.parametrize("operator", OPERATORS, ids=name_of)
def test_declared_fields_are_kept_to_the_letter(operator: StatefulOperator) -> None:
    """Not nullable stays not nullable; the harness compares every batch with its declaration."""
    strict = pa.schema([field.with_nullable(False) for field in ROWS])
    with Slot(operator, strict, ["k"]) as slot:
        for epoch in _epochs(ROWS):
            epoch.levels = [[call.cast(strict) for call in calls] for calls in epoch.levels]
            slot.run(epoch)


@pytest.mark.parametrize("operator", OPERATORS, ids=name_of)
def test_two_runs_give_the_same_bytes(operator: StatefulOperator) -> None:
    assert _bytes(operator) == _bytes(operator)


@pytest.mark.parametrize("operator", OPERATORS, ids=name_of)
def test_runs_on_the_columns_it_asks_for(operator: StatefulOperator) -> None:
    wanted = set(operator.output_schema(ROWS, ["k"]).names) - {"k"}
    needed = operator.needs(ROWS, ["k"], wanted)
    assert needed <= set(ROWS.names)
    pruned = pa.schema([field for field in ROWS if field.name in needed])
    full, short = _results(operator, ROWS), _results(operator, pruned)
    columns = [name for name in operator.output_schema(pruned, ["k"]).names if name in wanted]
    assert [[row[name] for name in columns] for row in full] == [
        [row[name] for name in columns] for row in short
    ]


def _epochs(schema: pa.Schema) -> list[Epoch]:
    rng = np.random.default_rng(1)
    epochs = []
    for number in range(4):
        count = 200
        batch = batch_of(
            ROWS,
            k=[f"key {n}" for n in rng.integers(0, 20, count)],
            v=rng.normal(size=count).tolist(),
            s=["x" * n for n in rng.integers(0, 9, count)],
            ts=[int(t) for t in rng.integers(0, 60_000_000, count)],
        ).select(schema.names)
        calls = [batch.slice(0, 70), batch.slice(70, 50), batch.slice(120)]
        epochs.append(Epoch([calls[:2], calls[2:]], number * 15_000_000, number * 40_000))
    return epochs


def _bytes(operator: StatefulOperator) -> tuple[bytes, object]:
    with Slot(operator, ROWS, ["k"]) as slot:
        results = [slot.run(epoch) for epoch in _epochs(ROWS)]
        return b"".join(result.ipc for result in results), slot.chain


def _results(operator: StatefulOperator, schema: pa.Schema) -> list[dict[str, object]]:
    with Slot(operator, schema, ["k"]) as slot:
        results = [slot.run(epoch) for epoch in _epochs(schema)]
        return [row for result in results for row in [*result.passed, *result.finished]]


def test_examples_in_docstrings_run() -> None:
    for module in pkgutil.iter_modules(headgate.operator.__path__, "headgate.operator."):
        assert doctest.testmod(importlib.import_module(module.name)).failed == 0, module.name


def test_all_is_sorted_and_complete() -> None:
    assert list(headgate.operator.__all__) == sorted(headgate.operator.__all__)
    built_ins = {type(operator).__name__ for operator in OPERATORS}
    assert built_ins <= set(headgate.operator.__all__)
