"""Count-Min's bounds hold against exact counts, however tuples are cut into batches and merges."""

from __future__ import annotations

import pickle
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.strategies import examples
from tests.unit.routing.count_min import estimate_ms, frequency_of, matrices

from headgate.routing.costs import CostSketch, SketchShape
from headgate.routing.hashing import mix
from headgate.routing.instance_costs import InstanceCosts, Stability, change, surprise

tuples = st.tuples(st.integers(0, 40), st.floats(0.01, 70))
batches = st.lists(st.lists(tuples, max_size=30), max_size=6)


def arrays(batch):
    h = mix(np.array([value for value, _ in batch], np.uint64))
    return h, np.array([ms for _, ms in batch], np.float64)


def filled(shape, batches):
    sketch = CostSketch(shape)
    for batch in batches:
        sketch.update(*arrays(batch))
    return sketch


def exact(batches):
    times = defaultdict(list)
    for value, ms in (entry for batch in batches for entry in batch):
        times[value].append(ms)
    return times


@given(st.integers(1, 4), st.integers(1, 30), st.integers(0, 5), batches)
def test_frequencies_are_never_below_the_truth_and_estimates_lie_among_the_costs(
    depth, width, seed, batches
):
    sketch, truth = filled(SketchShape(depth, width, seed), batches), exact(batches)
    values = sorted(truth)
    h = mix(np.array(values, np.uint64))
    counted = frequency_of(sketch, h)
    estimates = estimate_ms(sketch, h)
    everything = [ms for times in truth.values() for ms in times]
    for i, value in enumerate(values):
        assert counted[i] >= len(truth[value])
        assert counted[i] <= len(everything)
        assert min(everything) - 1e-9 <= estimates[i] <= max(everything) + 1e-9
    assert sketch.rows == len(everything)
    assert sketch.total_ms == pytest.approx(sum(everything))


@given(batches)
def test_a_wide_sketch_knows_every_cost(batches):
    sketch, truth = filled(SketchShape.within(0.001, 0.01), batches), exact(batches)
    values = sorted(truth)
    estimates = estimate_ms(sketch, mix(np.array(values, np.uint64)))
    assert estimates == pytest.approx([np.mean(truth[value]) for value in values])


@pytest.mark.parametrize(("epsilon", "delta"), [(0.05, 0.1), (0.01, 0.05), (0.002, 0.3)])
def test_counts_and_times_are_over_by_epsilon_in_few_cases(epsilon, delta):
    """The bound of Cormode and Muthukrishnan, over many hash functions and a skewed stream."""
    draw = np.random.default_rng(3)
    values = draw.zipf(1.2, 20_000) % 5_000
    times = draw.uniform(0.01, 70, 20_000)
    distinct, at = np.unique(values, return_inverse=True)
    count, spent = np.bincount(at), np.bincount(at, times)
    h = mix(distinct.astype(np.uint64))
    too_much = []
    for seed in range(20):
        sketch = CostSketch(SketchShape.within(epsilon, delta, seed))
        sketch.update(h, spent, count.astype(np.float64))
        too_much.append(np.mean(frequency_of(sketch, h) - count > epsilon * len(values)))
        cells = matrices(sketch)[1][sketch.shape.cells(h)].min(axis=0)
        assert (cells >= spent - 1e-6).all()
        too_much.append(np.mean(cells - spent > epsilon * times.sum()))
    assert np.mean(too_much) <= delta


@examples(25)
@given(
    st.lists(st.tuples(st.integers(0, 400), st.integers(1, 50)), min_size=1, max_size=200),
    st.sampled_from([0.02, 0.05, 0.2]),
    st.sampled_from([0.05, 0.2, 0.5]),
)
def test_few_hash_functions_break_the_bound_on_any_stream(counted, epsilon, delta):
    """For each value the bound holds with probability 1 - delta over the hash functions."""
    values = np.array([value for value, _ in counted], np.uint64)
    count = np.array([times for _, times in counted], np.float64)
    distinct, at = np.unique(values, return_inverse=True)
    truth, h = np.bincount(at, count), mix(distinct)
    over = np.zeros(len(distinct))
    tries = 60
    for seed in range(tries):
        sketch = CostSketch(SketchShape.within(epsilon, delta, seed))
        sketch.update(h, truth, truth)
        over += frequency_of(sketch, h) - truth > epsilon * truth.sum()
    spread = 4 * np.sqrt(delta * (1 - delta) / tries)  # of the number of bad tries
    assert (over / tries <= delta + spread).all()


