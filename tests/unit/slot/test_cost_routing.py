"""A task's cost-aware schedule depends on its rows and the plan, never on how rows are cut."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.slot.parts import compiled, plan_for, source

from headgate import Flow
from headgate.routing.cost_model import CostModel
from headgate.routing.cost_sketch import CostSketch, SketchShape
from headgate.routing.hashing import hash_columns
from headgate.slot import cost_routing
from headgate.slot.cost_routing import CostRouting
from headgate.slot.plan import Control
from headgate.slot.rows import Rows, concat
from strategies import examples


def same(rows):
    return rows


def program_of(schedule="batch"):
    flow = Flow("f")
    rows = source(flow, "k bigint, n bigint")
    shuffled = rows.shuffle(grouping="cost", attribute="k", schedule=schedule)
    shuffled.map(same, "k bigint, n bigint", name="work").to_memory("out")
    return compiled(flow)


def model_of(slots, speeds=None):
    """Key k takes k + 1 milliseconds."""
    sketches = []
    for slot in range(slots):
        sketch = CostSketch(SketchShape.within(0.001, 0.05))
        keys = np.arange(40)
        h = hash_columns([pa.array(keys)], len(keys))
        speed = 1.0 if speeds is None else speeds[slot]
        many = np.full(len(keys), 100.0)
        sketch.update(h, (keys + 1.0) * speed * many, many)
        sketches.append(sketch)
    return CostModel.of(sketches)


def rows_of(keys):
    columns = {"k": pa.array(keys, pa.int64()), "n": pa.array(range(len(keys)), pa.int64())}
    return Rows(pa.RecordBatch.from_pydict(columns))


def schedule(program, plan, parts, producer=0):
    """Slot of each row by its number, and what the control record says."""
    control = Control()
    routing = CostRouting(program, plan, control, producer)
    edge = program.graph.inputs(program.graph.node("work").id)[0]
    found = [x for part in parts for x in routing.add(edge, part)] + list(routing.close())
    slots = {}
    for _, rows, targets in found:
        slots |= dict(zip(rows.batch.column("n").to_pylist(), targets.tolist(), strict=True))
    return slots, control


@pytest.mark.parametrize("way", ["batch", "online"])
@examples(25)
@given(
    keys=st.lists(st.integers(0, 39), min_size=1, max_size=60),
    cuts=st.lists(st.integers(0, 60), max_size=4),
)
def test_chunk_borders_do_not_matter(way, keys, cuts):
    program = program_of(way)
    plan = plan_for(program, slots=3, costs={"work": model_of(3)})
    whole = rows_of(keys)
    borders = [0, *sorted(min(c, len(keys)) for c in cuts), len(keys)]
    parts = [whole.slice(a, b - a) for a, b in pairwise(borders) if b > a]
    before, cost_routing.WINDOW_ROWS = cost_routing.WINDOW_ROWS, 16
    try:
        once, told = schedule(program, plan, [whole])
        again, told_again = schedule(program, plan, parts)
    finally:
        cost_routing.WINDOW_ROWS = before
    assert once == again and len(once) == len(keys)
    if way == "batch":
        assert told == told_again


def test_without_a_model_rows_go_round_from_a_slot_of_the_tasks_own():
    program = program_of()
    slots, control = schedule(program, plan_for(program, slots=3), [rows_of([5] * 4)], producer=2)
    assert list(slots.values()) == [2, 0, 1, 2]
    assert not control.estimated_us


def test_costs_are_spread_evenly_and_told():
    program = program_of()
    plan = plan_for(program, slots=3, costs={"work": model_of(3)})
    keys = [39, 39, 39, *range(30)]
    slots, control = schedule(program, plan, [rows_of(keys)])
    spent = np.zeros(3)
    for n, slot in slots.items():
        spent[slot] += keys[n] + 1
    assert spent.max() / spent.mean() < 1.02
    told = [control.estimated_us["work"][str(s)] for s in range(3)]
    assert np.array(told) / 1000 == pytest.approx(spent, rel=0.01)


def test_a_slow_slot_gets_less():
    program = program_of()
    plan = plan_for(program, slots=2, costs={"work": model_of(2, speeds=[1.0, 3.0])})
    keys = list(range(40)) * 4
    slots, _ = schedule(program, plan, [rows_of(keys)])
    spent = np.zeros(2)
    for n, slot in slots.items():
        spent[slot] += (keys[n] + 1) * (1, 3)[slot]
    assert spent.max() / spent.mean() < 1.05


def test_several_schedulers_together_are_even():
    """Every task has one row: they must not all choose the same slot."""
    program = program_of()
    plan = plan_for(program, slots=4, costs={"work": model_of(4)})
    chosen = [schedule(program, plan, [rows_of([9])], producer=p)[0][0] for p in range(8)]
    assert np.bincount(chosen).tolist() == [2, 2, 2, 2]


def test_rows_of_a_window_keep_their_order():
    program = program_of()
    plan = plan_for(program, slots=2, costs={"work": model_of(2)})
    routing = CostRouting(program, plan, Control(), 0)
    edge = program.graph.inputs(program.graph.node("work").id)[0]
    assert not list(routing.add(edge, rows_of([1, 2]))), "held until the window is full"
    assert not list(routing.add(edge, rows_of([3])))
    ((_, rows, _),) = routing.close()
    assert rows.batch.column("k").to_pylist() == [1, 2, 3]
    assert len(concat([rows])) == 3 and not list(routing.close())
