"""Estimates are those of the true costs, also of values that an instance has never seen."""

from __future__ import annotations

import json
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.routing import kernels
from headgate.routing.costs import CostModel, CostSketch, SketchShape, believed_ms
from headgate.routing.hashing import mix
from headgate.slot.cost_shuffle import greedy, longest_first, round_robin

SHAPE = SketchShape.within(0.002, 0.05)


def measured(costs, speeds, rows, seed=0):
    """Sketches of instances that each got random values, of the cost times their speed."""
    draw = np.random.default_rng(seed)
    sketches = []
    for speed, count in zip(speeds, rows, strict=True):
        values = draw.integers(0, len(costs), count)
        sketch = CostSketch(SHAPE)
        sketch.update(mix(values.astype(np.uint64)), costs[values] * speed)
        sketches.append(sketch)
    return CostModel.of(sketches)


def test_a_slow_instance_is_found_and_values_it_has_not_seen_are_estimated():
    costs = np.linspace(0.5, 70, 50)
    model = measured(costs, speeds=[1, 1, 3], rows=[4000, 4000, 400])
    times = model.times_ms(mix(np.arange(50, dtype=np.uint64)))
    assert model.speed[2] / model.speed[0] == pytest.approx(3, rel=0.1)
    assert times[:, 0] == pytest.approx(costs, rel=0.1)
    assert times[:, 2] == pytest.approx(3 * costs, rel=0.15)


def test_what_an_instance_measures_itself_wins_in_the_end():
    """Instances that differ value by value, which no speed explains."""
    shape = SketchShape.within(0.002, 0.05)
    first, second = CostSketch(shape), CostSketch(shape)
    h = mix(np.arange(2, dtype=np.uint64))
    many = np.full(2, 5000.0)
    first.update(h, np.array([1.0, 9.0]) * many, many)
    second.update(h, np.array([9.0, 1.0]) * many, many)
    times = CostModel.of([first, second]).times_ms(h)
    assert times == pytest.approx(np.array([[1.0, 9.0], [9.0, 1.0]]), rel=0.05)


@given(st.integers(1, 4), st.integers(0, 60), st.integers(0, 3), st.booleans())
def test_a_model_survives_the_wire_and_another_number_of_instances(instances, rows, more, speed):
    """Files of earlier versions have no speeds in them: they are fitted again, to the same bits."""
    model = measured(np.linspace(1, 9, 20), [1.0] * instances, [rows] * instances)
    again = CostModel.from_arrow(model.to_arrow(fitted=speed))
    h = mix(np.arange(30, dtype=np.uint64))
    assert again.shape == model.shape
    assert (again.times_ms(h) == model.times_ms(h)).all()
    wider = model.resized(instances + more)
    assert wider.times_ms(h).shape == (30, instances + more)
    for ours, theirs in zip(wider.resized(instances).sketches, model.sketches, strict=True):
        assert (ours.cells == theirs.cells).all() and (ours.frequency == theirs.frequency).all()


def test_what_instances_knew_that_leave_is_kept_in_times_of_the_mean_one():
    costs = np.linspace(1, 9, 20)
    model = measured(costs, [1.0, 1.0, 3.0], [200, 200, 4_000])
    smaller = model.resized(2)
    h = mix(np.arange(20, dtype=np.uint64))
    assert smaller.former.rows == 4_000
    mean_ms = smaller.times_ms(h).mean(axis=1)
    assert mean_ms / mean_ms.mean() == pytest.approx(costs / costs.mean(), rel=0.25)
    again = CostModel.from_arrow(smaller.to_arrow(fitted=True))
    assert (again.times_ms(h) == smaller.times_ms(h)).all()
    assert again.resized(3).former.rows == 4_000
    assert again.resized(1).former.rows == pytest.approx(4_200)