@given(batches, st.integers(0, 6))
def test_merging_is_adding_up(batches, cut):
    shape = SketchShape(3, 11, 1)
    first, second = filled(shape, batches[:cut]), filled(shape, batches[cut:])
    first.merge(second)
    whole = filled(shape, batches)
    assert (first.cells == whole.cells).all() and (np.diff(whole.cells) > 0).all()
    assert first.frequency == pytest.approx(whole.frequency)
    assert first.time_ms == pytest.approx(whole.time_ms)
    assert (first.rows, first.total_ms) == pytest.approx((whole.rows, whole.total_ms))


@given(batches)
def test_counted_tuples_are_tuples(batches):
    shape = SketchShape(2, 13)
    together = CostSketch(shape)
    truth = exact(batches)
    h = mix(np.array(list(truth), np.uint64))
    spent = np.array([sum(times) for times in truth.values()])
    together.update(h, spent, np.array([len(times) for times in truth.values()], np.float64))
    for ours, theirs in zip(matrices(together), matrices(filled(shape, batches)), strict=True):
        assert ours == pytest.approx(theirs)


def test_many_values_at_once_are_numbered_as_few_are():
    """A cell per value would take longer to find than all cells."""
    h = mix(np.arange(3_000, dtype=np.uint64) % 700)
    times = np.random.default_rng(1).uniform(0, 9, len(h))
    shape = SketchShape(3, 500)
    whole, parts = CostSketch(shape), CostSketch(shape)
    whole.update(h, times)
    for at in range(0, len(h), 100):
        parts.update(h[at : at + 100], times[at : at + 100])
    assert (whole.cells == parts.cells).all() and (whole.frequency == parts.frequency).all()
    assert whole.time_ms == pytest.approx(parts.time_ms)


@given(batches, batches)
def test_a_copy_goes_its_own_way(first, second):
    sketch = filled(SketchShape(3, 11, 1), first)
    copy, before = sketch.copy(), matrices(sketch)
    copy.merge(filled(SketchShape(3, 11, 1), second))
    copy.decay(0.5)
    for ours, theirs in zip(matrices(sketch), before, strict=True):
        assert (ours == theirs).all()


@given(batches)
def test_a_sketch_survives_pickling(batches):
    sketch = filled(SketchShape(3, 17, 9), batches)
    again = pickle.loads(pickle.dumps(sketch))
    assert again.shape == sketch.shape
    assert (again.cells == sketch.cells).all() and (again.frequency == sketch.frequency).all()
    assert (again.time_ms == sketch.time_ms).all()
    assert (again.rows, again.total_ms) == (sketch.rows, sketch.total_ms)


def test_decay_keeps_estimates_and_lets_new_times_weigh_more():
    sketch = CostSketch(SketchShape(2, 50))
    h = np.array([1], np.uint64)
    sketch.update(np.repeat(h, 16), np.full(16, 10.0))
    sketch.decay(1 / 16)
    assert estimate_ms(sketch, h) == pytest.approx(10)
    sketch.update(h, np.array([30.0]))
    assert estimate_ms(sketch, h) == pytest.approx(20)


def test_shapes_are_those_of_the_bounds_and_state_their_memory():
    shape = SketchShape.within(0.01, 0.05)
    assert (shape.depth, shape.width) == (3, 272)
    sketch = CostSketch(shape)
    sketch.update(mix(np.arange(5_000, dtype=np.uint64)), np.ones(5_000))
    assert len(sketch.cells) == 3 * 272, "never more than all cells"
    with pytest.raises(ValueError, match="between 0 and 1"):
        SketchShape.within(epsilon=2)
    with pytest.raises(ValueError, match="cannot add"):
        CostSketch(shape).merge(CostSketch(SketchShape(3, 271)))


