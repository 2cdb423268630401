"""Estimates are those of the true costs, also of values that an instance has never seen."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.routing.hashing import mix
from headgate.sketch.cost_model import CostModel
from headgate.sketch.count_min import CostSketch, SketchShape

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


@given(st.integers(1, 4), st.integers(0, 60), st.integers(0, 3))
def test_a_model_survives_the_wire_and_another_number_of_instances(instances, rows, more):
    model = measured(np.linspace(1, 9, 20), [1.0] * instances, [rows] * instances)
    again = CostModel.from_arrow(model.to_arrow())
    h = mix(np.arange(30, dtype=np.uint64))
    assert again.shape == model.shape
    assert (again.times_ms(h) == model.times_ms(h)).all()
    wider = model.resized(instances + more)
    assert wider.times_ms(h).shape == (30, instances + more)
    assert (wider.resized(instances).frequency == model.frequency).all()


def test_a_model_that_knows_nothing_finds_all_tuples_alike():
    model = measured(np.ones(3), [1.0, 1.0], [0, 0])
    times = model.times_ms(mix(np.arange(4, dtype=np.uint64)))
    assert (times == times[0, 0]).all() and np.isfinite(times).all()
    assert model.speed.tolist() == [1.0, 1.0]
    assert model.rows.tolist() == [0, 0]


def test_new_instances_are_taken_for_mean_ones():
    costs = np.linspace(1, 40, 30)
    model = measured(costs, [1.0, 1.0], [3000, 3000]).resized(3)
    times = model.times_ms(mix(np.arange(30, dtype=np.uint64)))
    assert times[:, 2] == pytest.approx(costs, rel=0.1)