def test_a_model_that_knows_nothing_finds_all_tuples_alike():
    model = measured(np.ones(3), [1.0, 1.0], [0, 0])
    times = model.times_ms(mix(np.arange(4, dtype=np.uint64)))
    assert (times == times[0, 0]).all() and np.isfinite(times).all()
    assert model.speed.tolist() == [1.0, 1.0]


def test_new_instances_are_taken_for_mean_ones():
    costs = np.linspace(1, 40, 30)
    model = measured(costs, [1.0, 1.0], [3000, 3000]).resized(3)
    times = model.times_ms(mix(np.arange(30, dtype=np.uint64)))
    assert times[:, 2] == pytest.approx(costs, rel=0.1)


# --- Times that one instance alone finds far too long are pauses, until they repeat.

ALONE = np.array([3], np.uint64)


def each_saw(*times_ms):
    """Instances that each saw value 3 once, and a hundred others often, which take 1 ms."""
    others, sketches = np.arange(100, 200, dtype=np.uint64), []
    for ms in times_ms:
        sketch = CostSketch(SHAPE)
        sketch.update(mix(others), np.full(100, 20.0), np.full(100, 20.0))
        sketch.update(mix(ALONE), np.array([ms]))
        sketches.append(sketch)
    return CostModel.of(sketches).times_ms(mix(ALONE))[0]


def test_a_pause_in_one_instance_is_not_taken_for_what_a_value_costs():
    quiet, paused = each_saw(1.0, 1.0, 1.0, 1.0), each_saw(1.0, 1.0, 1.0, 40.0)
    assert paused[:3] / quiet[:3] == pytest.approx(np.full(3, 1.25), rel=0.05), "twice, of four"


def test_what_repeats_is_believed_and_so_is_who_alone_has_seen_a_value():
    assert each_saw(1.0, 40.0, 40.0, 40.0).min() > 20
    alone = CostSketch(SHAPE)
    alone.update(mix(ALONE), np.array([40.0]))
    rest = [CostSketch(SHAPE) for _ in range(2)]
    for sketch in rest:
        sketch.update(mix(np.arange(50, 90, dtype=np.uint64)), np.full(40, 1.0))
    assert CostModel.of([alone, *rest]).times_ms(mix(ALONE)).min() > 20


def test_what_is_nearly_forgotten_vetoes_nothing():
    """After a change old times keep little weight, and an instance that knows new ones is right."""
    old, new = CostSketch(SHAPE), CostSketch(SHAPE)
    old.update(mix(ALONE), np.array([1.0]))
    old.decay(0.1)
    new.update(mix(np.repeat(ALONE, 4)), np.full(4, 40.0))
    assert believed_ms(np.array([[0.1], [4.0]]), np.array([[0.1], [160.0]]))[1, 0] == 160.0
    assert CostModel.of([old, new]).times_ms(mix(ALONE)).min() > 20


def test_a_value_never_seen_counts_as_those_that_are_seldom_seen():
    sketch = CostSketch(SHAPE)
    sketch.update(mix(np.arange(1, 6, dtype=np.uint64)), np.full(5, 5000.0), np.full(5, 500.0))
    sketch.update(mix(np.arange(10, 60, dtype=np.uint64)), np.full(50, 2.0))
    unseen = CostModel.of([sketch]).times_ms(mix(np.array([99], np.uint64)))
    assert unseen[0, 0] == pytest.approx((5 * 10 + 50 * 2) / 55, rel=0.02)


def test_files_of_before_that_have_speeds_only_are_read_to_the_same_bits():
    model = measured(np.linspace(1, 9, 20), [1.0, 2.0], [300, 300])
    table = model.to_arrow()
    facts = {**table.schema.metadata, b"speed": json.dumps(model.speed.tolist()).encode()}
    again = CostModel.from_arrow(table.replace_schema_metadata(facts))
    h = mix(np.arange(30, dtype=np.uint64))
    assert (again.times_ms(h) == model.times_ms(h)).all()
    assert (
        again.times_ms(h) == CostModel.from_arrow(model.to_arrow(fitted=True)).times_ms(h)
    ).all()