def test_equal_seeds_hash_alike_and_cells_stay_in_their_row():
    h = mix(np.arange(1000, dtype=np.uint64))
    shape = SketchShape(3, 64, 5)
    cells = shape.cells(h)
    assert (cells == SketchShape(3, 64, 5).cells(h)).all()
    assert (cells // 64 == np.arange(3)[:, None]).all()
    assert (cells[1] - 64 != cells[0]).mean() > 0.9


# --- Sketches are sent once stable, seldom after that, and again when execution times change.

SHAPE = SketchShape.within(0.01, 0.05)


def windows(costs, count, rows=64, seed=0):
    draw = np.random.default_rng(seed)
    for _ in range(count):
        values = draw.integers(0, len(costs), rows)
        sketch = CostSketch(SHAPE)
        sketch.update(mix(values.astype(np.uint64)), costs[values])
        yield sketch


def test_it_waits_until_stable_and_then_sends_with_every_doubling_only():
    instance = InstanceCosts(SHAPE)
    sent = [instance.add(window) for window in windows(np.linspace(1, 70, 40), 200)]
    assert not sent[0], "one window says nothing about change"
    assert sum(sent) <= 9, "log2 of 200 windows, and the first"
    assert instance.is_stable
    assert instance.sent is not None and instance.sent.rows >= 64 * 100


@pytest.mark.parametrize(
    "after",
    [np.linspace(1, 70, 40) * 3, np.linspace(1, 70, 40)[::-1].copy()],
    ids=["three times slower", "other values are dear"],
)
def test_a_change_is_noticed_and_told_within_a_few_windows(after):
    instance = InstanceCosts(SHAPE)
    for window in windows(np.linspace(1, 70, 40), 40):
        instance.add(window)
    sent = [instance.add(window) for window in windows(after, 6, seed=1)]
    assert any(sent)
    assert instance.sent is not None
    times = estimate_ms(instance.sent, mix(np.arange(40, dtype=np.uint64)))
    assert np.abs(times - after).sum() / after.sum() < 0.25


def a_window_of(costs, factor, seed):
    return next(windows(costs * factor, 1, rows=128, seed=seed))


def test_one_window_that_surprises_is_a_doubt_and_a_second_one_a_change():
    costs = np.linspace(1, 70, 40)
    instance = InstanceCosts(SHAPE)
    for window in windows(costs, 40):
        instance.add(window)
    known = instance.sketch.rows
    instance.add(a_window_of(costs, 3.0, 5))
    assert not instance.is_settled and instance.sketch.rows > known, "nothing is forgotten yet"
    calm, _ = InstanceCosts.from_bytes(instance.to_bytes({}))
    calm.add(a_window_of(costs, 1.0, 6))
    assert calm.is_settled and calm.sketch.rows > known
    changed, _ = InstanceCosts.from_bytes(instance.to_bytes({}))
    changed.add(a_window_of(costs, 3.0, 6))
    assert not changed.is_stable and changed.sketch.rows < known, "it starts over"


def test_pauses_of_the_machine_are_no_change():
    """Values of 1 ms, of which one in every window takes as long as half of the window."""
    costs = np.ones(200)
    instance = InstanceCosts(SHAPE)
    for window in windows(costs, 20):
        instance.add(window)
    for seed in range(20):
        window = a_window_of(costs, 1.0, seed)
        window.update(mix(np.array([seed], np.uint64)), np.array([60.0]))
        instance.add(window)
        assert instance.is_stable, seed


def test_tuples_are_counted_not_calls():
    instance = InstanceCosts(SHAPE, Stability(window_rows=1000))
    assert not any(instance.add(window) for window in windows(np.ones(5), 15))
    assert not instance.is_stable


def test_after_a_restart_it_goes_on_from_what_was_sent():
    before = InstanceCosts(SHAPE)
    costs = np.linspace(1, 70, 40)
    for window in windows(costs, 10):
        before.add(window)
    assert before.sent is not None
    after = InstanceCosts(SHAPE)
    after.adopt(before.sent)
    assert after.is_stable
    assert not any(after.add(window) for window in windows(costs, 2, seed=3))


def test_change_and_surprise_are_relative_and_look_at_known_cells_only():
    def cells(frequency, time_ms):
        return CostSketch.of_cells(SketchShape(1, 3), np.array(frequency), np.array(time_ms))

    one, twice = cells([1.0, 2.0, 0.0], [4.0, 8.0, 0.0]), cells([1.0, 2.0, 0.0], [8.0, 16.0, 0.0])
    nothing = cells([0.0, 0.0, 0.0], [0.0, 0.0, 0.0])
    assert change(one, one) == 0.0
    assert change(one, twice) == pytest.approx(1.0)
    assert change(one, nothing) == 1.0
    assert surprise(one, twice) == pytest.approx((0.5, 0.5))
    window, swapped = cells([1.0] * 3, [4.0, 8.0, 9.0]), cells([1.0] * 3, [8.0, 4.0, 5.0])
    assert surprise(window, swapped) == pytest.approx((4 / 21, 12 / 21))
    assert surprise(nothing, one) == (0.0, 0.0)


def test_settings_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="window and tolerances are positive"):
        Stability(window_rows=0)
