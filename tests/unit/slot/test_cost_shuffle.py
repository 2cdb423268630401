"""A task's cost-aware schedule depends on its rows and the plan, never on how rows are cut."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.routing.count_min import estimate_ms
from tests.unit.slot.parts import compiled, plan_for, source

from headgate import Flow
from headgate.routing.costs import CostModel, CostSketch, SketchShape
from headgate.routing.hashing import hash_columns, mix
from headgate.slot import cost_shuffle
from headgate.slot.cost_shuffle import CostRouting
from headgate.slot.cost_timing import COST, CostTiming, Measured, cut, parts_of
from headgate.slot.failure import DeadLetters
from headgate.slot.plan import Control
from headgate.slot.rows import Rows, concat
from headgate.slot.run_operator import run_stateless
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


@pytest.mark.parametrize("way", ["batch", "online", "paper"])
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
    before, cost_shuffle.WINDOW_ROWS = cost_shuffle.WINDOW_ROWS, 16
    try:
        once, told = schedule(program, plan, [whole])
        again, told_again = schedule(program, plan, parts)
    finally:
        cost_shuffle.WINDOW_ROWS = before
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


def test_slots_begin_with_what_else_they_have_to_do():
    program = program_of()
    beside = {"work": (0.0, 60.0, 0.0)}
    plan = plan_for(program, slots=3, costs={"work": model_of(3)}, beside_ms=beside)
    keys = [9] * 24
    slots, control = schedule(program, plan, [rows_of(keys)])
    assert np.bincount(list(slots.values())).tolist() == [10, 4, 10]
    assert control.estimated_us["work"]["1"] == pytest.approx(40_000, rel=0.01)


def test_the_papers_scheduler_leaves_a_rows_own_time_out_of_its_choice():
    """Slot 1 is slower, and is chosen all the same while it has the least work so far."""
    program = program_of("paper")
    plan = plan_for(program, slots=2, costs={"work": model_of(2, speeds=[1.0, 3.0])})
    slots, control = schedule(program, plan, [rows_of([9, 9, 9, 9, 9])])
    assert list(slots.values()) == [0, 1, 0, 0, 0]
    assert control.estimated_us["work"]["1"] == pytest.approx(30_000), "its own sketches alone"


def test_the_papers_scheduler_goes_round_until_every_instance_has_told():
    program = program_of("paper")
    told = model_of(3)
    model = CostModel.of([*told.sketches[:2], CostSketch(told.shape)])
    plan = plan_for(program, slots=3, costs={"work": model})
    slots, control = schedule(program, plan, [rows_of([30, 1, 1, 1])])
    assert list(slots.values()) == [0, 1, 2, 0] and not control.estimated_us


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


# --- Times go to the attribute that took them; outputs are those of an operator that is not timed.

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
    assert set(made.lineage) == {"order", COST}
    rows, ms = timing.spent["work"]
    assert rows == len(keys) and ms == pytest.approx(sum(k + 1 for k in keys))


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


@pytest.mark.parametrize("kind", ["map", "filter", "flat_map", "map_rows"])
def test_an_unmeasured_chain_is_timed_as_a_whole_and_called_once(kind):
    clock = Clock()
    program = declared(kind, clock)
    plan = plan_for(program, unmeasured=frozenset({"work"}))
    timing, node = CostTiming(program, plan, clock, 0), program.graph.node("work")
    rows, dead = rows_of([0, 30, 9, 0, 9]), DeadLetters(plan, 0, wanted=False)
    made = timing.run(node, rows, dead)
    assert made.batch == run_stateless(node, rows, dead).batch
    assert COST not in made.lineage
    assert timing.spent == {"work": (5, pytest.approx(1 + 31 + 10 + 1 + 10))}
    assert not timing.sketches


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


def test_the_times_of_a_chain_are_those_of_all_its_operators():
    """A cheap step, a filter, then dear ones, by rows and by batches; up to the next exchange."""
    clock = Clock()
    flow = Flow("f")
    cheap = source(flow, OUT).shuffle(grouping="cost", attribute="k").map(same, OUT, name="work")
    kept = cheap.filter(lambda b: pc.less(b.column("k"), 30), name="kept")
    twice = kept.flat_map(lambda b: _twice(clock.work(b)), OUT, name="twice")
    twice.map_rows(clock.work, OUT, name="dear").to_memory("out")
    kept.shuffle().map(clock.work, OUT, name="beyond").to_memory("beyond")
    program = compiled(flow)
    plan = plan_for(program)
    timing = CostTiming(program, plan, clock, 0)
    rows, dead = rows_of([0, 30, 9, 0, 9]), DeadLetters(plan, 0, wanted=False)
    for name in ("work", "kept", "twice", "dear"):
        node = program.graph.node(name)
        assert timing.measures(node)
        rows = timing.run(node, rows, dead)
    assert not timing.measures(program.graph.node("beyond"))
    assert sorted(rows.batch.column("k").to_pylist()) == [0] * 4 + [9] * 4
    assert timing.spent["work"][0] == 5
    assert estimates(timing, [0, 9, 30]) == pytest.approx([3, 30, 0])


def test_what_two_chains_share_belongs_to_neither():
    flow = Flow("f")
    stream = source(flow, OUT)
    left = stream.shuffle(grouping="cost", attribute="k").map(same, OUT, name="left")
    right = stream.shuffle(grouping="cost", attribute="k").map(same, OUT, name="right")
    left.union(right).map(same, OUT, name="both").to_memory("out")
    program = compiled(flow)
    timing = CostTiming(program, plan_for(program), Clock(), 0)
    measured = [timing.measures(program.graph.node(n)) for n in ("left", "right", "both")]
    assert measured == [True, True, False]


@pytest.mark.parametrize("true_ms", [[1.0] * 99 + [40.0], [1.0] * 60 + [8.0] * 40])
def test_a_wrong_model_does_not_confirm_itself(true_ms):
    """All values count as equal, for sure and wrongly; times by part still tell them apart."""
    true_ms = np.array(true_ms)
    values = mix(np.arange(len(true_ms), dtype=np.uint64))
    count, believed = np.full(len(true_ms), 3.0), np.full(len(true_ms), 1.4)
    learnt, seen = CostSketch(SketchShape.within(0.001, 0.05)), np.full(len(true_ms), 50.0)
    for epoch in range(40):
        drawn = mix(values ^ np.uint64(epoch))
        measured = Measured()
        part = parts_of(believed, count, seen, drawn, 32)
        measured.open(values, count, believed, part)
        measured.in_parts = True
        measured.part_ms += np.bincount(part, true_ms * count)
        learnt.merge(measured.sketched(learnt.shape))
    found = estimate_ms(learnt, values)
    assert np.abs(found - true_ms).sum() / true_ms.sum() < 0.25


@given(
    st.lists(st.tuples(st.floats(0.001, 1e4), st.integers(1, 50)), min_size=1, max_size=60),
    st.integers(1, 40),
    st.integers(0, 2**32),
)
def test_half_of_the_parts_are_of_one_value(values, parts, seed):
    work_ms, count = np.array(values).T
    drawn = mix(np.arange(len(values), dtype=np.uint64) ^ np.uint64(seed))
    part = parts_of(work_ms, count, np.zeros(len(values)), drawn, parts)
    sizes = np.bincount(part)
    assert sizes.min() >= 1 and len(sizes) <= max(1, parts)
    assert (sizes == 1).sum() >= min(parts // 2, len(values))


@given(st.lists(st.floats(0.001, 1e6), min_size=1, max_size=60), st.integers(1, 40))
def test_parts_are_numbered_without_gaps(work, parts):
    part = cut(np.array(work), np.array(work), parts)
    assert sorted(set(part.tolist())) == list(range(part.max() + 1))
    assert part.max() < parts
