"""Times go to the attribute that took them; outputs are those of an operator that is not timed."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.routing.count_min import estimate_ms
from tests.unit.slot.parts import compiled, plan_for, source
from tests.unit.slot.test_cost_routing import model_of, rows_of

from headgate import Flow
from headgate.routing.hashing import hash_columns
from headgate.slot.cost_timing import CostTiming, cut
from headgate.slot.failure import DeadLetters
from headgate.slot.rows import Rows
from headgate.slot.stateless import run_stateless
from strategies import examples

OUT = "k bigint, n bigint"


class Clock:
    """Time that only the operators under test let pass."""

    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns

    def work(self, rows):
        """Key k takes k + 1 milliseconds a row."""
        keys = [rows["k"]] if isinstance(rows, dict) else rows.column("k").to_pylist()
        self.now_ns += sum(k + 1 for k in keys) * 1_000_000
        return rows


def declared(kind: str, clock: Clock):
    flow = Flow("f")
    rows = source(flow, OUT).shuffle(grouping="cost", attribute="k")
    if kind == "map_rows":
        rows.map_rows(clock.work, OUT, name="work").to_memory("out")
    elif kind == "flat_map_rows":
        rows.flat_map_rows(lambda r: [clock.work(r)] * 2, OUT, name="work").to_memory("out")
    elif kind == "filter":
        rows.filter(lambda b: pc.less(clock.work(b).column("k"), 20), name="work").to_memory("out")
    elif kind == "flat_map":
        rows.flat_map(lambda b: _twice(clock.work(b)), OUT, name="work").to_memory("out")
    else:
        rows.map(clock.work, OUT, name="work").to_memory("out")
    return compiled(flow)


def _twice(batch):
    at = np.repeat(np.arange(batch.num_rows), 2)[::-1]
    return batch.take(pa.array(at)), at


def estimates(timing, keys):
    h = hash_columns([pa.array(keys, pa.int64())], len(keys))
    return estimate_ms(timing.sketches["work"], h)


@pytest.mark.parametrize("known", [False, True], ids=["no model yet", "with a model"])
@pytest.mark.parametrize("kind", ["map", "filter", "flat_map", "map_rows", "flat_map_rows"])
@examples(10)
@given(keys=st.lists(st.integers(0, 39), min_size=1, max_size=50))
def test_output_is_as_without_timing(kind, known, keys):
    clock = Clock()
    program = declared(kind, clock)
    plan = plan_for(program, slots=2, costs={"work": model_of(2)} if known else {})
    timing = CostTiming(program, plan, clock, 1)
    node = program.graph.node("work")
    rows = Rows(rows_of(keys).batch, {"order": np.arange(len(keys))})
    made = timing.run(node, rows, DeadLetters(plan, 0, wanted=False))
    plain = run_stateless(node, rows, DeadLetters(plan, 0, wanted=False))
    if kind == "flat_map":  # its copies of a row may stand in either order
        assert sorted(map(str, made.batch.to_pylist())) == sorted(map(str, plain.batch.to_pylist()))
    else:
        assert made.batch == plain.batch
        assert (made.lineage["order"] == plain.lineage["order"]).all()
    assert set(made.lineage) == {"order"}
    assert timing.sketches["work"].rows == len(keys)
    assert timing.sketches["work"].total_ms == pytest.approx(sum(k + 1 for k in keys))


def test_a_row_function_is_timed_row_by_row():
    clock = Clock()
    program = declared("map_rows", clock)
    plan = plan_for(program)
    timing = CostTiming(program, plan, clock, 0)
    node = program.graph.node("work")
    timing.run(node, rows_of([0, 30, 9, 0]), DeadLetters(plan, 0, wanted=False))
    assert estimates(timing, [0, 9, 30]) == pytest.approx([1, 10, 31])


def test_a_vectorised_function_is_timed_part_by_part():
    clock = Clock()
    program = declared("map", clock)
    plan = plan_for(program)
    timing = CostTiming(program, plan, clock, 0)
    node = program.graph.node("work")
    timing.run(node, rows_of([0, 30, 9, 0, 9]), DeadLetters(plan, 0, wanted=False))
    assert estimates(timing, [0, 9, 30]) == pytest.approx([1, 10, 31])


def test_rows_that_cost_little_are_not_cut_much():
    calls = []
    flow = Flow("f")
    rows = source(flow, OUT).shuffle(grouping="cost", attribute="k")
    rows.map(lambda b: calls.append(b.num_rows) or b, OUT, name="work").to_memory("out")
    program = compiled(flow)
    plan = plan_for(program, slots=2, costs={"work": model_of(2)})
    timing = CostTiming(program, plan, Clock(), 0)
    node = program.graph.node("work")
    timing.run(node, rows_of([0, 1]), DeadLetters(plan, 0, wanted=False))
    assert len(calls) <= 2, "5 ms of work make no more than a part per value"
    calls.clear()
    timing.run(node, rows_of(list(range(40)) * 20), DeadLetters(plan, 0, wanted=False))
    assert len(calls) <= 32 and sum(calls) == 800


def test_nothing_else_is_timed():
    flow = Flow("f")
    rows = source(flow, OUT).shuffle().map(lambda b: b, OUT, name="work")
    rows.to_memory("out")
    program = compiled(flow)
    timing = CostTiming(program, plan_for(program), Clock(), 0)
    assert not timing.measures(program.graph.node("work"))


@given(st.lists(st.floats(0.001, 1e6), min_size=1, max_size=60), st.integers(1, 40))
def test_parts_are_numbered_without_gaps(work, parts):
    part = cut(np.array(work), parts)
    assert sorted(set(part.tolist())) == list(range(part.max() + 1))
    assert part.max() < parts