# --- Schedulers are pure, fill the instance that is done first, and keep Graham's bounds.

costs = st.lists(st.integers(1, 70), min_size=1, max_size=7)


def alike(times, k):
    return np.repeat(np.array(times, np.float64)[:, None], k, axis=1)


def spent(times, targets, k):
    return np.bincount(targets, np.array(times, np.float64), k)


def shortest(times, k):
    return min(
        spent(times, np.array(choice), k).max() for choice in product(range(k), repeat=len(times))
    )


@settings(deadline=None)
@given(costs, st.integers(1, 3), st.integers(0, 5))
def test_the_busiest_instance_is_within_grahams_bounds(times, k, first):
    """List scheduling is at most 2 - 1/k from the best schedule, longest first 4/3 - 1/(3k)."""
    group = np.arange(len(times))
    best = shortest(times, k)
    for way, bound in ((greedy, 2 - 1 / k), (longest_first, 4 / 3 - 1 / (3 * k))):
        busy = np.zeros(k)
        targets = way(alike(times, k), group, busy, first)
        assert busy == pytest.approx(spent(times, targets, k))
        assert busy.max() <= bound * best + 1e-9


@given(st.lists(st.lists(st.floats(0.01, 70), min_size=3, max_size=3), min_size=1, max_size=40))
def test_a_tuple_goes_where_it_is_done_first(times):
    """Against the definition, for instances that differ."""
    table = np.array(times)
    busy, plain = np.zeros(3), np.zeros(3)
    targets = greedy(table, np.arange(len(table)), busy, 1)
    for i, target in enumerate(targets):
        ends = plain + table[i]
        assert ends[target] == ends.min()
        plain[target] = ends[target]
    assert (busy == plain).all()


@pytest.mark.skipif(kernels.compiled is None, reason="no C compiler when it was installed")
@given(
    st.integers(1, 6),
    st.integers(0, 7),
    st.integers(0, 2**32 - 1),
    st.booleans(),
)
def test_the_compiled_loop_is_the_plain_one(k, first, seed, ahead):
    draw = np.random.default_rng(seed)
    times, group = draw.uniform(0, 70, (20, k)).round(), draw.integers(0, 20, 300)
    busy = [np.zeros(k), np.zeros(k)]
    compiled = greedy(times, group, busy[0], first, ahead=ahead)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "compiled", None)
        plain = greedy(times, group, busy[1], first, ahead=ahead)
    assert (plain == compiled).all()
    assert (busy[0] == busy[1]).all()


@given(costs, st.integers(1, 4), st.integers(0, 9))
def test_online_targets_do_not_depend_on_how_tuples_are_cut(times, k, cut):
    table, group = alike(times, k), np.arange(len(times))
    whole = greedy(table, group, np.zeros(k), 2)
    busy = np.zeros(k)
    parts = [greedy(table, part, busy, 2) for part in (group[:cut], group[cut:])]
    assert (np.concatenate(parts) == whole).all()


def test_equal_times_go_round_from_the_first_instance_on():
    targets = greedy(np.ones((1, 3)), np.zeros(6, np.int64), np.zeros(3), first=1)
    assert targets.tolist() == [1, 2, 0, 1, 2, 0]
    assert round_robin(4, 4, 3).tolist() == [1, 2, 0, 1]


def test_a_slow_instance_gets_less():
    times = np.array([[3.0, 1.0, 1.0]])
    targets = greedy(times, np.zeros(70, np.int64), np.zeros(3))
    assert np.bincount(targets).tolist() == [10, 30, 30]


def test_times_must_be_those_of_the_instances():
    with pytest.raises(ValueError, match="times of 2 instances, but 3"):
        greedy(np.ones((1, 2)), np.zeros(1, np.int64), np.zeros(3))
